"""Programs of ours as real processes on this machine, each with its log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from splitrelay.errors import WorkError

START = "from splitrelay.cli.main import run; run()"
POLL = 0.05  # seconds between two looks
GRACE = 10.0  # seconds between SIGTERM and SIGKILL


class Program:
    """`splitrelay ...` in a process of its own; what it says goes to a file."""

    def __init__(self, words: Sequence[str], log: Path) -> None:
        self.words, self.log = list(words), log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Program:
        """Begin, or begin again."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", START, *self.words],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1"},  # we set one thread anyway; this spares making more
            )
        return self

    @property
    def running(self) -> bool:
        """Whether it is still there."""
        return self.process is not None and self.process.poll() is None

    def code(self) -> int | None:
        """How it left, if it did."""
        return None if self.process is None else self.process.poll()

    def kill(self) -> None:
        """As a power cut would: kill -9."""
        self._send(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, and if it does not hear, SIGKILL."""
        self._send(signal.SIGTERM)
        try:
            if self.process is not None:
                self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.kill()

    def last_words(self, lines: int = 1) -> str:
        """The end of its log."""
        with suppress(OSError):
            return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
        return ""

    def _send(self, number: int) -> None:
        if self.running and self.process is not None:
            self.process.send_signal(number)
            if number == signal.SIGKILL:
                self.process.wait()


def port_in(file: Path, program: Program, patience: float = 60.0) -> int:
    """The port that a server wrote down once it listened."""
    until = time.monotonic() + patience
    while not file.exists():
        if not program.running or time.monotonic() > until:
            raise WorkError("the server did not start", value=program.last_words(), way_out=f"See {program.log}.")
        time.sleep(POLL)
    return int(file.read_text(encoding="ascii"))
