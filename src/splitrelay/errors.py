"""One tree of errors. Each says what failed, the value, the limit, and the way out."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


class SplitrelayError(Exception):
    """What failed; the value that made it fail; the limit it broke; the way out."""

    exit_code = 1

    def __init__(self, what: str, *, value: object = None, limit: object = None, hint: str | None = None) -> None:
        self.what, self.value, self.limit, self.hint = what, value, limit, hint
        parts = [what]
        if limit is not None:
            parts.append(f"needs {limit}")
        if value is not None:
            parts.append(f"got {shown(value)}")
        message = "; ".join(parts)
        super().__init__(printable(message if hint is None else f"{message}. {hint}"))

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors come home from other processes as they left."""
        return _returned, (type(self), self.args), self.__dict__


class InputError(SplitrelayError):
    """The user asked for something that cannot be: nothing was started."""

    exit_code = 2


class OutOfRange(InputError):
    """A number outside the range in which the question has an answer."""


class OutputError(InputError):
    """A place that cannot be written to."""


class WorkError(SplitrelayError):
    """The request was right, and the work failed."""


class StorageError(WorkError):
    """The disk is full or failed while it was written to: not the user's mistake, and not to be repaired by options."""


class VisitFailed(WorkError):
    """One client has failed its visit so often that the run stops."""


class Diverged(WorkError):
    """NaN or infinity where a number should be."""


class ContractBroken(WorkError):
    """An algorithm, a set of clients or a partition that does not keep its promise."""


class UnknownName(InputError):
    """A name that nobody here carries, with the nearest one that somebody does."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind, self.name, self.known = kind, name, sorted(known)
        super().__init__(f"unknown {kind} '{name}'", hint=suggestion(name, self.known))


def _returned(kind: type[SplitrelayError], args: tuple[Any, ...]) -> SplitrelayError:
    error = kind.__new__(kind)
    error.args = args
    return error


def suggestion(name: str, known: Iterable[str]) -> str:
    """'Did you mean ...?' where a known name is near, else the list of them."""
    names = list(known)
    lowered = {candidate.lower(): candidate for candidate in names}
    near = get_close_matches(name.lower(), lowered, n=1, cutoff=0.5)
    if near:
        return f"Did you mean '{lowered[near[0]]}'?"
    return "Known: " + ", ".join(names) + "."


def printable(text: str) -> str:
    """Return the text with every character that a terminal does not print written as an escape.

    Control characters, line breaks and bidirectional overrides could otherwise forge lines of a log or steer a
    terminal. Texts that peers send, and names in their data, pass through here before anybody sees them.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def shown(value: object) -> str:
    """A value as a message shows it: floats in six digits, the rest as written."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
