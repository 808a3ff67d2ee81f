"""Load samples of the user that are not images: tables, arrays, tensors, data frames, and data sets of other libraries.

The test set is given, or held out from the training set by a rule without randomness: the rows are sorted by client
and class (their order is kept otherwise), and every fifth of them goes into the test set, or as many as the share
says. The result is the same on every machine and for every seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np
import numpy.typing as npt

from splitrelay.data.images import DataSet
from splitrelay.data.samples import (
    TARGETS,
    Array,
    SampleSet,
    Target,
    check_finite,
    check_has_positions,
    encode_classes,
    format_names,
    sort_names,
    store_features,
    to_array,
)
from splitrelay.data.tables import (
    MISSING,
    Missing,
    Table,
    TableTransform,
    drop_incomplete_rows,
    fit_transform,
    is_table,
    read_table,
)
from splitrelay.errors import InputError, OutOfRange, UnknownName

CLIENT = "clients"  # the name of the client column if the clients are given separately
SHARE = 0.2  # of the samples that are held out if no test set is given
NPZ = "arrays x (or x1, x2, ...) and y"


@dataclass(frozen=True)
class TableFormat:
    """How the columns of a table are used.

    Attributes:
        label: The columns of the targets: one, or several for real numbers and for several labels.
        client: The column that names the client of each row.
        categorical: The columns whose values are names.
        ignore: The columns that are left out.
        missing: "refuse", "mean", "median" or "drop"; see tables.fit_transform.
        standardize: Whether numbers are standardized.
        target: The kind of the targets.
    """

    label: tuple[str, ...]
    client: str | None = None
    categorical: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    missing: Missing = "refuse"
    standardize: bool = True
    target: Target = "classes"

    def __post_init__(self) -> None:
        if self.missing not in MISSING:
            raise UnknownName("way to treat missing values", self.missing, MISSING)
        if self.target not in TARGETS:
            raise UnknownName("kind of targets", self.target, TARGETS)
        if self.target == "tokens":
            raise InputError("a table has no columns of token sequences", hint="Save them as arrays: x and y in .npz.")
        if not self.label or (self.target == "classes" and len(self.label) > 1):
            limit = "one column" if self.target == "classes" else "at least one column"
            hint = "Several columns of 0 and 1 are target=multi-label, several numbers target=real."
            raise InputError("the label of a table is not given", value=", ".join(self.label), limit=limit, hint=hint)

    def list_features(self, table: Table) -> list[str]:
        """Return the columns that become features. Raise UnknownName if a column of the format does not exist."""
        special = (*self.label, *((self.client,) if self.client else ()), *self.ignore)
        for name in (*special, *self.categorical):
            table.get(name)
        both = sorted(set(special) & set(self.categorical))
        if both:
            raise InputError("a categorical column must be a feature", value=", ".join(both))
        features = [name for name in table.columns if name not in special]
        if not features:
            raise InputError(f"{table.of} has no columns of features", value=", ".join(table.columns))
        return features


def load_table(
    source: Any,
    form: TableFormat,
    *,
    test: Any = SHARE,
    classes: tuple[str, ...] | None = None,
    name: str | None = None,
) -> DataSet:
    """Load a table with one sample per row.

    Args:
        source: A CSV or Parquet file, a data frame, or a mapping of names to columns.
        form: How the columns are used.
        test: A second table, or the share of rows that is held out.
        classes: The names of the classes in order. The default is all labels of the training rows, sorted.
        name: The name of the data set. The default is the path.

    Raises:
        InputError: A column is unknown, has missing values or is no column of numbers; a label is not a class.
    """
    train_table, test_table = split_table(source, form, test)
    features = form.list_features(train_table)
    options = {"categorical": form.categorical, "missing": form.missing, "standardize": form.standardize}
    transform = fit_transform(train_table, features, **options)  # type: ignore[arg-type]
    train = build_rows(train_table, form, transform, classes, has_clients=True)
    held_out = build_rows(test_table, form, transform, train.classes if form.target == "classes" else None)
    return DataSet(name or str(source if isinstance(source, str | Path) else "table"), train, held_out)


def split_table(source: Any, form: TableFormat, test: Any = SHARE) -> tuple[Table, Table]:
    """Return the training rows and the test rows of a table, as they are in the source.

    Args:
        source: A CSV or Parquet file, a data frame, or a mapping of names to columns.
        form: How the columns are used. With missing="drop", incomplete rows are left out.
        test: A second table, or the share of rows that is held out.
    """
    table = read_table(source)
    features = form.list_features(table)
    if form.missing == "drop":
        table = drop_incomplete_rows(table, features, form.categorical)
    if is_share(test):
        clients = None if form.client is None else read_clients(table, form.client)
        strata = _convert_to_names(table.get(form.label[0])) if form.target == "classes" else None
        held = hold_out(len(table), test, strata, clients, table.of)
        return table.take(~held), table.take(held)
    test_table = read_table(test, None if isinstance(test, str | Path) else "the test set")
    if form.missing == "drop":
        test_table = drop_incomplete_rows(test_table, features, form.categorical)
    return table, test_table


def build_rows(
    table: Table,
    form: TableFormat,
    transform: TableTransform,
    classes: tuple[str, ...] | None = None,
    *,
    has_clients: bool = False,
) -> SampleSet:
    """Return the rows of a table as samples, with a transform that was fitted before."""
    x = transform.apply(table)
    y, names = read_targets(table, form, classes)
    clients = read_clients(table, form.client) if has_clients and form.client is not None else None
    return SampleSet(x, y, form.target, names, 0, transform.features, form.label, transform, clients)


def read_targets(table: Table, form: TableFormat, classes: tuple[str, ...] | None) -> tuple[Array, tuple[str, ...]]:
    """Return the targets of a table, and the names of the classes (empty for other targets)."""
    if form.target == "classes":
        of = f"{table.of}, column {form.label[0]}"
        names, (y,) = encode_classes([_convert_to_names(table.get(form.label[0]))], of, classes)
        return y, names
    columns = [table.read_numbers(name) for name in form.label]
    for name, column in zip(form.label, columns, strict=True):
        if np.isnan(column).any():
            row = int(np.argmax(np.isnan(column))) + 1
            hint = "Remove the rows without a label."
            raise InputError(f"a label of {table.of}, column {name}, is missing", value=f"row {row}", hint=hint)
    y = np.stack(columns, axis=1).astype(np.float32)
    return (y[:, 0] if form.target == "real" and len(columns) == 1 else y), ()


def read_clients(table: Table, column: str) -> npt.NDArray[np.str_]:
    """Return the name of the client of each row. Raise InputError if one is missing."""
    names = _convert_to_names(table.get(column))
    if (names == "").any():
        value = f"row {int(np.argmax(names == '')) + 1}"
        hint = "Name a client in every row."
        raise InputError(f"the column {column} of {table.of} names no client", value=value, hint=hint)
    return names


def load_samples(
    x: Any,
    y: Any = None,
    *,
    test: Any = SHARE,
    target: Target | None = None,
    classes: Sequence[str] | None = None,
    outputs: int = 0,
    clients: Any = None,
    name: str = "samples",
) -> DataSet:
    """Load arrays or tensors of any shape, or a data set of torch.

    Args:
        x: The features: one array (N, ...), a tuple of arrays for several inputs, an .npz file, or a map-style data set
            of torch whose samples are pairs (features, target).
        y: The targets; None if x contains them.
        test: A pair (x, y), a second file or data set, or the share of samples that is held out.
        target: The kind of the targets. Without it, integers and text are classes, and real numbers are real numbers.
        classes: The names of the classes. Without it, they are the sorted labels of the training set.
        outputs: The size of the vocabulary of tokens. Without it, it is the largest token plus one.
        clients: The name of the client of each sample.
        name: The name of the data set.

    Raises:
        InputError: The arrays do not match, have NaN, or have a type that is not supported.

    Example:
        >>> data = load_samples(np.eye(10), np.arange(10) % 2, test=0.2)
        >>> len(data.train), len(data.test), data.train.classes
        (8, 2, ('0', '1'))
    """
    arrays, labels, own_test = read_pair(x, y)
    labels = to_array(labels)
    kind = target or _find_target(labels)
    of = name if not isinstance(x, str | Path) else str(x)
    _check_lengths(arrays, labels, of)
    owners = None if clients is None else format_names(np.atleast_1d(to_array(clients)))
    if owners is not None and (len(owners) != len(labels) or (owners == "").any()):
        what, value = "clients must name one client for each sample", f"{len(owners)} names"
        if len(owners) == len(labels):
            value = f"{int((owners == '').sum())} without a name, the first for sample {np.argmax(owners == '')}"
        raise InputError(what, value=value, limit=f"{len(labels)} names")
    if own_test is not None and is_share(test):
        test = own_test
    for array in arrays:  # before the split, so that the error names the sample of the user
        if array.dtype.kind == "f":
            check_finite(array, f"the features of {of}")
    if is_share(test):
        strata = format_names(labels) if kind == "classes" else None
        held = hold_out(len(labels), test, strata, owners, of)
        arrays_test, labels_test = tuple(array[held] for array in arrays), labels[held]
        arrays, labels = tuple(array[~held] for array in arrays), labels[~held]
        owners = None if owners is None else owners[~held]
    else:
        if isinstance(test, tuple) and len(test) != 2:
            raise InputError("the test set must be a pair (x, y)", value=f"{len(test)} parts")
        arrays_test, labels_test = read_pair(*test)[:2] if isinstance(test, tuple) else read_pair(test, None)[:2]
        labels_test = to_array(labels_test)
        _check_lengths(arrays_test, labels_test, f"{of}, test set")
    known, (train_y, test_y) = store_targets(labels, labels_test, kind, of, classes)
    if kind == "tokens" and not outputs:
        outputs = 1 + max(int(train_y.max(initial=0)), int(test_y.max(initial=0)))
    several = len(arrays) > 1
    parts = []
    for features, targets, who in ((arrays, train_y, owners), (arrays_test, test_y, None)):
        stored = tuple(store_features(array, f"the features of {of}") for array in features)
        parts.append(SampleSet(stored if several else stored[0], targets, kind, known, outputs, clients=who))
    if parts[0].inputs != parts[1].inputs:
        value = f"{', '.join(map(str, parts[0].inputs))} and {', '.join(map(str, parts[1].inputs))}"
        raise InputError("training and test samples differ in shape or type", value=value)
    return DataSet(of, parts[0], parts[1])


def is_share(test: Any) -> bool:
    """Return whether a test set is given as a share, as a number or as text, instead of as data."""
    if isinstance(test, str):
        try:
            float(test)
        except ValueError:
            return False
        return True
    return isinstance(test, int | float | Fraction)


def hold_out(
    n: int, share: Any, strata: Array | None, clients: npt.NDArray[np.str_] | None, of: str
) -> npt.NDArray[np.bool_]:
    """Return which of n samples go into the test set, evenly over clients and strata. Nothing is drawn."""
    part = Fraction(str(share))
    if not 0 < part < 1:
        raise OutOfRange("the share of the test set", value=str(share), limit="0 < test < 1")
    keys = [key for key in (strata, clients) if key is not None]  # the last key sorts first
    order = np.lexsort([np.unique(key, return_inverse=True)[1].reshape(-1) for key in keys]) if keys else np.arange(n)
    is_held = np.array([math.floor((i + 1) * part) > math.floor(i * part) for i in range(n)], dtype=bool)
    held = np.zeros(n, dtype=bool)
    held[order[is_held]] = True
    if not held.any() or held.all():
        hint = "Give a test set, or another share: test=0.2"
        raise InputError(f"{of} is too small to hold out a test set", value=f"{n} samples", hint=hint)
    return held


def get_client_positions(samples: SampleSet) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    """Return the sorted names of the clients, and for each sample the position of its client in them.

    Raises:
        InputError: The samples name no clients.
    """
    if samples.clients is None:
        raise InputError("the data name no client for their samples", hint="Name a column: client=NAME")
    names, where = np.unique(samples.clients, return_inverse=True)
    ordered = sort_names(set(names.tolist()))
    position = np.array([ordered.index(name) for name in names.tolist()], dtype=np.int64)
    return tuple(ordered), position[where.reshape(-1)]


def _convert_to_names(column: Array) -> npt.NDArray[np.str_]:
    return format_names(column)


def _find_target(y: Array) -> Target:
    if y.ndim == 1 and y.dtype.kind in "iubUSO":
        return "classes"
    if y.dtype.kind == "f":
        return "real"
    hint = "target=multi-label or target=tokens"
    raise InputError("the kind of these targets must be declared", value=f"{y.dtype} {y.shape}", hint=hint)


def store_targets(
    train: Array, test: Array, kind: Target, of: str, classes: Sequence[str] | None
) -> tuple[tuple[str, ...], list[Array]]:
    """Return the names of the classes, and the targets of both parts in the form in which they are stored."""
    if kind == "classes":
        # Truth values become integers, so that the classes are 0 and 1.
        simple = [part.astype(np.int64) if part.dtype.kind == "b" else part for part in (train, test)]
        names, labels = encode_classes(simple, of, None if classes is None else tuple(map(str, classes)))
        return names, list(labels)
    if kind not in TARGETS:
        raise UnknownName("kind of targets", kind, TARGETS)
    dtype: Any = np.int64 if kind == "tokens" else np.float32
    for part in (train, test):
        if part.dtype.kind not in "fiub" or (kind == "tokens" and part.dtype.kind not in "iu"):
            raise InputError(
                f"targets of the kind {kind} must be numbers", value=part.dtype, limit=np.dtype(dtype).name
            )
    return (), [np.ascontiguousarray(part.astype(dtype)) for part in (train, test)]


def _check_lengths(arrays: tuple[Array, ...], y: Array, of: str) -> None:
    lengths = [len(array) if array.ndim else 0 for array in (*arrays, y)]
    if len(set(lengths)) > 1 or not lengths[0]:
        value = ", ".join(str(tuple(array.shape)) for array in (*arrays, y))
        raise InputError(f"features and targets of {of} do not match", value=value, limit="N samples each, N >= 1")


def read_pair(x: Any, y: Any) -> tuple[tuple[Array, ...], Any, Any]:
    """Read arrays, a file or a data set. Return the arrays of all inputs, the targets, and a test pair or None."""
    if isinstance(x, str | Path):
        return _read_npz(Path(x).expanduser())
    for each in (*(x if isinstance(x, tuple) else (x,)), *(() if y is None else (y,))):
        check_has_positions(each)
    if y is None and hasattr(x, "tensors"):  # a TensorDataset of torch
        *features, y = x.tensors
        return tuple(map(to_array, features)), y, None
    if y is None and isinstance(x, np.ndarray):
        raise InputError("the samples have no targets", value=f"an array {x.shape}", hint="Give x and y.")
    if y is None and hasattr(x, "__getitem__") and hasattr(x, "__len__") and not isinstance(x, list | tuple):
        return (*_stack_samples(x), None)
    if y is None:
        raise InputError("the samples have no targets", value=type(x).__name__, hint="Give x and y.")
    return tuple(map(to_array, x)) if isinstance(x, tuple) else (to_array(x),), y, None


def _stack_samples(source: Any) -> tuple[tuple[Array, ...], Array]:
    """Read every sample of a map-style data set once, and stack them."""
    samples = [source[i] for i in range(len(source))]
    is_pair = samples and all(isinstance(sample, tuple | list) and len(sample) >= 2 for sample in samples)
    if not is_pair:
        value = type(samples[0]).__name__ if samples else "no samples"
        hint = "Return (x, y), or ((x1, x2), y) for a model with several inputs."
        raise InputError(f"{type(source).__name__} must return pairs (features, target)", value=value, hint=hint)
    columns = [[to_array(value) for value in column] for column in zip(*map(_flatten, samples), strict=True)]
    for column in columns:
        shapes = {value.shape for value in column}
        if len(shapes) > 1:
            hint = "Bring all samples to one shape, for example by padding."
            raise InputError(f"samples of {type(source).__name__} differ in shape", value=sorted(shapes)[:3], hint=hint)
    *features, y = [np.stack(column) for column in columns]
    return tuple(features), y


def _flatten(sample: Sequence[Any]) -> list[Any]:
    """Return ((a, b), y) and (a, b, y) as a, b, y."""
    *features, y = sample
    if len(features) == 1 and isinstance(features[0], tuple | list):
        features = list(features[0])
    return [*features, y]


def _read_npz(path: Path) -> tuple[tuple[Array, ...], Array, Any]:
    if not path.exists():
        raise InputError(f"there is no file {path}", limit="a file .npz, .csv or .parquet", hint="Check the path.")
    if not path.is_file() or not is_zipfile(path):
        raise InputError(f"{path} is not an npz file", limit=NPZ, hint="Write it with numpy.savez: x and y.")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name.lower(): archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"{path} cannot be read as arrays of numbers ({' '.join(str(error).split())[:100]})") from None
    suffix = "_train" if "y_train" in arrays else ""
    features, y = _pick(arrays, suffix), arrays.get(f"y{suffix}")
    if not features or y is None:
        raise InputError(f"{path} lacks arrays", value=", ".join(sorted(arrays)), limit=NPZ)
    test_features, test_y = _pick(arrays, "_test"), arrays.get("y_test")
    return features, y, (test_features, test_y) if test_features and test_y is not None else None


def _pick(arrays: Mapping[str, Array], suffix: str) -> tuple[Array, ...]:
    """Return the array x, or all arrays x1, x2, ... in order."""
    if f"x{suffix}" in arrays:
        return (arrays[f"x{suffix}"],)
    found: list[Array] = []
    while f"x{len(found) + 1}{suffix}" in arrays:
        found.append(arrays[f"x{len(found) + 1}{suffix}"])
    return tuple(found)


def load_hugging_face(
    source: Any,
    label: str,
    *,
    inputs: Sequence[str] = (),
    test: Any = SHARE,
    target: Target | None = None,
    client: Any = None,
    outputs: int = 0,
    name: str = "data set",
    **options: Any,
) -> DataSet:
    """Load a data set of Hugging Face: a table if its columns have one value per row, else one input per column.

    Args:
        source: An object of `datasets.Dataset`.
        label: The column of the targets.
        inputs: The columns of the features. The default is all others.
        test: A second data set, or the share of rows that is held out.
        target: The kind of the targets; see load_samples.
        client: The column that names the client of each row, or the client of each row.
        outputs: The size of the vocabulary of tokens.
        name: The name of the data set.
        options: Further fields of `TableFormat`, for a table.
    """
    columns = _read_columns(source)
    if client is not None and not isinstance(client, str):
        columns[CLIENT] = to_array(client)
        client = CLIENT
    for column in (label, *inputs, *((client,) if client else ())):
        if column not in columns:
            raise UnknownName("column", column, columns)
    chosen = tuple(inputs) or tuple(one for one in columns if one not in (label, client))
    names = getattr(getattr(source, "features", {}).get(label), "names", None)
    if all(columns[one].ndim == 1 for one in chosen):
        kind = target or _find_target(columns[label])
        form = TableFormat((label,), client, target=kind, **options)
        keep = (*chosen, label, *((client,) if client else ()))
        table = {one: columns[one] for one in keep}
        second = test if is_share(test) else _read_columns(test)
        data = load_table(table, form, test=second, name=name)
        if names is None or kind != "classes":
            return data
        return _rename_classes(data, tuple(map(str, names)))
    if options:
        what = f"{next(iter(options))} has an effect only on a table"
        hint = "The columns of this data set are arrays. Choose columns before."
        raise InputError(what, value=", ".join(one for one in chosen if columns[one].ndim > 1), hint=hint)
    pair = None if is_share(test) else _read_columns(test)
    second = test if pair is None else (tuple(pair[one] for one in chosen), pair[label])
    return load_samples(
        tuple(columns[one] for one in chosen),
        columns[label],
        test=second,
        target=target,
        classes=names,
        outputs=outputs,
        clients=columns[client] if client else None,
        name=name,
    )


def is_hugging_face(source: Any) -> bool:
    """Return whether a source is a data set of Hugging Face. It is recognized by its methods."""
    return all(hasattr(source, name) for name in ("column_names", "features", "with_format"))


def _read_columns(source: Any) -> dict[str, Array]:
    check_has_positions(source)
    plain = source.with_format("numpy")
    return {name: _stack_column(plain[name][:], name) for name in source.column_names}


def _stack_column(values: Any, name: str) -> Array:
    array = np.asarray(values)
    if array.dtype.kind != "O":
        return array
    try:
        return np.stack([np.asarray(value) for value in array.tolist()])
    except ValueError:
        hint = "Bring all samples to one length, for example by padding."
        raise InputError(f"the rows of column {name} differ in length", hint=hint) from None


def _rename_classes(data: DataSet, names: tuple[str, ...]) -> DataSet:
    """Replace the numbers of classes by their names, if all numbers are positions in the names."""
    parts = []
    for part in (data.train, data.test):
        assert isinstance(part, SampleSet)
        positions = np.array([int(name) for name in part.classes], dtype=np.int64)
        parts.append(replace(part, y=positions[part.y], classes=names, outputs=0))
    return DataSet(data.name, parts[0], parts[1])


def load_any(source: Any, y: Any = None, **options: Any) -> DataSet:
    """Load samples from any source that is known: a table, arrays, or a data set of torch or Hugging Face.

    Args:
        source: A data frame, a mapping of columns, a CSV or Parquet file, arrays, tensors, or a data set.
        y: The targets, or the name of the label column of a table.
        options: Options of load_table with the fields of TableFormat, of load_samples, or of load_hugging_face.
    """
    is_path = isinstance(source, str | Path) and str(source).endswith((".csv", ".csv.gz", ".parquet"))
    if is_hugging_face(source):
        return load_hugging_face(source, y if y is not None else options.pop("label"), **options)
    if not (is_path or is_table(source)):
        return load_samples(source, y, **options)
    label = options.pop("label", None) or (y if isinstance(y, str) else None)
    test, name, classes = options.pop("test", SHARE), options.pop("name", None), options.pop("classes", None)
    if label is None and y is not None and not is_path:  # targets beside a data frame
        table = dict(read_table(source).columns)
        label = "target" if "target" not in table else "the target"
        source = {**table, label: _get_target_column(y)}
        if not is_share(test) and isinstance(test, tuple):
            test = {**read_table(test[0], "the test set").columns, label: _get_target_column(test[1])}
        kind = options.pop("target", None) or _find_target(to_array(y))
        options["target"] = kind
    labels = () if label is None else (label,) if isinstance(label, str) else tuple(label)
    tuples: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    form = TableFormat(labels, **tuples)
    return load_table(source, form, test=test, name=name, classes=None if classes is None else tuple(classes))


def _get_target_column(y: Any) -> Array:
    column = to_array(y)
    if column.ndim != 1:
        hint = "Put the columns into the table, and name them with label."
        raise InputError("the targets beside a table must be one column", value=column.shape, hint=hint)
    return column
