"""Runs as data frames, figures and tables in notebooks."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import pytest

import splitrelay as sr
from splitrelay.errors import InputError, UnknownName
from tests.unit.api.test_fit import fit

matplotlib.use("Agg")


def test_a_frame_has_one_row_per_evaluation() -> None:
    frame = fit(metrics=["auroc"]).frame()
    assert list(frame["round"]) == [0, 1, 2, 3]
    assert {"test_accuracy", "test_auroc", "train_loss", "bytes_up"} <= set(frame.columns)


def test_all_runs_of_a_folder_are_one_frame(tmp_path: Path) -> None:
    for eta in (0.1, 0.2):
        fit(eta=eta, out=tmp_path / f"eta-{eta}")
    found = sr.runs(tmp_path)
    frame = found.frame()
    assert len(found) == 2
    assert sorted(set(frame["run"])) == ["eta-0.1", "eta-0.2"]
    assert sorted(set(frame["eta"])) == [0.1, 0.2]
    assert len(frame) == 8
    assert "<table>" in found._repr_html_()


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        sr.runs(tmp_path)


def test_a_plot_has_the_values_of_its_column() -> None:
    run = fit(metrics=["auroc"])
    line = run.plot().lines[0]
    assert list(line.get_ydata()) == [row["test_auroc"] for row in run.rows]  # type: ignore[arg-type]
    assert list(run.plot("loss").lines[0].get_ydata()) == [row["test_loss"] for row in run.rows]  # type: ignore[arg-type]
    with pytest.raises(UnknownName):
        run.plot("f1")


def test_names_are_escaped_in_notebooks() -> None:
    run = fit()
    hostile = sr.Run(run.spec, [{**row, "<script>": 1.0} for row in run.rows], run.x)
    assert "<script>" not in hostile._repr_html_()


def test_a_missing_pandas_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError) as caught:
        fit(R=1).frame()
    assert caught.value.hint


def test_progress_is_shown_only_if_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    fit(progress=None)  # no terminal here
    assert capsys.readouterr().err == ""
    fit(progress=True)
    assert capsys.readouterr().err != ""
