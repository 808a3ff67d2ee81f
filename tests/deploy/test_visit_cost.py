"""Is what `cost` promises what a run records, and what it shows beside it what was measured?"""

from pathlib import Path

import pytest

from splitrelay.deploy.visit_cost import compare_costs, compute_costs, load_measured
from splitrelay.errors import InputError
from splitrelay.runs.registry import ALGORITHMS
from tests.support.deployment import LocalDeployment, simulate_run, small_spec
from tests.support.error_fields import expect_error


@pytest.mark.parametrize(
    "words",
    [
        "clip=1", "placement=whole algorithm=fedavg", "algorithm=scaffold tau=proportional", "algorithm=minibatch-sgd",
        "algorithm=random-reshuffling", "algorithm=splitfed-v3",
    ],
)  # fmt: skip
def test_a_round_costs_what_was_promised(words: str, tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "R=1", *words.split())
    row = simulate_run(spec, tmp_path / "run").read_rows()[-1]
    (price,) = [price for price in compute_costs(spec) if price.chosen]
    visits = spec.partition.M * price.visits
    assert (row["bytes_up"], row["bytes_down"]) == (round(visits * price.up), round(visits * price.down))


def test_one_table_for_all_algorithms(tmp_path: Path) -> None:
    rows = compare_costs(small_spec(tmp_path), ("ssl", *ALGORITHMS))
    assert {row.algorithm for row in rows} == set(ALGORITHMS)
    assert [row.algorithm for row in rows if row.chosen] == ["ssl"]
    assert {row.algorithm for row in rows if row.placement == "whole"} == set(ALGORITHMS) - {
        "splitfed-v2", "splitfed-v3", "sflg",
    }  # fmt: skip


def test_what_was_measured_stands_beside_it(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "R=1")
    stage = LocalDeployment(spec, tmp_path)
    for m in stage.partition.clients:
        stage.join(m)
    stage.play()
    (mine,) = [row for row in compare_costs(spec, run=tmp_path / "run") if row.measured is not None]
    assert mine.chosen and mine.measured is not None
    assert mine.measured.messages > mine.messages and mine.measured.memory > 10**7
    assert mine.measured.socket_up is not None and mine.measured.socket_up > mine.up
    assert mine.measured.socket_down is not None and mine.measured.socket_down > mine.down
    with expect_error(InputError, what=str(tmp_path / "run"), value=True, hint=str(tmp_path / "run" / "spec.toml")):
        load_measured(small_spec(tmp_path, "K=3"), tmp_path / "run")


def test_a_simulation_measures_nothing(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "R=1")
    simulate_run(spec, tmp_path / "run")
    with expect_error(InputError, what=str(tmp_path / "run"), value=None, hint=("splitrelay serve", "rehearse")):
        load_measured(spec, tmp_path / "run")
