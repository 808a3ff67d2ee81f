"""Results of the calculator: plain data with a number for one setting and an array for many settings.

Every result type works for one setting and for millions of settings. Two rules keep the second case fast:

- Derived values (terms, labels, rates) are computed when they are first read, because most callers never read them.
- `map_chunks` evaluates a formula on chunks that fit into the cache, because memory is slower than arithmetic.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Strings = npt.NDArray[np.str_]
Codes = npt.NDArray[np.int8]  # indices into a tuple of labels: one byte per setting
Values = float | Array  # a number for one setting, an array for many
Truth = bool | Bools
Labels = str | Strings

Algorithm = Literal["ssl", "ssl-swor", "fedavg", "fedavg-swor", "fedavg-swr"]
Case = Literal["strongly-convex", "general-convex", "non-convex"]
Constants = Literal["sharp", "proved", "printed", "tight"]
Horizon = Literal["R", "R+1"]
Outside = Literal["refuse", "mask"]
Rule = Literal["printed", "mended", "best"]

ALGORITHMS: tuple[str, ...] = ("ssl", "ssl-swor", "fedavg", "fedavg-swor", "fedavg-swr")
CASES: tuple[str, ...] = ("strongly-convex", "general-convex", "non-convex")
CONSTANTS: tuple[str, ...] = ("sharp", "proved", "printed", "tight")
HORIZONS: tuple[str, ...] = ("R", "R+1")
OUTSIDE: tuple[str, ...] = ("refuse", "mask")
RULES: tuple[str, ...] = ("printed", "mended", "best")
BRANCHES: tuple[str, ...] = ("none", "low", "interior", "cap", "log", "c1", "c2")
WINNERS: tuple[str, ...] = ("none", "ssl", "fedavg", "equal")
DECAYS: tuple[str, ...] = ("1/R^(1/2)", "1/R^(2/3)", "1/R", "1/R^2", "exp(-R)")  # slowest first

CHUNK_SIZE = 16384  # settings per chunk: the temporary arrays of a formula stay in the cache
MIN_PER_THREAD = 8 * CHUNK_SIZE  # settings per core below which threads do not pay off
CORES = os.cpu_count() or 1


def unwrap_values(array: npt.ArrayLike) -> Values:
    """Return a number for one setting (a 0-d array) and the array itself for many settings."""
    return cast(Values, _unwrap(array))


def unwrap_truth(array: npt.ArrayLike) -> Truth:
    """Return a bool for one setting and the array itself for many settings."""
    return cast(Truth, _unwrap(array))


def unwrap_labels(array: npt.ArrayLike) -> Labels:
    """Return a string for one setting and the array itself for many settings."""
    return cast(Labels, _unwrap(array))


def _unwrap(array: npt.ArrayLike) -> object:
    result = np.asarray(array)
    return result.item() if result.ndim == 0 else result


def map_chunks(
    function: Callable[..., Sequence[Any]], inputs: Sequence[Array], output_types: Sequence[type]
) -> Sequence[Any]:
    """Evaluate an elementwise function on chunks of its inputs, with one thread per core for large inputs.

    Args:
        function: takes one chunk of each input and returns one chunk of each output.
        inputs: arrays that broadcast together.
        output_types: the dtype of each output.

    Returns:
        The outputs, each with the shape of the broadcast inputs.
    """
    inputs = np.broadcast_arrays(*inputs)
    outputs: list[Any] = [np.empty(inputs[0].shape, dtype) for dtype in output_types]
    if inputs[0].size < 2 * MIN_PER_THREAD or inputs[0].shape[0] < 2:
        _fill_chunks(function, inputs, outputs)
        return outputs
    error_settings = np.geterr()  # numpy keeps these per thread

    def fill_rows(rows: slice) -> None:
        with np.errstate(**error_settings):
            _fill_chunks(function, [array[rows] for array in inputs], [array[rows] for array in outputs])

    ends = np.linspace(0, len(inputs[0]), CORES + 1).astype(int).tolist()
    with ThreadPoolExecutor(CORES) as threads:
        list(threads.map(fill_rows, map(slice, ends, ends[1:])))
    return outputs


def _fill_chunks(function: Callable[..., Sequence[Any]], inputs: Sequence[Array], outputs: Sequence[Any]) -> None:
    flags: Any = [["readonly"]] * len(inputs) + [["writeonly"]] * len(outputs)
    operands: Any = [*inputs, *outputs]
    with np.nditer(
        operands, flags=["external_loop", "buffered", "zerosize_ok"], op_flags=flags, buffersize=CHUNK_SIZE
    ) as chunks:
        for chunk in chunks:
            for output, values in zip(chunk[len(inputs) :], function(*chunk[: len(inputs)]), strict=True):
                output[...] = values


@dataclass(frozen=True)
class Condition:
    """A condition of a statement with its two sides: `left relation right`."""

    name: str
    left: Values
    relation: Literal["<=", ">="]
    right: Values
    holds: Truth


@dataclass(frozen=True)
class Bound:
    """An upper bound with its terms and its conditions.

    Every number is NaN where `applicable` is false, which happens only with outside="mask".
    """

    algorithm: str
    case: str
    constants: str
    statement: str  # its place in the paper, for example "Theorem 1, strongly convex"
    measure: str  # the bounded quantity, for example "E F(xbar) - F*"
    total: Values
    eta_tilde: Values
    conditions: tuple[Condition, ...]
    vacuous: Truth  # the bound is not below the value that is known at x0
    applicable: Truth
    rounds: Values  # the number of rounds in the formula: R or R + 1
    formulas: Mapping[str, str]  # each term in ASCII, with its constants
    step_ratio: Values = field(repr=False)  # eta_tilde / eta
    compute_terms: Callable[[], Mapping[str, Values]] = field(repr=False, compare=False)

    @cached_property
    def terms(self) -> Mapping[str, Values]:
        """The terms by name, in the paper's order. Their sum is the total."""
        return self.compute_terms()

    @cached_property
    def eta(self) -> Values:
        """The learning rate of one local step."""
        return unwrap_values(np.asarray(self.eta_tilde) / self.step_ratio)


@dataclass(frozen=True)
class Rate:
    """An order of convergence: its terms with unit constants, in the paper's order."""

    name: str
    case: str
    statement: str
    measure: str
    total: Values
    terms: Mapping[str, Values]
    decay: Mapping[str, str]  # how each term decreases with R: one of DECAYS

    @property
    def largest(self) -> Labels:
        """The name of the largest term, or "none" where all terms are zero."""
        return unwrap_labels(self._find_largest(tuple(self.terms)))

    @property
    def dominant(self) -> Labels:
        """The name of the term that remains for large R.

        It is the nonzero term with the slowest decay, and the largest one of several with that decay.
        """
        result = np.full(np.shape(self.total), "none", dtype="U20")
        for decay in reversed(DECAYS):
            names = tuple(name for name in self.terms if self.decay[name] == decay)
            largest = self._find_largest(names) if names else np.asarray("none")
            result = np.where(largest == "none", result, largest)
        # The last term, exp(-R), is positive but may underflow to zero.
        return unwrap_labels(np.where(result == "none", list(self.terms)[-1], result))

    def _find_largest(self, names: tuple[str, ...]) -> Strings:
        values = np.stack([np.asarray(self.terms[name]) for name in names])
        largest: Strings = np.asarray(names)[np.argmax(values, axis=0)]
        return np.where(np.any(values > 0, axis=0), largest, "none")


@dataclass(frozen=True)
class StepSize:
    """The step that a rule chooses, and the bound at this step.

    `explicit` (the bound that the tuning lemma states) and `tau` are None if the rule does not define them.
    """

    rule: str
    bound: Bound
    explicit: Values | None
    tau: Values | None
    low: Values
    high: Values
    applicable: Truth
    branch_codes: Codes = field(repr=False)  # indices into BRANCHES

    @property
    def eta_tilde(self) -> Values:
        """The effective learning rate that the rule chooses."""
        return self.bound.eta_tilde

    @property
    def eta(self) -> Values:
        """The learning rate of one local step."""
        return self.bound.eta

    @cached_property
    def branch(self) -> Labels:
        """The part of the rule that determines the step: one of BRANCHES."""
        return unwrap_labels(np.asarray(BRANCHES)[self.branch_codes])


@dataclass(frozen=True)
class Side:
    """One algorithm in a comparison. `why_not` gives the reason where there is no bound."""

    algorithm: str
    rounds: Values
    bound: Bound | None
    step: StepSize | None
    why_not: str = ""
    compute_rate: Callable[[], Rate | None] = field(default=lambda: None, repr=False, compare=False)

    @cached_property
    def rate(self) -> Rate | None:
        """The order of convergence, if the paper states one."""
        return self.compute_rate()


@dataclass(frozen=True)
class Comparison:
    """SSL and FedAvg side by side: at equal rounds with all clients, and at equal compute if S is given."""

    case: str
    constants: str
    equal_rounds: Mapping[str, Side]
    equal_compute: Mapping[str, Side]
    conditions: tuple[Condition, ...]
    notes: tuple[str, ...]
    winner_codes: Mapping[str, Codes] = field(repr=False)  # indices into WINNERS
    compute_useful_K: Callable[[], Mapping[str, Values]] = field(repr=False, compare=False)

    @cached_property
    def smaller(self) -> Mapping[str, Labels]:
        """The algorithm with the smaller bound, or "none" where one of the bounds does not apply."""
        return {label: unwrap_labels(np.asarray(WINNERS)[codes]) for label, codes in self.winner_codes.items()}

    @cached_property
    def useful_K(self) -> Mapping[str, Values]:
        """The K above which more local steps no longer help, by order and at the step of each bound."""
        return self.compute_useful_K()
