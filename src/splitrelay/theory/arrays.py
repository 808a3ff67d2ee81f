"""Numbers for one setting, arrays for many: the types, and the way back from an array of one to a number."""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Strings = npt.NDArray[np.str_]
Values = float | Array  # what callers give and get
Truth = bool | Bools
Words = str | Strings


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
