"""Who waits briefly again and again is kept awake by a program that gives way to everybody, and ends with us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from splitrelay.wire import awake
from splitrelay.wire.awake import NEAR, OFTEN, Awake, Watch
from splitrelay.wire.inbox import Gone, Inbox
from splitrelay.wire.stream import Stream
from splitrelay.wire.vigil import WORDS
from splitrelay.wire.wheel import Wheel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the program needs Linux")


class Noted:
    """A clock that we set, and what was asked of the program by it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.moments: list[float] = []

    def monotonic(self) -> float:
        """What the clock shows."""
        return self.now

    def until(self, moment: float) -> None:
        """Only noted."""
        self.moments.append(moment)

    def wait(self, one: Awake, times: int, seconds: float = NEAR / 5) -> None:
        """So many waits of this length."""
        for _ in range(times):
            with one:
                self.now += seconds


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Noted:
    """Nobody stays awake in these."""
    found = Noted()
    monkeypatch.setattr(awake, "watch", lambda: found)
    monkeypatch.setattr(awake, "time", found)
    return found


def test_only_whoever_waited_briefly_several_times_is_kept_awake(noted: Noted) -> None:
    """For as long as a word takes that comes at once, and no longer than the wait."""
    one = Awake()
    noted.wait(one, OFTEN)
    assert noted.moments == []
    before = noted.now
    noted.wait(one, 1)
    assert noted.moments == [before + NEAR, 0.0]


def test_on_a_long_line_nobody_is_kept_awake(noted: Noted) -> None:
    """Not by a few short waits between long ones either."""
    one = Awake()
    for _ in range(20):
        noted.wait(one, OFTEN // 2)
        noted.wait(one, 1, 1.5 * NEAR)
    assert noted.moments == []


def test_the_pause_between_two_visits_is_not_the_end_of_it(noted: Noted) -> None:
    """Ten steps, a long wait, ten steps: all are taken to be short."""
    one = Awake()
    for _ in range(5):
        noted.wait(one, 10)
        noted.wait(one, 1, 1.5 * NEAR)
    noted.moments.clear()
    noted.wait(one, 10)
    assert len(noted.moments) == 20  # two for each wait


def test_both_ends_wait_so(noted: Noted) -> None:
    """The client for an answer, the server's thread that trains for a word."""
    frames = iter([b"."] * (OFTEN + 1))
    stream = Stream(lambda taken: Answers(frames), 60.0, lambda number: b"")
    wheel = Wheel()
    inbox = Inbox(wheel)
    for _ in range(OFTEN + 1):
        stream.read()
        wheel._loop.call_soon(inbox.put, Gone(0, 0, ""))
        inbox.get()
    stream.close()
    wheel.stop()
    assert noted.moments == [1000.0 + NEAR, 0.0] * 2


class Answers:
    """A call whose answers are there at once."""

    def __init__(self, frames: Iterator[bytes]) -> None:
        self._frames = frames

    def __next__(self) -> bytes:
        return next(self._frames)

    def cancel(self) -> None:
        """Nothing is under way."""


def stat(pid: int) -> list[str]:
    """What the kernel says of a process, from its state on."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()


def soon(true: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether it becomes true."""
    until = time.monotonic() + seconds
    while not true():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def test_it_turns_while_asked_at_the_lowest_priority_and_sleeps_otherwise() -> None:
    """Asked again it turns again."""
    watch = Watch()
    asleep = lambda: stat(watch.pid)[0] == "S" and os.sched_getscheduler(watch.pid) == os.SCHED_IDLE  # noqa: E731
    try:
        assert soon(asleep)
        for _ in range(2):
            before = int(stat(watch.pid)[11])
            watch.until(time.monotonic() + 60)
            assert soon(lambda before=before: int(stat(watch.pid)[11]) > before + 5)  # type: ignore[misc]
            watch.until(0.0)
            assert soon(asleep)
    finally:
        os.kill(watch.pid, signal.SIGKILL)
        os.waitpid(watch.pid, 0)
    watch.until(time.monotonic() + 1)  # nobody is there any more, and nobody minds


def test_who_was_stopped_is_not_waited_for() -> None:
    """A pipe that nobody reads is full after 65,536 words."""
    watch = Watch()
    try:
        assert soon(lambda: WORDS.unpack_from(watch._page)[1] == 1)  # it sleeps, and would be told
        os.kill(watch.pid, signal.SIGSTOP)
        for _ in range(70_000):
            watch.until(1.0)
    finally:
        os.kill(watch.pid, signal.SIGKILL)
        os.waitpid(watch.pid, 0)


def test_it_ends_with_its_parent_however_that_ends() -> None:
    """Also while it turns, within what it was last asked for."""
    program = "import time; from splitrelay.wire.awake import Watch; w = Watch(); w.until(time.monotonic() + 2); "
    program += "print(w.pid, flush=True); time.sleep(60)"
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert soon(lambda: not Path(f"/proc/{pid}").exists() or stat(pid)[0] == "Z")
