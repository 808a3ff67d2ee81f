"""The natural placement of each algorithm, and the name of FedAvg over a cut."""

from pathlib import Path

import pytest

import splitrelay.paper.presets  # noqa: F401  (makes presets available in specs)
from splitrelay.errors import InputError
from splitrelay.reports.accuracy import build_accuracy_table
from splitrelay.reports.curves import draw_curves
from splitrelay.reports.runs_table import build_runs_table
from splitrelay.runs.registry import ALGORITHMS
from splitrelay.runs.spec import format_template, load_spec, make_spec
from tests.support.run_directories import write_run

WHOLE = ("fedavg", "fedprox", "fedavgm", "fedadam", "scaffold", "fedseq")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_default_placement_is_the_natural_one(algorithm: str) -> None:
    natural = "whole" if algorithm in WHOLE else "cut"
    assert make_spec(algorithm=algorithm).placement == natural
    assert make_spec(algorithm=algorithm, placement="auto").hash == make_spec(algorithm=algorithm).hash
    assert make_spec(algorithm=algorithm).hash == make_spec(algorithm=algorithm, placement=natural).hash


def test_template_takes_the_placement_of_another_algorithm(tmp_path: Path) -> None:
    (tmp_path / "first.toml").write_text(format_template("first"))
    assert load_spec(tmp_path / "first.toml", ["algorithm=fedavg"]).placement == "whole"
    assert load_spec(tmp_path / "first.toml").placement == "cut"


def test_stored_spec_keeps_its_placement_and_its_hash(tmp_path: Path) -> None:
    spec = make_spec(algorithm="fedavg", placement="cut")
    (tmp_path / "spec.toml").write_text(spec.to_toml() + "\n")
    assert 'placement = "cut"' in spec.to_toml()
    assert load_spec(tmp_path / "spec.toml") == spec
    assert load_spec(tmp_path / "spec.toml").hash == "ec172a2d200d"  # as before the default was auto


def test_presets_keep_the_placement_of_their_records() -> None:
    assert load_spec(None, ["preset=paper/cross-device-mnist-c1-k10", "algorithm=fedavg"]).placement == "cut"


def test_per_half_clipping_of_fedavg_needs_a_cut() -> None:
    with pytest.raises(InputError):
        make_spec(algorithm="fedavg", clip="per-half")
    assert make_spec(algorithm="fedavg", clip="per-half", placement="cut").optimiser.per_half


def test_fedavg_over_a_cut_is_called_splitfed_v1_where_bytes_are_shown(tmp_path: Path) -> None:
    cut = write_run(tmp_path / "cut", [0.1, 0.5], "algorithm=fedavg", "placement=cut")
    whole = write_run(tmp_path / "whole", [0.1, 0.6], "algorithm=fedavg", "placement=whole")
    table = build_runs_table([cut, whole])
    assert [row[0] for row in table.rows] == ["SplitFed V1", "fedavg"]
    assert [record["algorithm"] for record in table.records] == ["fedavg", "fedavg"]
    figure = draw_curves([cut], by_bytes=True).figure
    labels = {text.get_text() for legend in figure.legends for text in legend.get_texts()}
    assert any("SplitFed V1" in label for label in labels) and not any("FedAvg" in label for label in labels)


def test_tables_and_figures_of_both_placements_call_the_cut_one_splitfed_v1(tmp_path: Path) -> None:
    cut = write_run(tmp_path / "cut", [0.1, 0.5], "algorithm=fedavg", "placement=cut")
    whole = write_run(tmp_path / "whole", [0.1, 0.6], "algorithm=fedavg", "placement=whole")
    heads = [head.name for head in build_accuracy_table([cut, whole]).columns]
    assert heads[-2:] == ["FedAvg", "SplitFed V1"]
    assert [head.name for head in build_accuracy_table([cut]).columns][-1] == "FedAvg"
    figure = draw_curves([cut, whole]).figure
    labels = {text.get_text() for legend in figure.legends for text in legend.get_texts()}
    assert {label.partition(",")[0] for label in labels} == {"FedAvg", "SplitFed V1"}
