"""What the theory's figures show: a bound or an order over x."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from splitrelay.theory import Bound, Rate

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Panel:
    """One stack over x, each array as long as x. From `start` on a total says nothing; None where no such level is."""

    label: str
    x: Array
    total: Array
    terms: Mapping[str, Array]
    applicable: Array
    start: Array | None = None
    why_not: str = ""  # what fails where it does not apply
    marks: Mapping[str, float] = field(default_factory=dict)  # values of x to point out, by rule

    @property
    def shares(self) -> dict[str, Array]:
        """Each term as a part of the total."""
        whole = np.where(self.total > 0, self.total, np.nan)
        return {name: values / whole for name, values in self.terms.items()}


def bound_panel(label: str, x: Sequence[float], bound: Bound, start: Sequence[float]) -> Panel:
    """A bound over x."""
    return Panel(
        label,
        _over(x, x),
        _over(x, bound.total),
        {name: _over(x, values) for name, values in bound.terms.items()},
        np.broadcast_to(bound.applicable, len(x)),
        _over(x, start),
        why_not(bound),
    )


def why_not(bound: Bound) -> str:
    """The first condition that fails somewhere."""
    return next((f"needs {c.name}" for c in bound.conditions if not np.all(c.holds)), "")


def rate_panel(label: str, x: Sequence[float], rate: Rate) -> Panel:
    """An order over x: it has no range, and with unit constants no level from which on it says nothing."""
    terms = {name: _over(x, values) for name, values in rate.terms.items()}
    return Panel(label, _over(x, x), _over(x, rate.total), terms, np.ones(len(x), dtype=bool))


def _over(x: Sequence[float], values: npt.ArrayLike) -> Array:
    return np.broadcast_to(np.asarray(values, dtype=np.float64), len(x))
