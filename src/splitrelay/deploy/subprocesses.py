"""Start `splitrelay` commands as processes of this machine, each with its own log file."""

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
POLL_INTERVAL = 0.05  # seconds
STOP_TIMEOUT = 10.0  # seconds between SIGTERM and SIGKILL
PR_SET_PDEATHSIG = 1


class Program:
    """A `splitrelay` command in a process of its own.

    Args:
        arguments: The arguments of `splitrelay`.
        log: The file to which stdout and stderr are appended.
        prefix: A command that runs the program, such as `ip netns exec NAME`.
    """

    def __init__(self, arguments: Sequence[str], log: Path, prefix: Sequence[str] = ()) -> None:
        self.arguments, self.log, self.prefix = list(arguments), log, list(prefix)
        self.process: Any = None

    def start(self) -> Program:
        """Start the program, or start it again."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, sys.executable, "-c", START, *self.arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1"},  # one thread is set later anyway; do not create more
            )
        return self

    @property
    def pid(self) -> int:
        """Process id."""
        return int(self.process.pid)

    @property
    def is_running(self) -> bool:
        """Whether the process has been started and has not ended."""
        return self.process is not None and self.get_exit_code() is None

    def get_exit_code(self) -> int | None:
        """Return the exit code, or None if the program runs or was not started."""
        return None if self.process is None else self.process.poll()

    def has_failed(self) -> bool:
        """Return whether the program has ended with an exit code other than 0."""
        return self.get_exit_code() not in (None, 0)

    def wait_for_exit(self, seconds: float | None = None) -> bool:
        """Wait at most so many seconds; return whether the program has ended."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Send SIGKILL and wait."""
        self.send_signal(signal.SIGKILL)
        if self.process is not None:
            self.wait_for_exit()

    def stop(self) -> None:
        """Send SIGTERM; send SIGKILL if the program still runs after STOP_TIMEOUT."""
        self.send_signal(signal.SIGTERM)
        if self.process is not None and not self.wait_for_exit(STOP_TIMEOUT):
            self.kill()

    def send_signal(self, number: int) -> None:
        """Send a signal if the process exists; can be called by any thread."""
        if self.process is not None and self.process.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    def get_log_tail(self, lines: int = 1) -> str:
        """Return the last lines of the log; an empty text if there is no log."""
        with suppress(OSError):
            return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
        return ""


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies. Does nothing on systems other than Linux."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def wait_for_port(file: Path, program: Program, timeout: float = 60.0) -> int:
    """Wait until a server has written the port on which it listens.

    Raises:
        WorkError: The server has ended or did not start in time.
    """
    until = time.monotonic() + timeout
    while not file.exists():
        if not program.is_running or time.monotonic() > until:
            raise WorkError("the server did not start", value=program.get_log_tail(), hint=f"See {program.log}.")
        time.sleep(POLL_INTERVAL)
    return int(file.read_text(encoding="ascii"))
