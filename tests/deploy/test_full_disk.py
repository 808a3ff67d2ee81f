"""A full disk: the server stops with one line, and what was written before is whole."""

import errno
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from splitrelay.algorithms.base import Cost, Done, Step, Visit
from splitrelay.atomic_files import build_write_error
from splitrelay.deploy.events import read_events
from splitrelay.deploy.journal import Journal
from splitrelay.errors import OutputError, StorageError
from tests.support.deployment import small_spec
from tests.support.error_fields import expect_error


@contextmanager
def limit_file_size(size: int) -> Iterator[None]:
    """The kernel lets no file grow beyond `size` bytes. Python would cache modules that it cannot read again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    caches, sys.dont_write_bytecode = not sys.dont_write_bytecode, True
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = not caches


def test_a_line_that_does_not_fit_is_an_error_and_the_next_one_is_whole(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.note("first")
    size = (tmp_path / "events.jsonl").stat().st_size
    with (
        limit_file_size(size + 10),
        expect_error(StorageError, what=str(tmp_path / "events.jsonl"), value=os.strerror(errno.ENOSPC)),
    ):
        journal.note("second")
    Journal(tmp_path).note("third")
    assert [event["event"] for event in read_events(tmp_path / "events.jsonl")] == ["first", "third"]


def test_a_visit_that_does_not_fit_is_not_committed(tmp_path: Path) -> None:
    journal, x = Journal(tmp_path), torch.ones(5000)
    visit = Visit(0, 0, 1, x, Step(0.1), 4)
    with (
        limit_file_size(4096),
        expect_error(StorageError, what=str(tmp_path / "visits"), value=os.strerror(errno.EFBIG)),
    ):
        journal.commit(visit, 1, Done(x, Cost(1, 2, 0.5)))
    assert journal.find(visit) is None and list((tmp_path / "visits").iterdir()) == []
    journal.commit(visit, 2, Done(x, Cost(1, 2, 0.5)))
    assert isinstance(journal.find(visit), Done)


SCRIPT = """
import subprocess, sys
from pathlib import Path
from tests.support.deployment import LocalDeployment, simulate_run, small_spec
from splitrelay.deploy.events import get_visit, read_events
from splitrelay.chaos.fault_scheduler import count_settled_visits
from splitrelay.errors import StorageError

place = Path(sys.argv[1])
spec = small_spec(place, "R=3")
expected = simulate_run(spec, place / "simulated")
try:
    first = LocalDeployment(spec, place)
    for m in first.partition.clients:
        first.join(m)
    first.play()
except StorageError as error:
    print(error)
subprocess.run(["mount", "-o", "remount,size=10m", str(place / "run")], check=True)
second = LocalDeployment(spec, place)
for m in second.partition.clients:
    second.join(m)
second.play()
events = read_events(place / "run" / "relay" / "events.jsonl")
commits = [get_visit(event) for event in events if event["event"] == "committed"]
same = second.serving.directory.model.read_bytes() == expected.model.read_bytes()
print(count_settled_visits(events), len(commits) - len(set(commits)), same)
"""


LIMITED = (
    "import resource, sys; sys.dont_write_bytecode = True; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)); "
    "from splitrelay.cli.main import run; run()"
)


@pytest.mark.parametrize(
    "words", ["run", "serve --insecure --listen 127.0.0.1:0 --linger 0"], ids=lambda words: words.split()[0]
)
def test_a_command_whose_disk_is_full_fails_with_code_1(words: str, tmp_path: Path) -> None:
    """The kernel refuses whatever makes a file longer than 2000 bytes; the journal is at that length already."""
    spec = small_spec(tmp_path)
    (tmp_path / "spec.toml").write_text(spec.to_toml())
    (tmp_path / "run").mkdir()
    if words != "run":
        (tmp_path / "run" / "relay").mkdir()
        (tmp_path / "run" / "relay" / "events.jsonl").write_text(2000 * "\n")
    command = [sys.executable, "-c", LIMITED, *words.split(), str(tmp_path / "spec.toml"), "--out", f"{tmp_path}/run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1, done.stderr
    assert os.strerror(errno.EFBIG) in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO])
def test_the_disks_fault_is_failed_work_and_a_wrong_place_is_wrong_input(number: int, tmp_path: Path) -> None:
    disk = build_write_error(tmp_path, OSError(number, os.strerror(number)))
    place = build_write_error(tmp_path, OSError(errno.EACCES, os.strerror(errno.EACCES)))
    assert isinstance(disk, StorageError) and (disk.exit_code, disk.value) == (1, os.strerror(number))
    assert isinstance(place, OutputError) and place.exit_code == 2


def able() -> bool:
    """Whether a mount of our own can be made, which ends with the process that made it."""
    words = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]
    return (
        os.geteuid() == 0
        and bool(shutil.which("unshare"))
        and subprocess.run(words, capture_output=True).returncode == 0
    )


@pytest.mark.skipif(not able(), reason="needs root and mount namespaces")
def test_a_server_whose_disk_is_full_stops_with_one_line_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    mounted = f'mount -t tmpfs -o size=140k none "{tmp_path}/run" && exec "{sys.executable}" -c "$0" "{tmp_path}"'
    words = ["unshare", "-m", "sh", "-c", mounted, SCRIPT]
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    done = subprocess.run(words, capture_output=True, text=True, env=paths, timeout=600)
    first, last = done.stdout.splitlines()[0], done.stdout.splitlines()[-1]
    assert "No space left on device" in first, done.stderr
    assert last == "12 0 True"  # visits that are settled, those committed twice, the same model
