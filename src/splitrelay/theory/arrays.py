"""Numbers for one setting, arrays for many: the types, and the way back from an array of one to a number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    operands: Any = [*given, *(None for _ in kinds)]
    flags: Any = [["readonly"]] * len(given) + [["writeonly", "allocate"]] * len(kinds)
    with np.nditer(
        operands,
        flags=["external_loop", "buffered", "zerosize_ok"],
        op_flags=flags,
        op_dtypes=[*(array.dtype for array in given), *kinds],
        buffersize=PIECE,
    ) as pieces:
        for piece in pieces:
            for out, found in zip(piece[len(given) :], work(*piece[: len(given)]), strict=True):
                out[...] = found
        return pieces.operands[len(given) :]
