"""The number of torch threads is a key of the spec: chosen once, recorded, and part of the name of a run."""

import json
from pathlib import Path

import torch

from splitrelay.deploy.deployed_run import check_deployable
from splitrelay.errors import InputError
from splitrelay.runs.build import LARGE_MODEL, choose_threads, resolve_spec
from splitrelay.runs.spec import make_spec
from splitrelay.runs.trainer import limit_torch_threads, set_deterministic
from tests.support.deployment import simulate_run, small_spec
from tests.support.error_fields import expect_error


def test_threads_are_recorded_and_restored(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    directory = simulate_run(small_spec(tmp_path, "threads=2", "engine=reference"), tmp_path / "run")
    environment = json.loads((directory.path / "environment.json").read_text())
    assert (environment["threads"], environment["device"]) == (2, "cpu")
    assert torch.get_num_threads() == before
    with limit_torch_threads(2), set_deterministic(torch.device("cpu")):
        assert torch.get_num_threads() == 2


def test_one_thread_is_the_default_and_keeps_the_hash(tmp_path: Path) -> None:
    assert make_spec(threads=1).hash == make_spec().hash != make_spec(threads=2).hash
    small = resolve_spec(small_spec(tmp_path, "threads=0", "engine=reference"))[0]
    assert small.threads == 1  # never 0, so that the number is part of the record


def test_only_large_models_with_visits_in_sequence_get_several_threads() -> None:
    spec = make_spec(algorithm="ssl")
    assert choose_threads(spec, "reference", LARGE_MODEL) >= 1
    assert choose_threads(spec, "fast", LARGE_MODEL) == 1
    assert choose_threads(spec, "reference", LARGE_MODEL - 1) == 1
    assert choose_threads(make_spec(algorithm="fedavg"), "reference", LARGE_MODEL) == 1


def test_threads_are_refused_where_they_have_no_effect(tmp_path: Path) -> None:
    with expect_error(InputError, what="threads"):
        resolve_spec(small_spec(tmp_path, "threads=2", "engine=fast"))
    with expect_error(InputError, value="threads=2"):
        check_deployable(small_spec(tmp_path, "threads=2"))
