"""A killed run ends with the same weights and rows as an uninterrupted one, also with traced modules."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from splitrelay.algorithms import SSL, Averaged, Scaffold, SplitFedV3, Step
from splitrelay.errors import Diverged, InputError
from splitrelay.models.layout import FlatCut
from splitrelay.randomness import Purpose, rng
from splitrelay.runs.checkpoint import Checkpoints, flatten_state, rebuild_state
from splitrelay.runs.execute import execute
from splitrelay.runs.run_directory import RunDirectory
from splitrelay.runs.spec import Spec, load_spec
from tests.support.command_line import start_and_read
from tests.support.deployment import write_small_dataset
from tests.support.engines import ENGINES
from tests.support.error_fields import expect_error


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "own.npz"
    generator = rng(4, Purpose.INSTANCES)
    np.savez(path, x=generator.integers(0, 256, (90, 8, 8), dtype=np.uint8), y=np.arange(90) % 3)
    return path


def spec(own: Path, *words: str) -> Spec:
    return load_spec(None, [f"data={own}", "M=5", "K=2", "C=1", *words])


def rows(directory: RunDirectory) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if "seconds" not in k} for row in directory.read_rows()]


def finished(run: Spec, path: Path, **how: Any) -> RunDirectory:
    directory = RunDirectory(path)
    list(execute(run, directory, **how))
    return directory


def assert_same(one: RunDirectory, other: RunDirectory) -> None:
    assert one.model.read_bytes() == other.model.read_bytes()
    assert rows(one) == rows(other)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("algorithm", "stop"), [("ssl", 1), ("ssl", 4), ("scaffold", 7), ("splitfed-v3", 4)])
def test_a_run_that_stops_goes_on_to_the_same_end(
    own: Path, tmp_path: Path, algorithm: str, stop: int, engine: str
) -> None:
    run = spec(own, f"algorithm={algorithm}", "R=8", f"engine={engine}")
    going = execute(run, RunDirectory(tmp_path / "stopped"), checkpoint=3)
    for progress in going:
        if progress.row["round"] == stop:
            break
    going.close()
    assert_same(finished(run, tmp_path / "stopped"), finished(run, tmp_path / "whole"))


def test_a_killed_process_goes_on_to_the_same_end(own: Path, tmp_path: Path) -> None:
    """Real processes, real signals, in the middle of whatever they are doing."""
    words = [f"data={own}", "M=5", "K=2", "C=1", "R=200", "algorithm=scaffold"]
    command = [sys.executable, "-c", "from splitrelay.cli.main import run; run()", "run", *words]
    command += ["--out", str(tmp_path / "killed"), "--checkpoint", "1"]
    for lines in (3, 17):
        with start_and_read(command, lines) as process:
            os.kill(process.pid, signal.SIGKILL)
    killed = RunDirectory(tmp_path / "killed")
    assert 0 < len(killed.read_rows()) < 201
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert_same(killed, finished(spec(own, "R=200", "algorithm=scaffold"), tmp_path / "whole"))


def test_a_finished_run_is_left_alone_and_can_be_extended(own: Path, tmp_path: Path) -> None:
    short = finished(spec(own, "R=5", "every=2"), tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in short.path.rglob("*") if path.name != ".lock"}
    finished(spec(own, "R=5", "every=2"), tmp_path / "run")
    assert {path: path.stat().st_mtime_ns for path in before} == before
    longer = finished(spec(own, "R=9", "every=2"), tmp_path / "run")
    assert_same(longer, finished(spec(own, "R=9", "every=2"), tmp_path / "whole"))


def test_damage_costs_time_not_bits(own: Path, tmp_path: Path) -> None:
    run, whole = spec(own, "R=6"), finished(spec(own, "R=6"), tmp_path / "whole")
    directory = RunDirectory(tmp_path / "run")
    going = execute(run, directory, checkpoint=2)
    while next(going).row["round"] < 5:
        pass
    going.close()
    newest = sorted((directory.path / "checkpoints").glob("*.safetensors"))[-1]
    newest.write_bytes(newest.read_bytes()[:-7])  # a truncated checkpoint
    with directory.rounds.open("a") as rounds:
        rounds.write('{"round": 6, "test_acc')  # a half-written line
    assert_same(finished(run, tmp_path / "run"), whole)


def test_another_spec_a_second_process_and_fewer_rounds_are_refused(own: Path, tmp_path: Path) -> None:
    directory = finished(spec(own, "R=2"), tmp_path / "run")
    with expect_error(InputError, what=str(directory.path), hint=("--out", "spec.toml")):
        finished(spec(own, "R=2", "eta=0.2"), tmp_path / "run")
    with expect_error(InputError, value="R=1", limit="R >= 2"):
        finished(spec(own, "R=1"), tmp_path / "run")
    with directory.locked(), expect_error(InputError, what=str(directory.path), value=None, hint="--out"):
        finished(spec(own, "R=3"), tmp_path / "run")


def test_a_diverging_run_keeps_what_came_before(own: Path, tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run")
    with pytest.raises(Diverged):
        list(execute(spec(own, "eta=1e25"), directory))
    assert [row["round"] for row in directory.read_rows()] == [0]


def test_every_kind_of_state_survives_a_checkpoint(tmp_path: Path) -> None:
    x, step = torch.arange(6.0), Step[torch.Tensor](0.1)
    scaffold = Scaffold(step, 1, M=3)
    v3 = SplitFedV3(step, 1, FlatCut(2))
    states = [
        (SSL(step, 1), x + 1),
        (scaffold, type(scaffold.init(x))(x + 1, x + 2, {0: x + 3, 12: x + 4})),
        (v3, type(v3.init(x))(x[2:] + 1, x[:2], {7: x[:2] + 5})),
        (Averaged(SSL(step, 1), 0.5), type(Averaged(SSL(step, 1)).init(x))(x + 1, x + 2, 1.75)),
    ]
    for number, (algorithm, state) in enumerate(states):
        checkpoints = Checkpoints(tmp_path / str(number))
        checkpoints.save(3, state, up=5, down=6)
        found = checkpoints.load_newest(algorithm.init(x))
        assert found is not None and (found[0].round, found[0].up, found[0].down) == (3, 5, 6)
        assert repr(found[1]) == repr(state)
        assert repr(rebuild_state(algorithm.init(x), *flatten_state(state))) == repr(state)


def test_a_rebuilt_state_is_on_the_device_of_the_start() -> None:
    x = torch.arange(6.0)
    scaffold = Scaffold(Step[torch.Tensor](0.1), 1, M=3)
    kept = flatten_state(type(scaffold.init(x))(x, x, {0: x, 12: x}))
    state = rebuild_state(scaffold.init(x.to("meta")), *kept)  # a device that every machine has
    assert {tensor.device.type for tensor in (state.x, state.c, *state.variates.values())} == {"meta"}
    assert sorted(state.variates) == [0, 12]


def test_only_the_newest_two_checkpoints_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for r in (1, 2, 3, 10):
        checkpoints.save(r, torch.ones(2) * r, 0, 0)
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["000003.json", "000010.json"]
    assert json.loads((tmp_path / "000010.json").read_text())["round"] == 10


def test_rows_are_on_the_disk_before_what_counts_on_them(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut may lose rows after the newest checkpoint, which are made again, and none before it."""
    flushed, fsync = [], os.fsync

    def watched(descriptor: int) -> None:
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    finished(spec(own, "R=4"), tmp_path / "run", checkpoint=2)
    told = [name for name in flushed if "rounds.jsonl" in name or "safetensors" in name]
    written = [name.strip(".").partition(".")[0] for name in told]
    assert written == ["rounds", "rounds", "000002", "rounds", "000004", "rounds", "model"]


def test_a_file_has_its_name_when_it_is_on_the_disk_and_the_name_is_there_before_we_go_on(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rename may overtake what was written, and be lost itself: the file is flushed before it, its folder after."""
    asked = list[tuple[str, Path, int]]()
    fsync, replace = os.fsync, os.replace

    def flushed(descriptor: int) -> None:
        fsync(descriptor)
        asked.append(("flush", Path(f"/proc/self/fd/{descriptor}").readlink(), os.fstat(descriptor).st_size))

    def renamed(source: Path, target: Path) -> None:
        asked.append(("rename", Path(source), Path(source).stat().st_size))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", renamed)
    finished(spec(own, "R=4"), tmp_path / "run", checkpoint=2)
    made_again = "partition"  # from the spec, whenever the run goes on
    renames = [n for n, (what, file, _) in enumerate(asked) if what == "rename" and made_again not in file.name]
    assert {asked[number][1].name.split(".")[1] for number in renames} >= {"000002", "model", "rounds", "spec"}
    for number in renames:
        _, file, size = asked[number]
        assert asked[number - 1] == ("flush", file, size)
        assert asked[number + 1][:2] == ("flush", file.parent)


PRETRAINED = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.base, self.head = nn.Linear(64, 8), nn.Linear(8, 10)
        self.base.load_state_dict(torch.load("base.pt"))
        self.base.requires_grad_(False)

    def forward(self, x):
        return self.head(self.base(x.flatten(1)).tanh())
"""


def make_spec(folder: Path, model: str, *words: str) -> Spec:
    data = write_small_dataset(folder / "own.npz")
    return load_spec(None, [f"data={data}", "M=2", "C=5", "K=2", "engine=reference", f"model={model}", *words])


@pytest.mark.parametrize("name", ["counter", "vision_transformer"])
def test_a_resumed_run_has_the_same_bits(name: str, tmp_path: Path) -> None:
    model = f"tests.support.module_zoo:{name}"
    whole, parts = RunDirectory(tmp_path / "whole"), RunDirectory(tmp_path / "parts")
    list(execute(make_spec(tmp_path, model, "R=4"), whole))
    for R in (1, 3, 4):
        list(execute(make_spec(tmp_path, model, f"R={R}"), parts))
    assert parts.model.read_bytes() == whole.model.read_bytes()


def test_other_frozen_parameters_are_refused_or_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "pretrained_net.py").write_text(PRETRAINED)
    directory, spec = RunDirectory(tmp_path / "run"), make_spec(tmp_path, "pretrained_net:Net", "R=1")
    torch.save(torch.nn.Linear(64, 8).state_dict(), "base.pt")
    list(execute(spec, directory))
    before = json.loads((directory.path / "environment.json").read_text())["constants"]
    assert {"base.weight", "base.bias"}.isdisjoint(read_names(directory.model))

    torch.save(torch.nn.Linear(64, 8).state_dict(), "base.pt")
    longer = make_spec(tmp_path, "pretrained_net:Net", "R=2")
    with expect_error(InputError, what="pretrained_net:Net", limit=before, hint="--accept-change"):
        list(execute(longer, directory))
    list(execute(longer, directory, accept_change=True))
    after = json.loads((directory.path / "environment.json").read_text())
    assert after["constants"] != before and after["changes"] == [{"round": 1, "before": {"constants": before}}]


def read_names(model: Path) -> set[str]:
    length = int.from_bytes(model.read_bytes()[:8], "little")
    return set(json.loads(model.read_bytes()[8 : 8 + length]))
