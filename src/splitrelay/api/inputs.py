"""Turn what users have (arrays, tensors, data frames, data sets of other libraries, files) into a data set."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from splitrelay.data.images import DataSet
from splitrelay.data.user_samples import (
    CLIENT,
    SHARE,
    TableFormat,
    is_hugging_face,
    load_hugging_face,
    load_samples,
    load_table,
)
from splitrelay.errors import InputError, UnknownName

TABLE_KEYS = ("label", "categorical", "ignore", "missing", "standardize")  # keys that only a table has
TARGET = "y"  # the name of the label column if the targets of a data frame are given separately


def make_data(
    X: Any, y: Any, clients: Any, test: Any, settings: Mapping[str, Any]
) -> tuple[DataSet | None, dict[str, Any]]:
    """Return the data set of the arguments of `sr.fit`, and the settings that remain for the spec.

    The data set is None if X is a file or a name, which the spec contains as it is.
    """
    keys = dict(settings)
    if isinstance(X, DataSet):
        return X, keys
    if isinstance(X, str | Path):
        if y is not None:
            raise InputError(
                "a file contains its labels", value=str(X), hint="Remove y, and name the column: label=..."
            )
        if clients is not None and not isinstance(clients, str):
            hint = "Name the column of the clients, or read the file into a data frame."
            raise InputError("the clients of a file are one of its columns", value=type(clients).__name__, hint=hint)
        given = {"data": str(X), "client": clients, "test": test}
        return None, keys | {key: value for key, value in given.items() if value is not None}
    share = SHARE if test is None else test
    if isinstance(X, Mapping) and any(hasattr(part, "column_names") for part in X.values()):
        hint = "Give one of them, and the other as the test set: X['train'], test=X['test']."
        raise InputError("X consists of several data sets", value=", ".join(map(str, X)), hint=hint)
    if is_hugging_face(X):
        return _load_hugging_face(X, y, clients, share, keys), keys
    if hasattr(X, "columns") or isinstance(X, Mapping):
        return _load_frame(X, y, clients, share, keys), keys
    unused = [key for key in TABLE_KEYS if key in keys]
    if unused:
        raise InputError(
            f"{unused[0]} has an effect only on a table", hint=f"Remove {unused[0]}, or give a data frame."
        )
    return load_samples(X, y, test=share, target=keys.pop("target", None), clients=clients), keys


def _load_frame(X: Any, y: Any, clients: Any, test: Any, keys: dict[str, Any]) -> DataSet:
    """Load a data frame. Targets and clients are columns of it, or are given separately."""
    table = {str(name): X[name] for name in (X.columns if hasattr(X, "columns") else X)}
    label = _as_names(keys.pop("label", ()))
    if isinstance(y, str) and not label:
        y, label = None, (y,)
    if (y is None) == (not label):
        raise InputError("the targets of a table are one column", hint="Give y, or the name of the column: label=...")
    if y is not None:
        label = (TARGET,)
        table[TARGET] = y
        if isinstance(test, tuple):
            test = {**{str(name): test[0][name] for name in test[0]}, TARGET: test[1]}
    column = clients if isinstance(clients, str) else None
    if clients is not None and column is None:
        column = CLIENT
        table[CLIENT] = clients
    for name in label:
        if name not in table:
            raise UnknownName("column of the table", name, table)
    form = TableFormat(
        label,
        column,
        _as_names(keys.pop("categorical", ())),
        _as_names(keys.pop("ignore", ())),
        keys.pop("missing", "refuse"),
        keys.pop("standardize", True),
        keys.pop("target", None) or _find_target(table[label[0]]),
    )
    return load_table(table, form, test=test, name="table")


def _load_hugging_face(X: Any, y: Any, clients: Any, test: Any, keys: dict[str, Any]) -> DataSet:
    label = keys.pop("label", None)
    if y is not None and not (isinstance(y, str) and label is None):
        raise InputError("the targets of a data set are one of its columns", hint="Name it: label=...")
    options: dict[str, Any] = {key: keys.pop(key) for key in ("target", "missing", "standardize") if key in keys}
    options |= {key: _as_names(keys.pop(key)) for key in ("categorical", "ignore") if key in keys}
    return load_hugging_face(X, y or label or "label", client=clients, test=test, **options)


def _find_target(column: Any) -> Any:
    """Return the kind of targets of a column: real numbers with a fraction are real, all others are classes."""
    kind = getattr(getattr(column, "dtype", None), "kind", "O")
    return "real" if kind == "f" else "classes"


def _as_names(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)
