"""A run belongs to the user's code and data: a change is refused, recorded, verified, and a new point of a sweep."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from splitrelay.cli.main import app
from splitrelay.errors import InputError
from splitrelay.runs.records import runs_under

LAYERS = "from torch import nn\n\n\ndef head():\n    return nn.Linear(64, 3)\n"
IMPORTS = "from torch import nn\nfrom {name}_layers import head\n\n\n"
NET = IMPORTS + "def net():\n    return nn.Sequential(nn.Flatten(), head())\n"


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """Write a model of two modules and a data set into the current folder; return the name of the first module."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"own_{abs(hash(request.node.nodeid)) % 10**8}"
    (tmp_path / f"{name}_layers.py").write_text(LAYERS)
    (tmp_path / f"{name}.py").write_text(NET.format(name=name))
    write_data(tmp_path, 0)
    return name


def write_data(folder: Path, shift: int) -> None:
    pixels = (np.arange(64)[None] * (np.arange(60)[:, None] % 3 + 3) + shift) % 256
    np.savez(folder / "own.npz", x=pixels.reshape(-1, 8, 8).astype(np.uint8), y=np.arange(60) % 3)


def invoke(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def run(name: str, R: int, *words: str) -> Result:
    return invoke("run", f"model={name}:net", "data=own.npz", "M=3", "K=1", f"R={R}", "--out", "run", *words)


def test_changed_import_is_refused_and_named(name: str, tmp_path: Path) -> None:
    assert run(name, 2).exit_code == 0
    (tmp_path / f"{name}_layers.py").write_text(LAYERS + "# changed\n")
    error = run(name, 4).exception
    assert isinstance(error, InputError) and f"{name}_layers.py" in str(error.value)
    assert error.hint is not None and "--accept-change" in error.hint


def test_changed_data_are_refused_and_named(name: str, tmp_path: Path) -> None:
    assert run(name, 2).exit_code == 0
    write_data(tmp_path, 1)
    error = run(name, 4).exception
    assert isinstance(error, InputError) and "own.npz" in str(error.value)


def test_accepted_change_is_recorded(name: str, tmp_path: Path) -> None:
    assert run(name, 2).exit_code == 0
    write_data(tmp_path, 1)
    assert run(name, 4, "--accept-change").exit_code == 0
    environment = json.loads((tmp_path / "run/environment.json").read_text())
    assert environment["changes"][0]["round"] == 2 and list(environment["changes"][0]["before"]) == ["data own.npz"]
    assert run(name, 5).exit_code == 0
    assert json.loads((tmp_path / "run/environment.json").read_text())["changes"] == environment["changes"]


def test_unchanged_sources_continue(name: str) -> None:
    assert run(name, 2).exit_code == run(name, 4).exit_code == 0


def test_verify_finds_changed_sources(name: str, tmp_path: Path) -> None:
    assert run(name, 2).exit_code == 0
    assert invoke("verify", "run").exit_code == 0
    (tmp_path / f"{name}_layers.py").write_text(LAYERS + "# changed\n")
    result = invoke("verify", "run")
    assert result.exit_code == 1 and f"{name}_layers.py" in result.output


def test_sweep_treats_a_change_as_a_new_point(name: str, tmp_path: Path) -> None:
    words = (
        "sweep",
        f"model={name}:net",
        "data=own.npz",
        "M=3",
        "K=1",
        "R=1",
        "seed=1,2",
        "--out",
        "sw",
        "--jobs",
        "1",
    )
    assert invoke(*words).exit_code == 0 and invoke(*words).exit_code == 0
    assert len(runs_under(tmp_path / "sw")) == 2
    write_data(tmp_path, 1)
    assert invoke(*words).exit_code == 0 and invoke(*words).exit_code == 0
    assert len(runs_under(tmp_path / "sw")) == 4
