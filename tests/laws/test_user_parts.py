"""Algorithms, orders, partitions and data of the user: in runs, sweeps, tables, after kill -9, and deployed."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from splitrelay.cli.main import app
from splitrelay.data import load
from splitrelay.deploy.handshake import AgreedSpec, build_terms, check_code, read_agreed_spec, read_spec, write_terms
from splitrelay.errors import InputError, UnknownName
from splitrelay.runs import user_parts
from splitrelay.runs.build import build_order, build_partition
from splitrelay.runs.execute import execute
from splitrelay.runs.registry import algorithm
from splitrelay.runs.run_directory import RunDirectory
from splitrelay.runs.sources import compute_sources
from splitrelay.runs.spec import make_spec
from tests.support.deployment import LocalDeployment, remove_times, simulate_run, small_spec
from tests.support.error_fields import expect_error
from tests.support.user_modules import write_user_module

NAME = "parts_of_a_test"
PARTS = (f"algorithm={NAME}:Pulled", f"order={NAME}:Snake", f"partition={NAME}:deal", f"schedule={NAME}:halve")


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write the module into the current folder."""
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    yield write_user_module(tmp_path, NAME)
    sys.path[:] = path
    sys.modules.pop(NAME, None)


def get_spec(folder: Path, *words: str) -> Any:
    return small_spec(folder, "C=2", "engine=reference", *PARTS, *words)


def test_all_parts_run_and_are_recorded(tmp_path: Path, module: Path) -> None:
    spec = get_spec(tmp_path)
    directory = simulate_run(spec, tmp_path / "run")
    assert [row["round"] for row in directory.read_rows()] == [0, 1, 2]
    assert f"module {NAME}.py" in compute_sources(spec)
    partition = build_partition(spec, load(spec.data.name))
    assert list(partition.sizes) == [40] * 4 and partition.indices[(0 + spec.seed) % 4][0] == 0
    order = build_order(spec, partition)
    assert [list(order(r)) for r in (0, 1)] == [[0, 1, 2, 3], [3, 2, 1, 0]]
    assert algorithm(f"{NAME}:Pulled").source == f"{NAME}:Pulled"
    module.write_text(module.read_text() + "\n# another text\n")
    with expect_error(InputError, value=f"module {NAME}.py"):
        list(execute(spec.model_copy(update={"R": 3}), RunDirectory(tmp_path / "run")))


def test_data_of_a_function(tmp_path: Path) -> None:
    spec = make_spec(data=f"{NAME}:load", model="logistic", M=3, partition="iid", R=2, K=2)
    rows = simulate_run(spec, tmp_path / "run").read_rows()
    assert len(rows) == 3 and f"module {NAME}.py" in compute_sources(spec)


def test_a_killed_run_goes_on_to_the_same_end(tmp_path: Path) -> None:
    spec = get_spec(tmp_path, "R=30")
    expected = simulate_run(spec, tmp_path / "whole")
    (tmp_path / "spec.toml").write_text(spec.to_toml())
    command = [sys.executable, "-c", "from splitrelay.cli.main import run; run()", "run", "spec.toml"]
    command += ["--out", str(tmp_path / "killed"), "--checkpoint", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert process.stdout is not None
    for _ in range(5):
        process.stdout.readline()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    resumed = simulate_run(spec, tmp_path / "killed")
    assert resumed.model.read_bytes() == expected.model.read_bytes()
    assert remove_times(resumed.read_rows()) == remove_times(expected.read_rows())


def test_a_sweep_on_processes_and_its_table(tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(get_spec(tmp_path, "R=1").to_toml())
    words = ["sweep", "spec.toml", f"algorithm={NAME}:Pulled,fedavg", "--out", "swept", "--jobs", "2"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    table = CliRunner().invoke(app, ["table", "runs", "swept", "--format", "csv"])
    assert table.exit_code == 0 and f"{NAME}:Pulled" in table.output


def test_deployed_is_simulated_if_the_clients_have_the_code(tmp_path: Path, module: Path) -> None:
    spec = get_spec(tmp_path)
    expected = simulate_run(spec, tmp_path / "simulated")
    stage = LocalDeployment(spec, tmp_path)
    digest = build_terms(stage.serving.spec, load(spec.data.name)).spec_hash
    for m in stage.partition.clients:
        stage.join(m, agreed=None, code=(module,), accept_spec=digest)
    rows = stage.play()
    assert stage.serving.directory.model.read_bytes() == expected.model.read_bytes()
    assert remove_times(rows) == remove_times(expected.read_rows())
    assert set(stage.words.values()) == {"all rounds are done"}


def test_a_client_refuses_code_that_it_does_not_have(tmp_path: Path, module: Path) -> None:
    spec = get_spec(tmp_path)
    terms = build_terms(spec, load(spec.data.name))
    assert read_spec(terms) == spec and f"module {NAME}.py" in terms.spec
    check_code(spec, terms)
    (tmp_path / "terms.toml").write_text(write_terms(terms))
    assert read_agreed_spec(tmp_path / "terms.toml").spec == spec
    module.write_text(module.read_text() + "\n# another text\n")
    with expect_error(InputError, value=NAME, limit=NAME, hint="--code"):
        check_code(spec, terms)
    assert build_terms(spec, load(spec.data.name)).spec_hash != terms.spec_hash
    builtin = small_spec(tmp_path, "engine=reference")
    assert "[code]" not in build_terms(builtin, load(builtin.data.name)).spec


@pytest.mark.parametrize("agreed", [False, True])
def test_a_client_without_the_code_sends_nothing(agreed: bool, tmp_path: Path, module: Path) -> None:
    """Without --code and --spec it refuses the name; with --spec it compares the hash of its own file."""
    spec = get_spec(tmp_path)
    stage = LocalDeployment(spec, tmp_path)
    digest = build_terms(stage.serving.spec, load(spec.data.name)).spec_hash

    def change(port: int) -> None:
        module.write_text(module.read_text() + "\n# the client's text\n")
        stage.listening.set()

    stage.serving.on_listening = change
    for m in stage.partition.clients:
        stage.join(m, agreed=AgreedSpec(spec) if agreed else None, accept_spec=digest)
    watch_for_end(stage)
    with pytest.raises(KeyboardInterrupt):
        stage.play()
    errors = list(stage.words.values())
    assert len(errors) == 4 and {type(error) for error in errors} == {InputError}
    assert all("--code" in error.hint for error in errors)


def watch_for_end(stage: LocalDeployment) -> None:
    """Stop the server once all clients have ended."""

    def wait() -> None:
        for thread in stage.threads:
            thread.join(300)
        stage.stop.set()

    threading.Thread(target=wait, daemon=True).start()


def test_a_package_registers_an_algorithm_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def list_entry_points(group: str) -> list[EntryPoint]:
        return [EntryPoint("pulled", f"{NAME}:Pulled", group)] if group == "splitrelay.algorithms" else []

    with pytest.raises(UnknownName):
        algorithm("pulled")
    monkeypatch.setattr(user_parts, "entry_points", list_entry_points)
    spec = small_spec(tmp_path, "algorithm=pulled", "R=1")
    assert simulate_run(spec, tmp_path / "run").read_rows()[-1]["round"] == 1
    assert f"module {NAME}.py" in compute_sources(spec)


@pytest.mark.parametrize(
    ("text", "word", "what"),
    [
        ("def make(step, speed):\n    return None\n", "algorithm={}:make", "speed"),
        ("def make(step):\n    return 3\n", "algorithm={}:make", "init"),
        ("def make(step):\n    return 1 / 0\n", "algorithm={}:make", "ZeroDivisionError"),
        ("make = 3\n", "algorithm={}:make", "int"),
        ("def make(M):\n    return lambda r: [M]\n", "order={}:make", "4"),
        ("def make(M):\n    return lambda r: []\n", "order={}:make", "no client"),
        ("def make():\n    return [1]\n", "order={}:make", "list"),
        ("def make(N, M):\n    return [M] * N\n", "partition={}:make", "client 4"),
        ("def make(N):\n    return [[0, 1], [1, 2]]\n", "partition={}:make", "client 1"),
        ("def make(N):\n    return [range(N - 1)]\n", "partition={}:make", "client -1"),
    ],
)
def test_parts_that_cannot_be_used_are_refused(text: str, word: str, what: str, tmp_path: Path) -> None:
    name = "wrong_parts_of_a_test"
    sys.modules.pop(name, None)
    (tmp_path / f"{name}.py").write_text(text)
    words = [word.format(name)] if word.startswith("partition") else [word.format(name), "partition=iid"]
    spec = small_spec(tmp_path, "C=2", *words)
    with expect_error(InputError, value=what):
        list(execute(spec, RunDirectory(tmp_path / "run")))
    assert not (tmp_path / "run" / "rounds.jsonl").exists() or np.all(
        [row["round"] == 0 for row in RunDirectory(tmp_path / "run").read_rows()]
    )
