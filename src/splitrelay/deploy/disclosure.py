"""What leaves a client's host in a run: computed from the spec before anything is sent, approved by the operator."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np

from splitrelay.deploy.backend import Shape
from splitrelay.deploy.visit_limits import AllowedVisits
from splitrelay.errors import InputError, escape_unprintable
from splitrelay.network.messages import Terms
from splitrelay.runs.spec import Spec

Ask = Callable[[str], bool]
LABEL = 4  # bytes of one label
UPDATES = "beware: a malicious server can compute images of this client from the changes of the weights"
WIDTH, LINES = 200, 200  # characters of a line, and lines of the spec, that an operator is shown


@dataclass(frozen=True)
class Disclosure:
    """What one visit sends from a client's host, and how many visits there are at most."""

    samples: int  # of one visit; 0 where the client holds the whole model
    numbers: int  # of one sample, above the client's half
    smashed_bytes: int  # of one visit, labels included
    half_bytes: int  # of the client's half, or of the whole model
    visits: int

    @property
    def total_bytes(self) -> int:
        """Of all visits."""
        return self.visits * (self.smashed_bytes + self.half_bytes)

    def describe(self) -> list[str]:
        """Return the lines that an operator reads before joining."""
        if self.samples:
            each = f"{self.samples:,} samples as {self.numbers:,} numbers each, with their labels"
            sent = (
                f"{each} ({_size(self.smashed_bytes)}), and this client's half of the model ({_size(self.half_bytes)})"
            )
        else:
            sent = f"the trained model ({_size(self.half_bytes)}), no samples and no labels"
        total = f"in total: at most {self.visits:,} visits, {_size(self.total_bytes)}"
        return [f"per visit: {sent}", total, *([] if self.samples else [UPDATES])]


def compute_disclosure(spec: Spec, shape: Shape, allowed: AllowedVisits, n: int) -> Disclosure:
    """Compute what a client with n samples sends in a run of this spec."""
    width = np.dtype(spec.model.dtype).itemsize
    if spec.placement == "whole":
        return Disclosure(0, 0, 0, width * shape.size, allowed.visits)
    samples = allowed.K * (n if spec.optimiser.draw == "full" else min(spec.optimiser.batch, n))
    numbers = prod(shape.h)
    return Disclosure(samples, numbers, samples * (numbers * width + LABEL), width * shape.boundary, allowed.visits)


def check_client_half(spec: Spec, shape: Shape, agreed: Spec | None) -> None:
    """Raise InputError for a client half without parameters, unless the client's own spec names that cut.

    Below such a cut the smashed data are the features themselves, or the features reordered.
    """
    if spec.placement == "cut" and shape.boundary == 0 and (agreed is None or agreed.model.cut is None):
        hint = "To send the features themselves, join with --spec and write the cut into your own copy of the spec."
        value = f"model={spec.model.name}, cut after {shape.cut} layers"
        raise InputError("the client half of this run has no parameters", value=value, hint=hint)


class Approval:
    """Asks the operator once for each digest; threads of several clients share the answer."""

    def __init__(self, ask: Ask | None = None) -> None:
        self.ask = ask
        self._lock, self._approved = threading.Lock(), set[str]()

    def obtain(self, spec: Spec, terms: Terms, disclosure: Disclosure) -> None:
        """Return if the operator has agreed to these terms, else raise InputError.

        The spec is shown as this host has parsed it: the server's own text could hide or forge lines.
        """
        with self._lock:
            if terms.spec_hash in self._approved:
                return
            shown = [
                "The server offers this spec:",
                *_indent(shorten_lines(spec.to_toml())),
                "This host would send",
            ]
            shown += [*_indent(disclosure.describe()), f"Digest of the terms: {terms.spec_hash}"]
            if self.ask is None or not self.ask("\n".join(shown)):
                hint = f"Join with --spec and your own copy of the spec, or with --accept-spec {terms.spec_hash}."
                raise InputError("nobody has agreed to the server's spec", value=disclosure.describe()[0], hint=hint)
            self._approved.add(terms.spec_hash)


def shorten_lines(text: str) -> list[str]:
    """Return the lines of a text that comes from a server: printable, and neither too long nor too many."""
    lines = [escape_unprintable(line[:WIDTH]) for line in text.splitlines()[:LINES]]
    lines = [line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..." for line in lines]
    return lines if len(text.splitlines()) <= LINES else [*lines, f"... ({len(text.splitlines())} lines)"]


def _indent(lines: list[str]) -> list[str]:
    return [f"  {line}" if line else "" for line in lines]


def _size(number: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= scale:
            return f"{number / scale:.1f} {unit}"
    return f"{number} bytes"
