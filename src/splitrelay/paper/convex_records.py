"""Define the record of the convex study: one JSON file from which its tables and figure are made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError

from splitrelay.atomic_files import write_text
from splitrelay.errors import InputError, OutOfRange

Array = npt.NDArray[np.float64]
Rows = list[list[float]]  # one row per seed, one number per point

GRID = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class FrozenModel(BaseModel):
    """A frozen model that refuses unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Study(FrozenModel):
    """The settings: four algorithms on ExDir(C, alpha) for each C, at each rate and at the theory's, for each seed."""

    data: str = "digits"
    Cs: tuple[PositiveInt, ...] = Field((1, 2, 5, 10), min_length=1)
    alpha: float = Field(10.0, gt=0)
    M: int = Field(10, ge=1)
    K: int = Field(5, ge=1)
    R: int = Field(500, ge=1)
    mu: float = Field(0.01, gt=0)
    batch: int | None = Field(20, ge=1)
    etas: tuple[PositiveFloat, ...] = Field(GRID, min_length=1)
    seeds: tuple[NonNegativeInt, ...] = Field((1234,), min_length=1)
    points: int = Field(40, ge=1)

    @property
    def rounds(self) -> list[int]:
        """Return the rounds after which the gap is measured: the start, the end, and `points` in equal steps."""
        return sorted({round(j * self.R / self.points) for j in range(self.points + 1)})


class Constants(FrozenModel):
    """The constants of the problem. All are exact except L (a bound) and sigma2_seen (the largest measured)."""

    L: float
    mu: float
    zeta2_star: float
    sigma2_star: float
    sigma2_seen: float
    sigma2_everywhere: float
    D2: float
    A: float
    F_star: float
    gradient_norm: float  # at x*
    accuracy: float  # of x* on the test set

    @property
    def kappa(self) -> float:
        """Return L/mu."""
        return self.L / self.mu

    @property
    def rounds_needed(self) -> float:
        """Return 6 kappa. With fewer rounds the strongly convex theorems do not apply."""
        return 6 * self.kappa


class Tuned(FrozenModel):
    """An algorithm at the rate of the grid whose last model has the smallest gap, in the mean over seeds."""

    eta: float
    on_edge: bool
    gap: Rows  # F(x^r) - F*
    finals: list[float | None]  # of every rate of the grid; None if it diverged


class AtTheory(FrozenModel):
    """An algorithm at the step that minimises its theorem's bound, and that bound after each point's rounds."""

    eta: float
    eta_tilde: float
    gap: Rows  # F(x^r) - F*
    gap_bar: Rows  # F(x-bar) - F*, the averaged output of the theorem
    applies: bool  # after all R rounds
    proved: list[float | None]  # the bound; None if it does not apply
    tight: list[float | None]


class Side(FrozenModel):
    """One algorithm on one partition."""

    algorithm: str
    per_eta: int  # eta_tilde / eta
    tuned: Tuned
    theory: AtTheory


class Cell(FrozenModel):
    """The results for one C."""

    C: int
    sizes: list[int]
    constants: Constants
    sides: list[Side]
    seconds: float


class Record(FrozenModel):
    """A whole study."""

    study: Study
    rounds: list[int]
    cells: list[Cell]


def check_study(**settings: Any) -> Study:
    """Return a study with these settings.

    Raises:
        OutOfRange: A setting is invalid.
    """
    try:
        return Study(**settings)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        default = Study.model_fields[name].default if name in Study.model_fields else None
        raise OutOfRange(
            f"{_get_letter(name)} of the convex study",
            limit=f"{_get_letter(name)} {_describe_limit(first)}",
            value=first["input"],
            hint=None if default is None else f"The default is {_format_list(default)}.",
        ) from None


def _get_letter(name: str) -> str:
    """Return the letter of a setting. A list has the letter of its items."""
    return {"Cs": "C", "etas": "eta", "seeds": "seed"}.get(name, name)


def _describe_limit(error: Any) -> str:
    """Return the limit that was violated, for example '> 0'."""
    context = error.get("ctx", {})
    signs = [f"{sign} {context[key]:g}" for key, sign in (("gt", ">"), ("ge", ">=")) if key in context]
    return signs[0] if signs else f"as this says: {error['msg']}"


def _format_list(value: object) -> str:
    return ",".join(f"{item:g}" for item in value) if isinstance(value, tuple) else str(value)


def last(rows: Rows) -> float:
    """Return the mean over seeds of the last number."""
    return float(np.mean([row[-1] for row in rows]))


def mean(rows: Rows) -> Array:
    """Return the mean over seeds, point by point."""
    return np.asarray(np.mean(np.asarray(rows, dtype=float), axis=0))


def find_first_within(rounds: Sequence[int], rows: Rows, level: float) -> int | None:
    """Return the first measured round with a mean gap of at most `level`, or None."""
    reached = np.flatnonzero(mean(rows) <= level)
    return rounds[int(reached[0])] if len(reached) else None


def write_record(record: Record, path: Path) -> Path:
    """Write the record as JSON, atomically."""
    write_text(path, record.model_dump_json(indent=1) + "\n")
    return path


def read_record(path: Path) -> Record:
    """Read a record that `write_record` wrote."""
    try:
        return Record.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {path}", value=error.strerror) from None
    except (ValidationError, UnicodeDecodeError) as error:
        first = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error.reason
        hint = "Make one: splitrelay convex data=digits"
        raise InputError(f"{path} is not a record of the convex study", value=first, hint=hint) from None
