"""Numbers for one setting, arrays for many: the types, and the way back from an array of one to a number."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Strings = npt.NDArray[np.str_]
Codes = npt.NDArray[np.int8]  # of words, by their place in a list: a byte each
Values = float | Array  # what callers give and get
Truth = bool | Bools
Words = str | Strings

PIECE = 16384  # settings: the temporaries of a formula stay in the cache
THREADED = 8 * PIECE  # from so many for each core on, threads are worth their while
CORES = os.cpu_count() or 1


def plain(array: npt.ArrayLike) -> Values:
    """A number where there is one setting, the array where there are many."""
    return cast(Values, _scalar_or_array(array))


def truth(array: npt.ArrayLike) -> Truth:
    """A bool where there is one setting, the array where there are many."""
    return cast(Truth, _scalar_or_array(array))


def words(array: npt.ArrayLike) -> Words:
    """A word where there is one setting, the array where there are many."""
    return cast(Words, _scalar_or_array(array))


def _scalar_or_array(array: npt.ArrayLike) -> object:
    found = np.asarray(array)
    return found.item() if found.ndim == 0 else found


def in_pieces(work: Callable[..., Sequence[Any]], given: Sequence[Array], kinds: Sequence[type]) -> Sequence[Any]:
    """What `work` makes of the arrays, broadcast together: piece by piece, since memory is slower than arithmetic."""
    inputs = np.broadcast_arrays(*given)
    outputs: list[Any] = [np.empty(inputs[0].shape, kind) for kind in kinds]
    if inputs[0].size < 2 * THREADED or inputs[0].shape[0] < 2:
        _work_through(work, inputs, outputs)
        return outputs
    held = np.geterr()  # each thread has settings of its own

    def share(rows: slice) -> None:
        with np.errstate(**held):
            _work_through(work, [array[rows] for array in inputs], [array[rows] for array in outputs])

    ends = np.linspace(0, len(inputs[0]), CORES + 1).astype(int).tolist()
    with ThreadPoolExecutor(CORES) as threads:
        list(threads.map(share, map(slice, ends, ends[1:])))
    return outputs


def _work_through(work: Callable[..., Sequence[Any]], inputs: Sequence[Array], outputs: Sequence[Any]) -> None:
    flags: Any = [["readonly"]] * len(inputs) + [["writeonly"]] * len(outputs)
    operands: Any = [*inputs, *outputs]
    with np.nditer(
        operands, flags=["external_loop", "buffered", "zerosize_ok"], op_flags=flags, buffersize=PIECE
    ) as pieces:
        for piece in pieces:
            for out, found in zip(piece[len(inputs) :], work(*piece[: len(inputs)]), strict=True):
                out[...] = found
