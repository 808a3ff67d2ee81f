"""Tables: columns are read as declared, and the transform is fitted on the training rows only."""

import gzip
import math
from pathlib import Path

import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import pytest

from splitrelay.data.tables import Table, TableTransform, fit_transform, read_table
from splitrelay.data.user_samples import TableFormat, hold_out, load_table
from splitrelay.errors import InputError, OutOfRange, UnknownName
from tests.support.error_fields import expect_error
from tests.support.small_datasets import build_columns, write_table

PLAIN = TableFormat(("died",), "ward", ("sex",), ("days",))


def test_every_source_of_a_table_gives_the_same_features(tmp_path: Path) -> None:
    columns = build_columns()
    file = write_table(tmp_path / "t.csv")
    frame = pandas.DataFrame(columns)
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(file.read_bytes()))
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    first = load_table(file, PLAIN)
    for source in (tmp_path / "t.csv.gz", tmp_path / "t.parquet", frame, columns):
        other = load_table(source, PLAIN)
        for ours, theirs in ((first.train, other.train), (first.test, other.test)):
            assert np.array_equal(ours.x, theirs.x)
            assert np.array_equal(ours.y, theirs.y)
        assert other.train.classes == ("no", "yes")
        assert np.array_equal(other.train.clients, first.train.clients)
    assert first.train.columns == ("age", "pressure", "sex=f", "sex=m")
    assert first.train.labels == ("died",)


def test_the_transform_never_sees_a_test_row(tmp_path: Path) -> None:
    columns = build_columns()
    data = load_table(columns, PLAIN)
    held = len(data.test)
    assert held == len(columns["age"]) // 5
    assert np.allclose(data.train.x[:, :2].mean(0), 0, atol=1e-6)
    assert np.allclose(data.train.x[:, :2].std(0), 1, atol=1e-5)
    rows = {name: values[:60] for name, values in columns.items()}
    test = {name: values[60:] for name, values in columns.items()}
    extreme = {**test, "age": [1e6] * 60}
    one, other = (load_table(rows, PLAIN, test=part) for part in (test, extreme))
    assert one.train.transform == other.train.transform
    assert np.array_equal(one.train.x, other.train.x)


def test_the_transform_does_not_depend_on_the_order_of_rows() -> None:
    values = [0.1, 1e16, 3.0, -1e16, 7.5]
    tables = [Table({"a": np.array(order)}, "t") for order in (values, values[::-1])]
    one, other = (fit_transform(table, ["a"], missing="mean") for table in tables)
    assert one == other
    assert one.columns[0].fill == math.fsum(values) / 5
    assert one.columns[0].mean == math.fsum(values) / 5


def test_a_transform_survives_json() -> None:
    data = load_table(build_columns(), PLAIN)
    transform = data.train.transform
    assert transform is not None
    assert TableTransform.from_json(transform.to_json()) == transform


@pytest.mark.parametrize("wrong", [[{"name": "a", "std": 0.0}], [{"name": "a", "mean": math.nan}], [{"n": 1}], [3]])
def test_a_wrong_transform_is_refused(wrong: list) -> None:
    with expect_error(InputError):
        TableTransform.from_json(wrong)


def test_text_columns_must_be_declared() -> None:
    with expect_error(InputError, hint="categorical=sex,ward") as caught:
        load_table(build_columns(), TableFormat(("died",)))
    assert "sex" in caught.value.what


def test_missing_values_are_refused_or_replaced_as_declared() -> None:
    columns = build_columns()
    columns["age"][3] = columns["age"][50] = ""
    columns["sex"][7] = "NA"
    with expect_error(InputError) as caught:
        load_table(columns, PLAIN)
    assert "age" in caught.value.what
    assert "missing=mean" in caught.value.hint
    dropped = load_table(columns, TableFormat(("died",), "ward", ("sex",), ("days",), "drop"))
    assert len(dropped.train) + len(dropped.test) == 117
    rows = {name: values[:100] for name, values in columns.items()}
    test = {name: values[100:] for name, values in columns.items()}
    for missing, expected in (("mean", np.mean), ("median", np.median)):
        form = TableFormat(("died",), "ward", ("sex",), ("days",), missing, standardize=False)
        data = load_table(rows, form, test=test)
        present = [value for value in rows["age"] if value != ""]
        assert data.train.x[3, 0] == pytest.approx(expected(present))
        assert data.train.x[7, 2:].tolist() == [0, 0]


def test_a_category_of_the_test_set_must_be_known() -> None:
    columns = build_columns()
    test = {**columns, "sex": ["x"] * 120}
    with expect_error(InputError, value="x"):
        load_table(columns, PLAIN, test=test)


def test_nan_and_infinity_are_named() -> None:
    columns = build_columns()
    with expect_error(InputError) as caught:
        load_table({**columns, "age": [math.nan, *columns["age"][1:]]}, PLAIN)
    assert "age" in caught.value.what
    with expect_error(InputError) as caught:
        load_table({**columns, "pressure": [math.inf, *columns["pressure"][1:]]}, PLAIN)
    assert "pressure" in caught.value.what


@pytest.mark.parametrize(
    "form",
    [
        TableFormat(("dead",)),
        TableFormat(("died",), client="clinic"),
        TableFormat(("died",), categorical=("gender",)),
        TableFormat(("died",), ignore=("date",)),
    ],
)
def test_unknown_columns_are_named(form: TableFormat) -> None:
    with expect_error(UnknownName):
        load_table(build_columns(), form)


def test_a_missing_label_or_client_is_refused() -> None:
    columns = build_columns()
    for name in ("died", "ward"):
        with expect_error(InputError) as caught:
            load_table({**columns, name: ["", *columns[name][1:]]}, PLAIN)
        assert name in caught.value.what or "label" in caught.value.what


def test_real_targets_and_several_labels() -> None:
    columns = build_columns()
    real = load_table(columns, TableFormat(("days",), None, ("sex",), ("ward", "died"), target="real")).train
    assert (real.target, real.outputs, real.y.dtype, real.y.shape) == ("real", 1, np.float32, (96,))
    both = {**columns, "a": [0, 1] * 60, "b": [1, 1] * 60}
    form = TableFormat(("a", "b"), None, ("sex",), ("ward", "died", "days"), target="multi-label")
    several = load_table(both, form).train
    assert (several.outputs, several.classes, several.y.shape) == (2, (), (96, 2))
    with expect_error(InputError):
        load_table({**both, "a": [2] * 120}, form)


def test_rows_of_the_wrong_length_and_empty_files_are_refused(tmp_path: Path) -> None:
    for text in ("", "a,b\n", "a,b\n1\n", "a,a\n1,2\n"):
        (tmp_path / "t.csv").write_text(text)
        with expect_error(InputError):
            read_table(tmp_path / "t.csv")


def test_holding_out_is_spread_over_clients_and_classes() -> None:
    clients = np.repeat(["a", "b"], 50)
    classes = np.tile([0, 0, 0, 0, 1], 20)
    held = hold_out(100, 0.2, classes, clients, "t")
    assert held.sum() == 20
    for client in ("a", "b"):
        assert held[clients == client].sum() == 10
        assert held[(clients == client) & (classes == 1)].sum() == 2
    with expect_error(OutOfRange):
        hold_out(100, 1.5, None, None, "t")
