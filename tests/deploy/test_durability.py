"""Is everything on the disk before anybody counts on it, and is a client that says nothing waited for in vain?"""

import errno
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from splitrelay.algorithms.base import Cost, Done, Step, Visit
from splitrelay.atomic_files import write_text
from splitrelay.deploy import remote_clients, visit_scheduler
from splitrelay.deploy.deployed_run import open_journal
from splitrelay.deploy.journal import RESERVED, Fences, Journal
from splitrelay.deploy.sealed_state import SealedState
from splitrelay.deploy.server_visit import Policy, get_stage
from splitrelay.errors import InputError, StorageError, VisitFailed
from splitrelay.network.client_session import Session
from splitrelay.network.messages import Commit, Lease, Message, Ready
from splitrelay.runs.run_directory import RunDirectory
from tests.deploy.test_direct_handover import Play
from tests.deploy.test_full_disk import limit_file_size
from tests.support.bare_server import wait_until
from tests.support.clock import Clock
from tests.support.deployment import LocalDeployment, simulate_run, small_spec
from tests.support.error_fields import expect_error
from tests.support.sealed_deployments import join_directly, make_direct_deployment

CHANCE = 0.3  # seconds that a rename waits, so that a word that comes too early is heard first
X = torch.ones(5)
EMPTY = torch.zeros(0, dtype=torch.uint8)


# Folders


class Disk:
    """The folders that were made and those that were flushed, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, Path]] = []
        mkdir, fsync = os.mkdir, os.fsync

        def made(path: Path, *how: Any) -> None:
            mkdir(path, *how)
            self.asked.append(("make", Path(path).absolute()))

        def flushed(descriptor: int) -> None:
            fsync(descriptor)
            self.asked.append(("flush", Path(f"/proc/self/fd/{descriptor}").readlink()))

        monkeypatch.setattr(os, "mkdir", made)
        monkeypatch.setattr(os, "fsync", flushed)

    def made(self) -> dict[str, bool]:
        """Folders that were made, and whether a power cut leaves them: what has their name was flushed afterwards."""
        return {
            path.name: ("flush", path.parent) in self.asked[number:]
            for number, (what, path) in enumerate(self.asked)
            if what == "make"
        }


@pytest.mark.parametrize("start", ["absolute", "relative"])
def test_folders_that_a_file_needs_are_on_the_disk_with_it(
    start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    disk = Disk(monkeypatch)
    write_text((tmp_path if start == "absolute" else Path()) / "run" / "relay" / "visits" / "file", "1")
    assert disk.made() == {"run": True, "relay": True, "visits": True}


def test_the_journal_is_not_lost_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    disk = Disk(monkeypatch)
    open_journal(RunDirectory(tmp_path / "run")).commit(visit(), 1, done())
    assert disk.made() == {"relay": True, "visits": True}


# Fences


def test_a_fence_is_stored_before_it_is_granted(tmp_path: Path) -> None:
    fences = Fences(tmp_path / "fence")
    for _ in range(2 * RESERVED + 1):
        fence = fences.next()
        assert int((tmp_path / "fence").read_text()) >= fence


def test_fences_grow_over_restarts(tmp_path: Path) -> None:
    granted = list[int]()
    for number in (1, RESERVED - 1, RESERVED, RESERVED + 1, 1):
        fences = Fences(tmp_path / "fence")
        granted += [fences.next() for _ in range(number)]
    assert granted == sorted(set(granted))


def test_a_fence_that_cannot_be_stored_is_not_granted(tmp_path: Path) -> None:
    fences = Fences(tmp_path / "fence")
    with limit_file_size(1), expect_error(StorageError, what=str(tmp_path / "fence"), value=os.strerror(errno.EFBIG)):
        fences.next()
    fence = fences.next()
    assert int((tmp_path / "fence").read_text()) >= fence


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"10", b"1.5\n", b"-3\n", b"true\n", b"100\n\0\0", b"\xff\xfe", b"9" * 99]
)
def test_a_damaged_fence_is_one_line_with_the_way_out(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "fence").write_bytes(content)
    with expect_error(
        InputError, what=str(tmp_path / "fence"), limit=True, hint=str(tmp_path / "events.jsonl")
    ) as found:
        Journal(tmp_path)
    assert len(str(found.value).splitlines()) == 1


def test_a_fence_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "fence").mkdir()
    with expect_error(InputError, what=str(tmp_path / "fence"), value=os.strerror(errno.EISDIR)):
        Journal(tmp_path)


# Visits


def visit(x: Any = X) -> Visit[Any]:
    return Visit(0, 0, 1, x, Step(0.1), 4)


def done(x: Any = X) -> Done[Any]:
    return Done(x, Cost(1, 2, 0.5))


@pytest.mark.parametrize(
    ("start", "other"),
    [
        (X, X + torch.tensor([0, 0, 1e-6, 0, 0])),
        (
            SealedState(EMPTY, X, 1, 3),
            SealedState(EMPTY, X, 1, 4),
        ),
        (
            SealedState(EMPTY, X, 1, 3),
            SealedState(EMPTY, X, 2, 3),
        ),
        (
            SealedState(EMPTY, X, 1, 3),
            SealedState(EMPTY.new_ones(2), X, 1, 3),
        ),
    ],
)
def test_a_visit_is_found_where_it_begins_from_the_same_start_only(start: Any, other: Any, tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.commit(visit(start), 1, done(start))
    assert isinstance(journal.find(visit(start)), Done)
    assert journal.find(visit(other)) is None


class Renames:
    """What happens when a visit's file is about to have its name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, before: Callable[[str], None]) -> None:
        rename = os.replace

        def renamed(source: Path, target: Path) -> None:
            if Path(target).parent.name == "visits":
                before(Path(target).name)
            rename(source, target)

        monkeypatch.setattr(os, "replace", renamed)


def full(name: str) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Listener:
    """Clients that look into the server's journal when they hear that a visit counts."""

    def __init__(self, stage: LocalDeployment, monkeypatch: pytest.MonkeyPatch) -> None:
        self.there: list[bool] = []
        self.heard = threading.Event()
        listener, visits = self, stage.folder / "run" / "relay" / "visits"

        class Looking(Session):
            def receive(self, timeout: float | None = None) -> Message:
                word = super().receive(timeout)
                if isinstance(word, Lease):
                    self.file = visits / f"r{word.r:07d}-m{word.m:05d}-i{word.i}.safetensors"
                elif isinstance(word, Commit):
                    listener.there.append(self.file.exists())
                    listener.heard.set()
                return word

        monkeypatch.setattr("splitrelay.deploy.client_program.Session", Looking)

    def wait(self, name: str) -> None:
        self.heard.wait(CHANCE)
        self.heard.clear()


def listened(folder: Path, words: str) -> LocalDeployment:
    """A run without a checkpoint on the way, after which the journal forgets."""
    words = f"M=2 C=5 R=1 every=2 {words}"
    return (
        make_direct_deployment(folder, *words.split())
        if "peer" in words
        else LocalDeployment(small_spec(folder, *words.split()), folder)
    )


def joined(stage: LocalDeployment, **wish: Any) -> None:
    for m in stage.partition.clients:
        join_directly(stage, m, **wish) if stage.keys else stage.join(m, **wish)


ROUTES = ["", "placement=whole algorithm=fedavg", "route=peer-to-peer"]


@pytest.mark.parametrize("words", ROUTES)
def test_who_hears_that_a_visit_counts_finds_it_in_the_journal(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = listened(tmp_path, words)
    listener = Listener(stage, monkeypatch)
    Renames(monkeypatch, listener.wait)
    joined(stage)
    stage.play()
    assert listener.there == [True, True]


@pytest.mark.parametrize("words", ROUTES)
def test_a_visit_that_cannot_be_kept_counts_for_nobody(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = listened(tmp_path, words)
    listener = Listener(stage, monkeypatch)
    Renames(monkeypatch, full)
    joined(stage)
    with expect_error(StorageError, what="visits", value=os.strerror(errno.ENOSPC)):
        stage.play()
    assert listener.there == [] and not stage.events("committed")


def test_two_visits_of_which_only_the_later_was_kept_are_both_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first client still owes its half when the second deposits; the server falls between the two files."""
    first, fallen = Play(make_direct_deployment(tmp_path, "M=2", "C=9"), monkeypatch), threading.Event()

    def fall(name: str) -> None:
        if "m00000" in name:
            fallen.set()
            full(name)

    first.cues[0, "deposit"] = first.wait_for(fallen)
    with monkeypatch.context() as meanwhile:
        Renames(meanwhile, fall)
        joined(first.stage)
        with expect_error(StorageError, what="visits", value=os.strerror(errno.ENOSPC)):
            first.stage.play()
    assert [file.name[8:15] for file in (tmp_path / "run" / "relay" / "visits").iterdir()] == ["-m00001"]
    second = Play(make_direct_deployment(tmp_path, "M=2", "C=9"), monkeypatch)
    assert second.same()
    assert not second.stage.events("found")


# Clients that send nothing


class Mute:
    """Client 0 takes its lease and sends no step, the first so many times. Its time passes when it is alone."""

    def __init__(self, stage: LocalDeployment, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left, clock = times, Clock(monkeypatch, remote_clients, visit_scheduler)
        mute = self

        def is_alone() -> bool:
            leases = dict(stage.serving.remote.scheduler.leases)
            return set(leases) == {0} and leases[0].stage == get_stage(Ready(0), 1)

        class Silent(Session):
            def exchange(self, messages: Sequence[Message], *how: Any, **more: Any) -> Message:
                silent = self.client == 0 and self.holding.fence > 0 and mute.left > 0  # in a visit
                mute.left -= silent
                if not silent:
                    return super().exchange(messages, *how, **more)
                wait_until(is_alone)
                clock.advance(stage.offer.policy.step * stage.spec.K + 1.0)
                return super().exchange((), *how, **more)

        monkeypatch.setattr("splitrelay.deploy.client_program.Session", Silent)


def reasons(stage: LocalDeployment, kind: str) -> list[str]:
    return [event["why"] for event in stage.events(kind) if event["client"] == 0]


@pytest.mark.parametrize(
    ("words", "limit"), [("order=fixed", 100), ("placement=whole algorithm=fedavg", 200), ("route=peer-to-peer", 100)]
)
def test_a_visit_without_steps_is_taken_back_and_made_again(
    words: str, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the model is at the client, the server waits for all K = 2 steps."""
    spec = ["M=2", "C=5", "R=1", *words.split()]
    how: dict[str, Any] = {"policy": Policy(step=100.0)}
    stage = (
        make_direct_deployment(tmp_path, *spec, **how)
        if "peer" in words
        else LocalDeployment(small_spec(tmp_path, *spec), tmp_path, **how)
    )
    expected = simulate_run(stage.spec, tmp_path / "simulated")
    Mute(stage, 1, monkeypatch)
    joined(stage)
    stage.play()
    assert reasons(stage, "failed") == [f"no step for {limit} seconds"]
    fences = [event["fence"] for event in stage.events("leased") if event["client"] == 0]
    committed = [event["fence"] for event in stage.events("committed") if event["client"] == 0]
    assert fences == sorted(set(fences)) and committed == fences[1:] and not stage.events("lost")
    model = tmp_path / "model" if "peer" in words else stage.serving.directory.model
    assert model.read_bytes() == expected.model.read_bytes()


def test_who_never_makes_a_step_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Policy(step=100.0, retries=1)
    stage = LocalDeployment(small_spec(tmp_path, "M=2", "C=5", "R=1", "order=fixed"), tmp_path, policy=policy)
    Mute(stage, 9, monkeypatch)
    joined(stage)
    with expect_error(VisitFailed, what=("client 0", "2 times", "round 0"), value="100"):
        stage.play()
    assert reasons(stage, "failed") == ["no step for 100 seconds"] * 2


def test_who_never_makes_a_step_is_skipped_where_that_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Policy("skip", step=100.0)
    stage = LocalDeployment(small_spec(tmp_path, "M=2", "C=5", "R=1", "order=fixed"), tmp_path, policy=policy)
    Mute(stage, 9, monkeypatch)
    joined(stage)
    stage.play()
    assert reasons(stage, "skipped") == ["no step for 100 seconds"]
