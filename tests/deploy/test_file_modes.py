"""Who else on a host can read a run, and who can change a folder of keys."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from splitrelay.atomic_files import write_text
from splitrelay.errors import InputError
from splitrelay.runs.run_directory import RunDirectory
from splitrelay.security.authority import create_authority, open_authority
from splitrelay.security.identity import load_identity
from tests.support.deployment import LocalDeployment, simulate_run, small_spec


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_deployed_run_is_for_nobody_else(tmp_path: Path) -> None:
    stage = LocalDeployment(small_spec(tmp_path), tmp_path)
    for m in stage.partition.clients:
        stage.join(m)
    stage.play()
    run = tmp_path / "run"
    assert mode(run) == 0o700
    kept = [path for folder in ("relay", "checkpoints") for path in (run / folder, *(run / folder).rglob("*"))]
    assert {mode(path) for path in kept if path.is_dir()} == {0o700}
    assert {mode(path) for path in kept if path.is_file()} == {0o600}
    assert {"events.jsonl", "clients.json", "paid.json", "fence"} <= {path.name for path in kept}


def test_what_is_published_is_for_everybody(tmp_path: Path) -> None:
    directory = simulate_run(small_spec(tmp_path), tmp_path / "run")
    assert mode(directory.path) == 0o700
    directory.publish(tmp_path / "published")
    assert mode(tmp_path / "published") == 0o755
    assert {mode(file) for file in (tmp_path / "published").iterdir()} == {0o644}


def test_a_folder_that_was_there_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(0o755)
    with RunDirectory(tmp_path / "run").locked():
        assert mode(tmp_path / "run") == 0o755


def test_a_private_file_is_private_while_it_is_written(tmp_path: Path) -> None:
    write_text(tmp_path / "own" / "a", "x", private=True)
    write_text(tmp_path / "b", "x")
    assert (mode(tmp_path / "own"), mode(tmp_path / "own" / "a"), mode(tmp_path / "b")) == (0o700, 0o600, 0o644)


@pytest.mark.parametrize("more", [0o020, 0o002])
@pytest.mark.parametrize("name", ["", "ca.pem", "cert.pem", "identity.json"])
def test_keys_that_others_can_change_are_refused(name: str, more: int, tmp_path: Path) -> None:
    create_authority(tmp_path / "authority", "tests").issue_client("client-0", 0)
    place = tmp_path / "client-0" / name
    place.chmod(mode(place) | more)
    with pytest.raises(InputError) as caught:
        load_identity(tmp_path / "client-0")
    assert f"chmod go-w {place}" in str(caught.value.hint)
    place.chmod(mode(place) & ~0o022)
    assert load_identity(tmp_path / "client-0").m == 0


def test_a_folder_beside_which_others_can_write_is_allowed(tmp_path: Path) -> None:
    create_authority(tmp_path / "shared" / "authority", "tests").issue_client("client-0", 0)
    (tmp_path / "shared").chmod(0o1777)
    assert load_identity(tmp_path / "shared" / "client-0").m == 0


def test_an_authority_that_others_can_change_is_refused(tmp_path: Path) -> None:
    create_authority(tmp_path / "authority", "tests")
    (tmp_path / "authority").chmod(0o777)
    with pytest.raises(InputError):
        open_authority(tmp_path / "authority")
