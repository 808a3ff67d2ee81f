"""A run that is run again is the same, and one that was tampered with is not."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from splitrelay.cli.main import app
from splitrelay.errors import InputError
from splitrelay.randomness import Purpose, rng
from splitrelay.runs.execute import execute
from splitrelay.runs.run_directory import RunDirectory
from splitrelay.runs.spec import load_spec
from tests.support.command_line import start_and_read
from tests.support.engines import ENGINES

PUBLISHED = ["environment.json", "model.sha256", "rounds.jsonl.gz", "spec.toml"]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "own.npz"
    generator = rng(4, Purpose.INSTANCES)
    np.savez(path, x=generator.integers(0, 256, (90, 8, 8), dtype=np.uint8), y=np.arange(90) % 3)
    return path


@pytest.fixture
def run(own: Path, tmp_path: Path) -> Path:
    spec = load_spec(None, [f"data={own}", "M=5", "K=2", "C=1", "R=4"])
    list(execute(spec, RunDirectory(tmp_path / "runs" / "run"), checkpoint=2))
    return tmp_path / "runs" / "run"


def asked(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def edited(run: Path, row: int, **fields: object) -> None:
    rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    rows[row] |= fields
    (run / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_again_is_the_same_on_either_engine(own: Path, tmp_path: Path, engine: str) -> None:
    spec = load_spec(None, [f"data={own}", "M=5", "K=2", "C=1", "R=3", f"engine={engine}"])
    list(execute(spec, RunDirectory(tmp_path / "run"), checkpoint=2))
    result = asked("verify", str(tmp_path / "run"))
    assert result.exit_code == 0 and "identical to the bit" in result.output, result.output


@pytest.mark.parametrize("more", [("--from", "2"), ("--rounds", "3")])
def test_a_run_again_is_the_same(run: Path, more: tuple[str, ...]) -> None:
    result = asked("verify", str(run), *more)
    assert result.exit_code == 0 and "identical to the bit" in result.output, result.output


@pytest.mark.parametrize("how", ["row", "model", "published"])
def test_what_was_changed_is_found(run: Path, how: str) -> None:
    if how == "row":
        edited(run, 3, test_loss=1.25)
    if how == "model":
        model = (run / "model.safetensors").read_bytes()
        (run / "model.safetensors").write_bytes(model[:-1] + bytes([model[-1] ^ 1]))
    if how == "published":  # a record without its weights
        asked("publish", str(run.parent), "--to", str(run.parent.parent / "out"))
        run = run.parent.parent / "out" / "run"
        assert sorted(path.name for path in run.iterdir()) == PUBLISHED
        assert asked("verify", str(run)).exit_code == 0
        (run / "model.sha256").write_text("0" * 64)
    result = asked("verify", str(run), "--format", "json")
    found = json.loads(result.stdout)
    assert result.exit_code == 1 and not found["holds"]
    assert found["difference"] == ({"round": 3, "fields": ["test_loss"]} if how == "row" else found["difference"])


def test_a_row_that_was_lost_is_found(run: Path) -> None:
    lines = (run / "rounds.jsonl").read_text().splitlines(keepends=True)
    (run / "rounds.jsonl").write_text("".join(lines[:2] + lines[3:]))
    result = asked("verify", str(run), "--format", "json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["difference"] == {"round": 2, "fields": ["no row in the record"]}


def test_of_a_run_that_has_not_ended_it_is_said_how_far_it_was_compared(run: Path) -> None:
    for path in (run / "model.safetensors", *(run / "checkpoints").iterdir()):
        path.unlink()
    lines = (run / "rounds.jsonl").read_text().splitlines(keepends=True)
    (run / "rounds.jsonl").write_text("".join(lines[:3]))
    assert "identical to the bit, as far as the record goes: round 2 of 4." in asked("verify", str(run)).stdout


def test_times_do_not_count_and_another_machine_is_said(run: Path) -> None:
    edited(run, 2, seconds=1e9)
    assert asked("verify", str(run)).exit_code == 0
    edited(run, 2, test_loss=1.25)
    environment = json.loads((run / "environment.json").read_text())
    (run / "environment.json").write_text(json.dumps({**environment, "cpu": "another"}))
    result = asked("verify", str(run))
    assert result.exit_code == 0 and "bits are not promised here: cpu: another" in result.output


def test_only_kept_rounds_can_be_begun_at(run: Path) -> None:
    error = asked("verify", str(run), "--from", "3").exception
    assert "one of: 2, 4; got 3" in str(error)


def test_two_runs_side_by_side(run: Path, own: Path, tmp_path: Path) -> None:
    spec = load_spec(None, [f"data={own}", "M=5", "K=2", "C=1", "R=4", "seed=9"])
    list(execute(spec, RunDirectory(tmp_path / "other")))
    found = json.loads(asked("compare", str(run), str(tmp_path / "other"), "--format", "json").stdout)
    assert found["specs"] == {"seed": [1234, 9]} and found["rounds"] == 5 and not found["equal"]
    assert "not the directory of a run" in str(asked("compare", str(run), str(own.parent)).exception)


def test_ctrl_c_ends_after_the_visit_and_says_how_to_go_on(own: Path, tmp_path: Path) -> None:
    """A real process, a real signal; what it prints is run, and ends as if nothing had happened."""
    words = [f"data={own}", "M=5", "K=2", "C=1", "R=120"]
    command = [sys.executable, "-c", "from splitrelay.cli.main import run; run()"]
    process = start_and_read([*command, "run", *words, "--out", "stopped"], 5, stderr=subprocess.PIPE, cwd=tmp_path)
    os.kill(process.pid, signal.SIGINT)
    told = process.communicate()[1].decode()
    assert process.returncode == 130 and "finishing this visit" in told
    again = re.search(r"continue: splitrelay (.*)", told)
    assert again is not None
    kept = RunDirectory(tmp_path / "stopped")
    assert 3 < len(kept.read_rows()) < 121 and kept.checkpoints.list_rounds()[-1] == kept.read_rows()[-1]["round"]
    subprocess.run([*command, *again[1].split()], cwd=tmp_path, check=True, capture_output=True)
    whole = RunDirectory(tmp_path / "whole")
    list(execute(load_spec(None, words), whole))
    assert kept.model.read_bytes() == whole.model.read_bytes()


@pytest.mark.parametrize(("rounds", "compared"), [(2, 2), (3, 2), (4, 3), (99, 4)])
def test_rounds_that_are_not_recorded_are_not_compared(own: Path, tmp_path: Path, rounds: int, compared: int) -> None:
    spec = load_spec(None, [f"data={own}", "M=5", "K=1", "C=1", "R=5", "every=2"])
    list(execute(spec, RunDirectory(tmp_path / "run")))
    result = asked("verify", str(tmp_path / "run"), "--rounds", str(rounds), "--format", "json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["rounds"] == compared
    too_few = asked("verify", str(tmp_path / "run"), "--rounds", "1")
    assert isinstance(too_few.exception, InputError) and too_few.exception.value == 1
