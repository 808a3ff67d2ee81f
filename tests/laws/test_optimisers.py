"""Optimisers in a spec: a run that stops goes on to the same end, whole is cut, and impossible keys are refused."""

from pathlib import Path

import pytest

from splitrelay.data import load
from splitrelay.deploy.deployed_run import check_deployable
from splitrelay.engine.base import HEADER, STEPS
from splitrelay.errors import InputError
from splitrelay.runs.build import resolve_spec
from splitrelay.runs.execute import execute
from splitrelay.runs.run_directory import RunDirectory
from splitrelay.runs.spec import Spec, make_spec
from tests.support.deployment import remove_times, simulate_run, small_spec
from tests.support.error_fields import expect_error

WAYS = [
    "optimiser=adamw state=handed clip=1",
    "momentum=0.9 nesterov=true state=kept algorithm=fedavg",
    "optimiser=adagrad state=kept algorithm=splitfed-v3",
    "optimiser=adam eta_server=0.01 algorithm=sflg G=2 schedule=cosine period=4 warmup=2",
    "algorithm=scaffold schedule=inverse-sqrt tau=epochs K=1",
    "algorithm=splitfed-v3 schedule=step period=1 factor=0.5 momentum=0.9 state=kept engine=reference",
]


@pytest.mark.parametrize("words", WAYS)
def test_a_run_that_stops_goes_on_to_the_same_end(words: str, tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "R=4", "eta=0.05", *words.split())
    expected = simulate_run(spec, tmp_path / "whole")
    going = execute(spec, RunDirectory(tmp_path / "stopped"), checkpoint=1)
    for progress in going:
        if progress.row["round"] == 2:
            break
    going.close()
    resumed = simulate_run(spec, tmp_path / "stopped")
    assert resumed.model.read_bytes() == expected.model.read_bytes()
    assert remove_times(resumed.read_rows()) == remove_times(expected.read_rows())


@pytest.mark.parametrize("words", WAYS[:2])
def test_whole_is_cut(words: str, tmp_path: Path) -> None:
    ends = []
    for placement in ("whole", "cut"):
        spec = small_spec(tmp_path, f"placement={placement}", "eta=0.05", *words.split())
        ends.append(simulate_run(spec, tmp_path / placement).model.read_bytes())
    assert ends[0] == ends[1]


def test_the_state_counts_in_the_bytes_of_a_run(tmp_path: Path) -> None:
    """Adam hands on two vectors: up after every visit, down before every visit but the first."""
    last = {}
    for state in ("reset", "kept", "handed"):
        words = (f"state={state}", "optimiser=adam", "algorithm=ssl", "placement=whole", "R=1")
        last[state] = simulate_run(small_spec(tmp_path, *words), tmp_path / state).read_rows()[-1]
    size = (tmp_path / "reset" / "model.safetensors").stat().st_size
    up, down = (last["handed"][f"bytes_{way}"] - last["reset"][f"bytes_{way}"] for way in ("up", "down"))
    visit = up // 4
    assert up == 4 * visit and down == 3 * visit and 1.9 * size < visit - 2 * HEADER - STEPS < 2 * size
    assert last["kept"]["bytes_up"] == last["reset"]["bytes_up"]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("optimiser=adam momentum=0.9", "momentum"),
        ("optimiser=adagrad beta1=0.5", "beta1"),
        ("nesterov=true", "nesterov"),
        ("epsilon=1e-3", "epsilon"),
        ("state=kept", "state=kept"),
        ("period=3", "period"),
        ("schedule=cosine", "period"),
        ("schedule=cosine period=3 factor=0.5", "factor"),
        ("state=handed momentum=0.9 algorithm=fedavg", "fedavg"),
        ("optimiser=adam algorithm=scaffold", "scaffold"),
        ("eta_server=0.1 algorithm=minibatch-sgd", "minibatch-sgd"),
    ],
)
def test_keys_that_have_no_effect_are_refused(words: str, names: str, tmp_path: Path) -> None:
    spec = small_spec(tmp_path, *words.split())
    with expect_error(InputError, what=names, hint=True):
        list(execute(spec, RunDirectory(tmp_path / "run")))
    assert not (tmp_path / "run" / "rows.jsonl").exists()


@pytest.mark.parametrize("words", ["optimiser=adam", "momentum=0.9 nesterov=true", "eta_server=0.1"])
def test_the_fast_engine_runs_sgd_only(words: str, tmp_path: Path) -> None:
    spec = small_spec(tmp_path, *words.split())
    assert resolve_spec(spec)[0].engine == "reference"
    with expect_error(InputError, what="engine=fast", hint="engine=reference"):
        resolve_spec(spec.model_copy(update={"engine": "fast"}), data=load(spec.data.name))


def test_default_optimiser_keys_keep_the_hash() -> None:
    written: Spec = make_spec(optimiser="sgd", nesterov=False, beta1=0.9, state="reset", eta_server=None)
    assert written.hash == make_spec().hash != make_spec(optimiser="adam").hash


@pytest.mark.parametrize("state", ["handed", "kept"])
def test_a_state_that_stays_cannot_be_deployed(state: str, tmp_path: Path) -> None:
    with expect_error(InputError, value=f"state={state}", limit="state=reset"):
        check_deployable(small_spec(tmp_path, "optimiser=adam", f"state={state}"))
