"""Sets of samples: arrays of any shape and type, with classes, real numbers, several labels or tokens as targets.

Images of bytes are `ImageSet` (data/images.py). Everything else is a `SampleSet`: rows of a table, signals, tokens.

Numbers are stored in one form, so that every host computes with the same bits: real numbers as float32, integers as
int64, bytes and truth values as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from splitrelay.errors import InputError, OutOfRange
from splitrelay.tensor_types import TensorType

if TYPE_CHECKING:
    from splitrelay.data.tables import TableTransform

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.integer]
Target = Literal["classes", "real", "multi-label", "tokens"]
TARGETS: tuple[Target, ...] = ("classes", "real", "multi-label", "tokens")
NO_TOKEN = -100  # the label of a position that does not count; torch uses the same number
LABEL_FORMS = {
    "classes": "int64 (N,)",
    "real": "float32 (N,) or (N, k)",
    "multi-label": "float32 (N, k)",
    "tokens": "int64 (N, T)",
}


@dataclass(frozen=True, eq=False)
class SampleSet:
    """N samples with their targets.

    Attributes:
        x: One array (N, ...), or a tuple of arrays if the model has several inputs.
        y: The targets: int64 (N,) for classes, float32 (N,) or (N, k) for real numbers, float32 (N, k) of 0 and 1 for
            several labels, int64 (N, T) for tokens.
        target: The kind of the targets.
        classes: The names of the classes; empty for other targets.
        outputs: The number of outputs of a model: classes, real numbers, labels, or the size of the vocabulary.
        columns: The names of the features, if they come from a table.
        labels: The names of the label columns, if they come from a table.
        transform: The fitted transform that made x from a table.
        clients: The name of the client of each sample, if the data say it.

    Example:
        >>> rows = SampleSet(np.zeros((4, 3), np.float32), np.array([0, 1, 1, 0]), "classes", ("no", "yes"))
        >>> len(rows), rows.outputs, str(rows.inputs[0])
        (4, 2, 'float32 (3,)')
    """

    x: Array | tuple[Array, ...]
    y: Array
    target: Target
    classes: tuple[str, ...] = ()
    outputs: int = 0  # 0 means that it follows from classes and y
    columns: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    transform: TableTransform | None = None
    clients: npt.NDArray[np.str_] | None = None

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise InputError("this kind of targets is not known", value=self.target, limit=", ".join(TARGETS))
        for array in self.arrays:
            _check_features(array, len(self.y))
        _check_targets(self.y, self.target, self.classes)
        outputs = self.outputs or _count_outputs(self.y, self.target, self.classes)
        object.__setattr__(self, "outputs", outputs)
        if self.target == "tokens" and len(self.y) and int(self.y.max()) >= outputs:
            raise OutOfRange("tokens outside the vocabulary", value=int(self.y.max()), limit=f"token < {outputs}")

    def __len__(self) -> int:
        return len(self.y)

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays of all inputs."""
        return self.x if isinstance(self.x, tuple) else (self.x,)

    @property
    def inputs(self) -> tuple[TensorType, ...]:
        """The type of each input of a model."""
        return tuple(TensorType(tuple(array.shape[1:]), str(array.dtype)) for array in self.arrays)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample of the first input."""
        return tuple(self.arrays[0].shape[1:])

    @property
    def nbytes(self) -> int:
        """The size in memory in bytes."""
        return sum(array.nbytes for array in self.arrays) + self.y.nbytes

    def part(self, indices: Indices) -> SampleSet:
        """Return a copy of these samples as a new set."""
        parts = tuple(array.take(indices, axis=0) for array in self.arrays)
        clients = None if self.clients is None else self.clients.take(indices)
        x = parts if isinstance(self.x, tuple) else parts[0]
        return replace(self, x=x, y=self.y.take(indices, axis=0), clients=clients)


def store_features(x: Any, of: str) -> Array:
    """Return features in the form in which they are stored: float32, int64, uint8 or bool.

    Raises:
        InputError: They are no numbers, or some are NaN or infinite.
    """
    array = to_array(x)
    kind = array.dtype.kind
    if kind not in "fiub":
        hint = "Turn text into numbers, or give a table and declare its categorical columns."
        raise InputError(f"{of} are no numbers", value=array.dtype, limit="an array of numbers", hint=hint)
    if kind == "f":
        check_finite(array, of)
        with np.errstate(over="ignore"):
            stored = array.astype(np.float32)
        check_finite(stored, f"{of} as float32")
    elif array.dtype in (np.uint8, np.bool_):
        stored = array
    else:
        stored = array.astype(np.int64)
    return np.require(stored, requirements=["C", "W"])  # torch needs writable memory


def check_finite(array: Array, of: str) -> None:
    """Raise InputError if a number is NaN or infinite. The error names the first sample."""
    bad = ~np.isfinite(array)
    if bad.any():
        first = int(np.flatnonzero(bad.reshape(len(array), -1).any(axis=1))[0])
        value = f"{int(bad.sum())} of {array.size}, the first in sample {first}"
        raise InputError(f"{of} have NaN or infinite numbers", value=value, hint="Remove or replace them first.")


def check_has_positions(x: Any) -> None:
    """Raise InputError for data whose samples cannot be read by position, such as a generator or a DataLoader."""
    hint = None
    if hasattr(x, "toarray"):  # a sparse matrix
        hint = "Give X.toarray()."
    elif hasattr(x, "dataset") and hasattr(x, "batch_size"):
        hint = "Give its data set: loader.dataset."
    elif not hasattr(x, "__len__") or not hasattr(x, "__getitem__"):
        hint = "Give arrays, or a data set with a length and an item for each position."
    if hint is not None:
        raise InputError("samples must be arrays, or have positions", value=type(x).__name__, hint=hint)


def to_array(x: Any) -> Array:
    """Return an array, also of a torch tensor or a pandas column, which are recognized by their methods."""
    if hasattr(x, "detach"):
        x = x.detach().cpu()
        x = x.float() if str(x.dtype) == "torch.bfloat16" else x  # numpy has no such type
    return np.asarray(x.to_numpy() if hasattr(x, "to_numpy") else x)


def encode_classes(
    parts: Sequence[Array], of: str, classes: tuple[str, ...] | None = None
) -> tuple[tuple[str, ...], list[npt.NDArray[np.int64]]]:
    """Return the names of the classes, and the labels of each part as positions in them.

    Args:
        parts: Labels as integers, truth values or text. The first part defines the classes.
        of: The name of the data, for errors.
        classes: The names of the classes if they are known. Integers are then positions, and text is a name.

    Raises:
        InputError: A label is missing or is not one of the classes.
    """
    texts = [_format_labels(part, of) for part in parts]
    if classes is not None:
        known = {name: n for n, name in enumerate(classes)}
        if all(part.dtype.kind in "iu" for part in parts):
            known = {str(n): n for n in range(len(classes))}
    else:
        known = {name: n for n, name in enumerate(sort_names(set(texts[0].tolist())))}
    labels = []
    for text in texts:
        names, positions = np.unique(text, return_inverse=True)
        unknown = [name for name in names.tolist() if name not in known]
        if unknown:
            limit = f"one of {', '.join(list(known)[:20])}"
            raise InputError(f"labels of {of} are not among the classes", value=", ".join(unknown[:5]), limit=limit)
        numbers = np.array([known[name] for name in names.tolist()], dtype=np.int64)
        labels.append(numbers[positions.reshape(-1)])
    return tuple(known) if classes is None else classes, labels


def sort_names(names: set[str]) -> list[str]:
    """Sort names as numbers if all of them are whole numbers, else as text."""
    is_number = all(name.lstrip("-").isdecimal() for name in names)
    return sorted(names, key=int) if is_number else sorted(names)


def format_names(values: Array) -> npt.NDArray[np.str_]:
    """Return each value as text. A float that is a whole number is written without a fraction, NaN as no text."""
    if values.dtype.kind == "f":
        numbers, which = np.unique(values, return_inverse=True)
        texts = ["" if np.isnan(v) else str(int(v)) if v == int(v) else repr(float(v)) for v in numbers.tolist()]
        return np.array(texts or [""], dtype=np.str_)[which.reshape(-1)] if len(values) else np.array([], np.str_)
    return np.array(["" if is_missing_value(value) else str(value).strip() for value in values.tolist()], dtype=np.str_)


def is_missing_value(value: Any) -> bool:
    """Return whether a value is None, NaN, or a missing value of pandas."""
    return value is None or value != value or type(value).__name__ in ("NAType", "NaTType")


def _format_labels(y: Array, of: str) -> npt.NDArray[np.str_]:
    if y.ndim != 1:
        raise InputError(f"the classes of {of} must be one column", value=y.shape, limit="(N,)")
    texts = format_names(y)
    if len(texts) and (texts == "").any():
        row = int(np.flatnonzero(texts == "")[0])
        what = f"a label of {of} is missing"
        raise InputError(what, value=f"sample {row}", hint="Remove the samples without a label.")
    return texts


def _check_features(array: Array, n: int) -> None:
    if array.dtype not in (np.float32, np.int64, np.uint8, np.bool_):
        limit = "float32, int64, uint8 or bool"
        raise InputError("features have the wrong type", value=array.dtype, limit=limit)
    if len(array.shape) == 0 or len(array) != n:
        raise InputError("features and targets do not match", value=f"{array.shape}, {n} targets", limit="(N, ...)")
    if array.dtype.kind == "f":
        check_finite(array, "the features")


def _check_targets(y: Array, target: Target, classes: tuple[str, ...]) -> None:
    forms = {
        "classes": y.dtype == np.int64 and y.ndim == 1,
        "real": y.dtype == np.float32 and y.ndim in (1, 2),
        "multi-label": y.dtype == np.float32 and y.ndim == 2,
        "tokens": y.dtype == np.int64 and y.ndim == 2,
    }
    if not forms[target]:
        value = f"{y.dtype} {y.shape}"
        raise InputError(f"targets of the kind {target} have the wrong form", value=value, limit=LABEL_FORMS[target])
    if target == "classes" and len(y) and not 0 <= int(y.min()) <= int(y.max()) < len(classes):
        span = f"{int(y.min())} to {int(y.max())}"
        raise OutOfRange("labels outside the classes", value=span, limit=f"0 <= y < {len(classes)}")
    if target == "real":
        check_finite(y, "the targets")
    if target == "multi-label" and not np.isin(y, (0, 1)).all():
        raise InputError("several labels of a sample must be 0 or 1 each", value=sorted(set(np.unique(y)) - {0, 1})[:3])
    if target == "tokens" and len(y) and ((y < 0) & (y != NO_TOKEN)).any():
        limit = f"tokens >= 0, or {NO_TOKEN} for a position that does not count"
        raise OutOfRange("a token is negative", value=int(y[(y < 0) & (y != NO_TOKEN)][0]), limit=limit)


def _count_outputs(y: Array, target: Target, classes: tuple[str, ...]) -> int:
    if target == "classes":
        return len(classes)
    if target == "tokens":
        return int(y.max(initial=0)) + 1
    return 1 if y.ndim == 1 else int(y.shape[1])
