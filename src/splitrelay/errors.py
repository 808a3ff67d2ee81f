"""All errors of the package. Each error has four fields: what failed, the value, the limit and a hint."""

from __future__ import annotations

import os
from collections.abc import Iterable
from difflib import get_close_matches
from traceback import extract_tb
from typing import Any


class SplitrelayError(Exception):
    """The base class of all errors.

    Attributes:
        what: What failed.
        value: The value that caused the error.
        limit: The limit that the value violates.
        hint: What the user can do.
        exit_code: The exit code of the command line.
    """

    exit_code = 1

    def __init__(self, what: str, *, value: object = None, limit: object = None, hint: str | None = None) -> None:
        self.what, self.value, self.limit, self.hint = what, value, limit, hint
        parts = [what]
        if limit is not None:
            parts.append(f"needs {limit}")
        if value is not None:
            parts.append(f"got {_format_value(value)}")
        message = "; ".join(parts)
        super().__init__(escape_unprintable(message if hint is None else f"{message}. {hint}"))

    def __reduce__(self) -> tuple[Any, ...]:
        """Let errors be sent between processes without a change."""
        return _restore, (type(self), self.args), self.__dict__


class InputError(SplitrelayError):
    """The user's input is wrong. No work was started."""

    exit_code = 2


class OutOfRange(InputError):
    """A number is outside its valid range."""


class OutputError(InputError):
    """The chosen place cannot be written to."""


class WorkError(SplitrelayError):
    """The input was right, but the work failed."""


class StorageError(WorkError):
    """The disk is full or failed during a write. Other options of the command cannot help."""


class VisitFailed(WorkError):
    """The visit of a client failed so often that the run stops."""


class Diverged(WorkError):
    """A result is NaN or infinite."""


class ContractBroken(WorkError):
    """An algorithm, a set of clients or a partition violates its contract."""


class UnknownName(InputError):
    """A name is unknown. The hint suggests the most similar known name."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str | None = None) -> None:
        self.kind, self.name, self.known = kind, name, sorted(known)
        super().__init__(f"unknown {kind} '{name}'", hint=hint or suggest_name(name, self.known))


def _restore(kind: type[SplitrelayError], args: tuple[Any, ...]) -> SplitrelayError:
    error = kind.__new__(kind)
    error.args = args
    return error


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Return "Did you mean ...?" if a known name is similar, else the list of all known names.

    If several names contain the given one, none of them is more similar: all known names are listed.
    """
    names, name = list(known), str(name)  # callers may pass a value of another type
    lowered = {candidate.lower(): candidate for candidate in names}
    if sum(name.lower() in candidate for candidate in lowered) > 1:
        return "Known: " + ", ".join(names) + "."
    similar = get_close_matches(name.lower(), lowered, n=1, cutoff=0.5)
    if similar:
        return f"Did you mean '{lowered[similar[0]]}'?"
    return "Known: " + ", ".join(names) + "."


def find_user_code(error: BaseException) -> str:
    """Return "FILE, line N" of the innermost call in a file of the user, or an empty string if there is none.

    Files of the user are neither in this package nor in the folders of installed packages and of Python itself.
    """
    if isinstance(error, SyntaxError) and error.filename and _is_user_file(error.filename):
        return f"{error.filename}, line {error.lineno}"
    calls = [call for call in extract_tb(error.__traceback__) if _is_user_file(call.filename)]
    return f"{calls[-1].filename}, line {calls[-1].lineno}" if calls else ""


def _is_user_file(name: str) -> bool:
    from pathlib import Path  # noqa: PLC0415 - --help does not need it, and it is the slowest import of this module

    path = Path(name).resolve()
    own, python = Path(__file__).resolve().parent, Path(os.__file__).resolve().parent
    is_program = path.name in ("splitrelay", "splitrelay.exe")  # the script that pip writes
    return (
        path.is_file()
        and not is_program
        and not any(path.is_relative_to(each) for each in (own, python))
        and ("site-packages" not in path.parts)
    )


def escape_unprintable(text: str) -> str:
    """Return the text with an escape sequence for every character that a terminal does not print.

    Control characters, line breaks and bidirectional overrides could otherwise forge lines of a log or control the
    terminal. Texts of peers and names in their data must pass through this function before they are displayed.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _format_value(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
