"""Programs of ours as real processes on this machine, each with its log."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from splitrelay.errors import WorkError

START = (
    "from splitrelay.deploy.subprocesses import die_with_parent; die_with_parent(); "
    "from splitrelay.cli.main import run; run()"
)
POLL = 0.05  # seconds between two looks
GRACE = 10.0  # seconds between SIGTERM and SIGKILL
DEATH_OF_PARENT = 1  # prctl's PR_SET_PDEATHSIG


class Program:
    """`splitrelay ...` in a process of its own; what it says goes to a file."""

    def __init__(self, words: Sequence[str], log: Path, before: Sequence[str] = ()) -> None:
        self.words, self.log, self.before = list(words), log, list(before)
        self.process: Any = None

    def start(self) -> Program:
        """Begin, or begin again."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.before, sys.executable, "-c", START, *self.words],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1"},  # we set one thread anyway; this spares making more
            )
        return self

    @property
    def pid(self) -> int:
        """Its number."""
        return int(self.process.pid)

    @property
    def running(self) -> bool:
        """Whether it is still there."""
        return self.process is not None and self.code() is None

    def code(self) -> int | None:
        """How it left, if it did."""
        return None if self.process is None else self.process.poll()

    def wait_for_exit(self, seconds: float | None = None) -> bool:
        """Whether it left within so many seconds."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """As a power cut would: kill -9."""
        self.send(signal.SIGKILL)
        if self.process is not None:
            self.wait_for_exit()

    def stop(self) -> None:
        """SIGTERM, and if it does not hear, SIGKILL."""
        self.send(signal.SIGTERM)
        if self.process is not None and not self.wait_for_exit(GRACE):
            self.kill()

    def get_log_tail(self, lines: int = 1) -> str:
        """The end of its log."""
        with suppress(OSError):
            return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
        return ""

    def send(self, number: int) -> None:
        """A signal, if it is still there to hear it; from any thread."""
        if self.process is not None and self.process.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)


def die_with_parent() -> None:
    """Nobody stays behind after a kill -9 of the rehearsal; where the system has no such thing, nothing happens."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(DEATH_OF_PARENT, signal.SIGKILL)


def wait_for_port(file: Path, program: Program, patience: float = 60.0) -> int:
    """The port that a server wrote down once it listened."""
    until = time.monotonic() + patience
    while not file.exists():
        if not program.running or time.monotonic() > until:
            raise WorkError("the server did not start", value=program.get_log_tail(), hint=f"See {program.log}.")
        time.sleep(POLL)
    return int(file.read_text(encoding="ascii"))
