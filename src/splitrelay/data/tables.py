"""Tables with one sample per row: read them, and turn their columns into features with a fitted transform.

Nothing is guessed. A column of numbers becomes one feature. A column of names must be declared categorical and becomes
one feature of 0 and 1 for each category. Missing values are refused unless the user says how to replace them.

The transform is fitted on the rows of the training set only: the means, deviations, medians and categories never see a
row of the test set. It is part of the data set, is recorded with a run, and travels in the terms of a deployment, so
that every host applies the same numbers. Sums are rounded exactly (math.fsum): the transform does not depend on the
order of the rows or on the processor.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from splitrelay.atomic_files import replace_atomically
from splitrelay.data.image_files import open_parquet, open_text
from splitrelay.data.samples import Array, check_finite, format_names, is_missing_value, sort_names, to_array
from splitrelay.errors import InputError, UnknownName

Missing = Literal["refuse", "mean", "median", "drop"]
MISSING: tuple[Missing, ...] = ("refuse", "mean", "median", "drop")
NO_VALUE = ("", "na", "n/a", "nan", "null", "none")  # texts of a missing value, in lower case
NO_COLUMN = ("", "__index_level_0__")  # an index column of an exported data frame
SHOWN = 5  # columns or values that an error lists
ENDINGS = (".csv", ".csv.gz", ".parquet")


@dataclass(frozen=True, eq=False)
class Table:
    """Columns by name. A column has numbers (float64, NaN is missing) or text ("" is missing).

    Attributes:
        of: The name of the table for errors.
    """

    columns: Mapping[str, Array]
    of: str

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def get(self, name: str) -> Array:
        """Return a column. Raise UnknownName if there is none."""
        if name not in self.columns:
            raise UnknownName(f"column of {self.of}", name, self.columns)
        return self.columns[name]

    def take(self, rows: Array) -> Table:
        """Return the table with these rows only; `rows` has positions or truth values."""
        return Table({name: column[rows] for name, column in self.columns.items()}, self.of)

    def read_numbers(self, name: str) -> npt.NDArray[np.float64]:
        """Return a column as numbers, with NaN for missing values.

        Raises:
            InputError: A value is neither a number nor missing.
        """
        column = self.get(name)
        if column.dtype.kind == "f":
            return cast("npt.NDArray[np.float64]", column)
        numbers = _parse_numbers(column)
        if numbers is None:
            wrong = next(text for text in column.tolist() if _parse_number(text) is None)
            raise InputError(f"the column {name} of {self.of} has a value that is no number", value=repr(wrong))
        return numbers


@dataclass(frozen=True)
class Column:
    """How one column becomes features.

    Attributes:
        name: The name of the column.
        mean: Subtracted from a number.
        std: Divides a number.
        fill: Replaces a missing number. Without it, a missing value is refused. In a categorical column, 0 means that a
            missing name belongs to no category.
        categories: The names of a categorical column; empty for numbers.
    """

    name: str
    mean: float = 0.0
    std: float = 1.0
    fill: float | None = None
    categories: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableTransform:
    """A fitted transform from the columns of a table to features.

    Example:
        >>> table = Table({"age": np.array([20.0, 40.0]), "sex": np.array(["f", "m"])}, "wards")
        >>> transform = fit_transform(table, ["age", "sex"], categorical=["sex"])
        >>> transform.features
        ('age', 'sex=f', 'sex=m')
        >>> transform.apply(table).tolist()
        [[-1.0, 1.0, 0.0], [1.0, 0.0, 1.0]]
    """

    columns: tuple[Column, ...]

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features."""
        return tuple(name for column in self.columns for name in _list_features(column))

    def apply(self, table: Table) -> npt.NDArray[np.float32]:
        """Return the features (N, d) of a table.

        Raises:
            InputError: A column is unknown, or a value is missing, no number, or in no category.
        """
        missing = [column.name for column in self.columns if column.name not in table.columns]
        if missing:
            what = f"{table.of} lacks columns that the training set has"
            raise InputError(what, value=", ".join(missing[:SHOWN]), limit=f"{len(self.columns)} columns of features")
        names = [column.name for column in self.columns if column.categories]
        parsed = parse_columns(table, [column.name for column in self.columns], names)
        check_missing({one.name: parsed[one.name] for one in self.columns if one.fill is None}, table.of)
        parts = [_encode(column, parsed[column.name], table.of) for column in self.columns]
        return np.ascontiguousarray(np.concatenate(parts, axis=1))

    def to_json(self) -> list[dict[str, Any]]:
        """Return the transform as lists and dictionaries. `from_json` reads it. Floats keep all their digits."""
        return [asdict(column) for column in self.columns]

    @classmethod
    def from_json(cls, content: Sequence[Mapping[str, Any]]) -> TableTransform:
        """Return the transform that `to_json` wrote.

        Raises:
            InputError: The content is not that of a transform.
        """
        try:
            columns = tuple(Column(**{**one, "categories": tuple(one.get("categories", ()))}) for one in content)
        except (TypeError, AttributeError, ValueError) as error:
            raise InputError("this is not the transform of a table", value=str(error)[:100]) from None
        for column in columns:
            numbers = (column.mean, column.std, 0.0 if column.fill is None else column.fill)
            is_number = all(isinstance(value, int | float) and abs(value) <= sys.float_info.max for value in numbers)
            names = (column.name, *column.categories)
            if not is_number or column.std <= 0 or not all(isinstance(name, str) for name in names):
                raise InputError("the transform of a column has values that are not possible", value=column.name)
        if len({column.name for column in columns}) < len(columns):
            raise InputError("the transform of a table has the same column twice", value=f"{len(columns)} columns")
        return cls(columns)


def fit_transform(
    table: Table,
    features: Sequence[str],
    *,
    categorical: Sequence[str] = (),
    missing: Missing = "refuse",
    standardize: bool = True,
) -> TableTransform:
    """Fit a transform on the rows of a training set.

    Args:
        table: The rows of the training set only.
        features: The columns that become features, in this order.
        categorical: The columns among them whose values are names.
        missing: "refuse", or the number that replaces a missing number: the "mean" or "median" of its column. A missing
            name of a categorical column then belongs to no category. "drop" expects that the rows are removed already.
        standardize: Subtract the mean and divide by the standard deviation of the training rows. A constant column is
            only shifted.

    Raises:
        InputError: A column is unknown, is not of numbers, has missing values, or has only missing values.
    """
    parsed = parse_columns(table, features, categorical)
    if missing in ("refuse", "drop"):
        check_missing(parsed, table.of)
    columns = []
    for name in features:
        values = parsed[name]
        if name in categorical:
            categories = sort_names(set(values.tolist()) - {""})
            if not categories:
                raise InputError(f"the column {name} of {table.of} has no values", hint=f"Leave it out: ignore={name}")
            fill = 0.0 if missing in ("mean", "median") else None
            columns.append(Column(name, fill=fill, categories=tuple(categories)))
        else:
            columns.append(_fit_numbers(name, values, missing, standardize, table.of))
    return TableTransform(tuple(columns))


def parse_columns(table: Table, features: Sequence[str], categorical: Sequence[str]) -> dict[str, Array]:
    """Return these columns as numbers with NaN for missing values, or as names where they are categorical.

    Raises:
        InputError: A column is unknown, or is neither of numbers nor declared categorical. All such columns are named.
    """
    for name in categorical:
        table.get(name)
    parsed: dict[str, Array] = {}
    text: list[str] = []
    for name in features:
        column = table.get(name)
        if name in categorical:
            parsed[name] = _remove_missing_names(format_names(column))
        elif column.dtype.kind == "f":
            parsed[name] = column
        else:
            numbers = _parse_numbers(column)
            parsed[name] = column if numbers is None else numbers
            text += [name] if numbers is None else []
    if text:
        wrong = next(each for each in parsed[text[0]].tolist() if _parse_number(each) is None)
        names = ",".join(text[:SHOWN])
        hint = f"Declare names as categorical={names}, or leave columns out: ignore={names}"
        what = f"columns of {table.of} are not numbers: {', '.join(text[:SHOWN])}"
        raise InputError(what, value=f"{wrong!r} in {text[0]}", hint=hint)
    for name, values in parsed.items():
        if values.dtype.kind == "f" and np.isinf(values).any():
            check_finite(np.where(np.isnan(values), 0, values), f"the column {name} of {table.of}")
    return parsed


def check_missing(columns: Mapping[str, Array], of: str) -> None:
    """Raise InputError if a value is missing. The error names all columns that have missing values."""
    counts = {name: is_missing(values) for name, values in columns.items()}
    found = {name: where for name, where in counts.items() if where.any()}
    if found:
        name, where = next(iter(found.items()))
        value = f"{int(where.sum())} of {len(where)} rows of {name}, the first is row {int(np.argmax(where)) + 1}"
        what = f"values are missing (NaN) in columns of {of}: {', '.join(list(found)[:SHOWN])}"
        hint = "Say what to do: missing=mean, missing=median or missing=drop, or leave the columns out with ignore="
        raise InputError(what, value=value, hint=hint + ",".join(list(found)[:SHOWN]))


def is_missing(values: Array) -> npt.NDArray[np.bool_]:
    """Return for each value of a column whether it is missing."""
    missing: npt.NDArray[np.bool_] = np.isnan(values) if values.dtype.kind == "f" else values == ""
    return missing


def drop_incomplete_rows(table: Table, features: Sequence[str], categorical: Sequence[str]) -> Table:
    """Return the table without the rows in which a feature is missing."""
    parsed = parse_columns(table, features, categorical)
    incomplete = np.zeros(len(table), dtype=bool)
    for values in parsed.values():
        incomplete |= is_missing(values)
    if len(table) and incomplete.all():
        raise InputError(f"every row of {table.of} has a missing value", hint="Use missing=mean or missing=median.")
    return table.take(~incomplete)


def is_table(source: Any) -> bool:
    """Return whether a source is a table: a data frame of pandas, or a mapping of columns."""
    return isinstance(source, Mapping) or all(hasattr(source, name) for name in ("columns", "iloc", "dtypes"))


def read_table(source: Any, of: str | None = None) -> Table:
    """Read a table from a CSV or Parquet file, a data frame, or a mapping of names to columns.

    Args:
        source: The file, data frame or mapping.
        of: The name of the table for errors. The default is the path.
    """
    if not isinstance(source, str | Path):
        pairs = source.items() if hasattr(source, "items") else ()
        return _build_table([(str(name), _read_column(column)) for name, column in pairs], of or "the table")
    path = Path(source).expanduser()
    if not path.is_file():
        raise InputError(f"there is no file {path}", limit=" or ".join(ENDINGS))
    if path.suffix == ".parquet":
        found = open_parquet(path)
        pairs = [(name, _read_column(_convert_arrow_column(found.column(name)))) for name in found.column_names]
        return _build_table(pairs, of or str(path))
    if not path.name.endswith((".csv", ".csv.gz")):
        raise InputError(f"{path} is no table", limit=" or ".join(ENDINGS))
    return _read_csv(path, of or str(path))


def write_table(table: Table, path: Path) -> Path:
    """Write a table as a CSV file. Numbers keep all their digits; a missing number has no text."""
    columns = [
        ["" if value != value else repr(value) for value in column.tolist()] if column.dtype.kind == "f" else column
        for column in table.columns.values()
    ]
    with replace_atomically(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table.columns)
        writer.writerows(zip(*columns, strict=True))
    return path


def _read_csv(path: Path, of: str) -> Table:
    try:
        with open_text(path) as file:
            lines = [line for line in csv.reader(file) if line]
    except (ValueError, csv.Error, EOFError, OSError) as error:
        raise InputError(f"{path} is no table of text ({' '.join(str(error).split())[:140]})") from None
    if len(lines) < 2:
        raise InputError(f"{path} has no rows", limit="a line with the names of the columns, and rows")
    titles, rows = [title.strip() for title in lines[0]], lines[1:]
    for number, row in enumerate(rows, start=1):
        if len(row) != len(titles):
            value, limit = f"{len(row)} in row {number}", f"{len(titles)} values, one for each column"
            raise InputError(f"a row of {path} has the wrong number of values", value=value, limit=limit)
    columns = [np.array([value.strip() for value in column], dtype=np.str_) for column in zip(*rows, strict=True)]
    return _build_table(list(zip(titles, columns, strict=True)), of)


def _build_table(pairs: Sequence[tuple[str, Array]], of: str) -> Table:
    pairs = [(name, column) for name, column in pairs if name not in NO_COLUMN]
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"{of} has two columns of one name", value=", ".join(twice[:SHOWN]))
    if not pairs or not len(pairs[0][1]):
        raise InputError(f"{of} has no rows", limit="named columns and at least one row")
    lengths = {len(column) for _, column in pairs}
    if len(lengths) > 1:
        raise InputError(f"the columns of {of} differ in length", value=sorted(lengths))
    return Table(dict(pairs), of)


def _convert_arrow_column(column: Any) -> Array:
    """Return a column of Arrow as an array; numbers with missing values become floats with NaN."""
    values = column.to_numpy()
    return np.asarray(column.to_pylist(), dtype=object) if values.dtype.kind not in "fiub" else values


def _read_column(column: Any) -> Array:
    """Return a column as float64 or as text."""
    values = to_array(column)
    if values.ndim != 1:
        raise InputError("a column of a table must have one value per row", value=values.shape, limit="(N,)")
    if values.dtype.kind in "fiub":
        return values.astype(np.float64)
    if values.dtype.kind == "O":
        filled = [math.nan if is_missing_value(value) else value for value in values.tolist()]
        if all(isinstance(value, int | float) for value in filled):  # bool is an int, too
            return np.array(filled, dtype=np.float64)
    return _remove_missing_names(format_names(values))


def _parse_numbers(column: Array) -> npt.NDArray[np.float64] | None:
    """Return a column of text as numbers with NaN for missing values, or None if a value is no number."""
    texts, which = np.unique(column, return_inverse=True)
    numbers = [_parse_number(text) for text in texts.tolist()]
    if any(number is None for number in numbers):
        return None
    return np.array(numbers, dtype=np.float64)[which.reshape(-1)]


def _parse_number(text: str) -> float | None:
    if text.lower() in NO_VALUE:
        return math.nan
    try:
        return float(text)
    except ValueError:
        return None


def _remove_missing_names(names: npt.NDArray[np.str_]) -> npt.NDArray[np.str_]:
    return np.where(np.isin(np.char.lower(names), NO_VALUE), "", names)


def _fit_numbers(name: str, values: Array, missing: Missing, standardize: bool, of: str) -> Column:
    present = values[~np.isnan(values)].tolist()
    if not present:
        raise InputError(f"the column {name} of {of} has no values", hint=f"Leave it out: ignore={name}")
    average = math.fsum(present) / len(present)
    fill = {"mean": average, "median": float(np.median(present))}.get(missing)
    if not standardize:
        return Column(name, fill=fill)
    filled = present if fill is None else [*present, *[fill] * (len(values) - len(present))]
    mean = math.fsum(filled) / len(filled)
    variance = math.fsum((value - mean) ** 2 for value in filled) / len(filled)
    return Column(name, mean, math.sqrt(variance) or 1.0, fill)


def _encode(column: Column, values: Array, of: str) -> npt.NDArray[np.float32]:
    if column.categories:
        return _encode_names(column, values, of)
    filled = values if column.fill is None else np.where(np.isnan(values), column.fill, values)
    with np.errstate(over="ignore"):
        scaled = ((filled - column.mean) / column.std).astype(np.float32)
    check_finite(scaled, f"the column {column.name} of {of} as float32")
    return scaled[:, None]


def _encode_names(column: Column, values: Array, of: str) -> npt.NDArray[np.float32]:
    names, which = np.unique(values, return_inverse=True)
    known = {name: n for n, name in enumerate(column.categories)}
    unknown = [name for name in names.tolist() if name and name not in known]
    if unknown:
        what = f"the column {column.name} of {of} has categories that the training set lacks"
        limit = f"one of {', '.join(column.categories[:20])}"
        raise InputError(what, value=", ".join(unknown[:SHOWN]), limit=limit)
    rows = np.zeros((len(names), len(known)), dtype=np.float32)  # a missing name is in no category
    for row, name in zip(rows, names.tolist(), strict=True):
        row[known[name] if name else slice(0)] = 1
    return rows[which.reshape(-1)]


def _list_features(column: Column) -> tuple[str, ...]:
    return tuple(f"{column.name}={name}" for name in column.categories) if column.categories else (column.name,)
