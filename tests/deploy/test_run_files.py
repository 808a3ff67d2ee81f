"""Files of a run directory that are not what they should be, and code or data that changed: serve refuses them."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from splitrelay.atomic_files import write_text
from splitrelay.deploy.deployed_run import ClientSizesFile
from splitrelay.deploy.server_program import ServerConfig, ServerProgram
from splitrelay.errors import InputError
from splitrelay.runs.checkpoint import Checkpoints
from splitrelay.runs.sources import read_sources
from tests.support.deployment import LocalDeployment, small_spec, stop_after_commits

FILES = (
    ".lock",
    "spec.toml",
    "rounds.jsonl",
    "environment.json",
    "relay/fence",
    "relay/events.jsonl",
    "relay/clients.json",
    "relay/quarantine.json",
    "relay/excluded.json",
    "relay/paid.json",
    "relay/salt",
    "relay/visits/r0000001-m00000-i0.safetensors",
    "relay/visits/r0000001-m00000-i0.skipped",
    "checkpoints/000001.json",
    "checkpoints/000001.safetensors",
)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> LocalDeployment:
    """A run that was stopped in its second round."""
    folder = tmp_path_factory.mktemp("interrupted")
    stage = LocalDeployment(small_spec(folder, "M=2", "C=5", "R=3"), folder)
    stop_after_commits(stage, 3)
    for m in stage.partition.clients:
        stage.join(m)
    with pytest.raises(KeyboardInterrupt):
        stage.play()
    return stage


@pytest.fixture
def replaced(interrupted: LocalDeployment) -> Iterator[Callable[[str, Callable[[Path], None]], Path]]:
    """Put something else in the place of a file of the run; everything is as before after the test."""
    moved: list[tuple[Path, Path]] = []

    def replace(name: str, make: Callable[[Path], None]) -> Path:
        path = interrupted.offer.out / name
        kept = interrupted.folder / "kept"
        if path.exists():
            path.rename(kept)
        moved.append((path, kept))
        make(path)
        return path

    yield replace
    for path, kept in moved:
        path.rmdir() if path.is_dir() else path.unlink()
        if kept.exists():
            kept.rename(path)


def start(stage: LocalDeployment) -> InputError:
    """Start the server again, which must refuse at once."""
    with pytest.raises(InputError) as found:
        program = ServerProgram(
            ServerConfig(stage.spec, stage.offer.out, timeouts=stage.offer.timeouts), stage.said.append
        )
        next(program.rows())
    return found.value


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir], ids=["fifo", "directory"])
@pytest.mark.parametrize("name", FILES)
def test_a_server_refuses_a_file_that_is_none(
    name: str,
    make: Callable[[Path], None],
    interrupted: LocalDeployment,
    replaced: Callable[[str, Callable[[Path], None]], Path],
) -> None:
    """A FIFO kept the server waiting for ever, and a directory was an unexpected error."""
    path = replaced(name, make)
    error = start(interrupted)
    assert error.value == str(path) and error.hint


@pytest.mark.parametrize(
    "name", ["relay/visits/rest", "relay/visits/r12-old", "checkpoints/1a.json", "checkpoints/9.txt"]
)
def test_files_of_the_operator_are_ignored(
    name: str, interrupted: LocalDeployment, replaced: Callable[[str, Callable[[Path], None]], Path]
) -> None:
    replaced(name, lambda path: write_text(path, "mine"))
    directory = interrupted.serving.directory
    assert 1 in directory.checkpoints.list_complete_rounds()
    interrupted.serving.journal.remove_rounds(0)
    assert all(path.name[1:8].isdecimal() for path in interrupted.serving.journal.list_files_from(0))
    directory.check_progress(1)


# Files of another run


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> LocalDeployment:
    """A finished run of the same settings with data of its own."""
    folder = tmp_path_factory.mktemp("other")
    stage = LocalDeployment(small_spec(folder, "M=2", "C=5", "R=2"), folder)
    for m in stage.partition.clients:
        stage.join(m)
    stage.play()
    return stage


def copy_from(other: LocalDeployment, name: str) -> Callable[[Path], None]:
    return lambda path: write_bytes(path, (other.offer.out / name).read_bytes())


def write_bytes(path: Path, content: bytes) -> None:
    path.write_bytes(content)


@pytest.mark.parametrize("back_to", [None, 1])
def test_a_checkpoint_of_another_run_is_refused(
    back_to: int | None, interrupted: LocalDeployment, other: LocalDeployment, tmp_path: Path
) -> None:
    """Its weights continued this run, and nothing said so."""
    out = tmp_path / "run"
    shutil.copytree(interrupted.offer.out, out)
    for name in ("checkpoints/000001.json", "checkpoints/000001.safetensors"):
        copy_from(other, name)(out / name)
    server = ServerProgram(replace(interrupted.offer, out=out, back_to=back_to), print)
    with pytest.raises(InputError) as found:
        next(server.rows())
    assert str(out / "checkpoints" / "000001.safetensors") in found.value.what and found.value.hint
    assert not (out / "set-aside").exists()


def test_a_checkpoint_of_an_earlier_version_is_accepted(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, torch.ones(2), 0, 0)
    assert checkpoints.load_newest(torch.zeros(2), run="this") is not None
    checkpoints.save(2, torch.ones(2), 0, 0, run="that")
    with pytest.raises(InputError):
        checkpoints.load_newest(torch.zeros(2), run="this")


@pytest.mark.parametrize("name", ["relay/clients.json", "relay/salt"])
def test_records_of_clients_of_another_run_are_refused(
    name: str,
    interrupted: LocalDeployment,
    other: LocalDeployment,
    replaced: Callable[[str, Callable[[Path], None]], Path],
) -> None:
    """The server started, and then refused the data of every client."""
    replaced(name, copy_from(other, name))
    error = start(interrupted)
    assert "relay/clients.json" in error.what and "relay/salt" in error.what and error.hint


def test_records_of_clients_without_a_digest_are_accepted(interrupted: LocalDeployment, tmp_path: Path) -> None:
    content = json.loads((interrupted.offer.out / "relay" / "clients.json").read_text())
    del content["check"]
    (tmp_path / "clients.json").write_text(json.dumps(content))
    assert set(ClientSizesFile(tmp_path / "clients.json").read()) == {0, 1}


# Code and data of the user


def test_a_server_refuses_changed_data_until_the_change_is_accepted(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "M=2", "C=5", "R=2")
    stage = LocalDeployment(spec, tmp_path)
    stop_after_commits(stage, 3)
    for m in stage.partition.clients:
        stage.join(m)
    with pytest.raises(KeyboardInterrupt):
        stage.play()
    data = Path(spec.data.name)
    data.write_bytes(data.read_bytes() + b"changed")  # the end of an npz file may be followed by other bytes
    error = start(stage)
    assert str(data) in str(error.value) and "--accept-change" in str(error.hint)
    again = LocalDeployment(spec, tmp_path, accept_change=True)
    for m in again.partition.clients:
        again.join(m)
    assert [row["round"] for row in again.play()] == [0, 1, 2]
    (change,) = read_sources(again.offer.out)[1]
    assert change["round"] == 1 and list(change["before"]) == [f"data {data}"]


def test_a_start_from_scratch_takes_changed_data(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "M=2", "C=5", "R=1")
    for words in ({}, {"from_scratch": True}):
        stage = LocalDeployment(spec, tmp_path, **words)
        for m in stage.partition.clients:
            stage.join(m)
        stage.play()
        data = Path(spec.data.name)
        data.write_bytes(data.read_bytes() + b"changed")
    environment = json.loads((stage.offer.out / "environment.json").read_text())
    assert "changes" not in environment and environment["sources"]
