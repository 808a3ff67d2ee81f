"""Start `splitrelay` programs by forking a process that has already imported everything.

A series of 200 fault plans starts about a thousand programs. Forking avoids importing torch in each of them. Every
program is still a separate process with its own threads, connections and memory, and can be killed.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from splitrelay.deploy.subprocesses import Program, die_with_parent
from splitrelay.network.limits import Timeouts

PRELOADED = (
    "deploy.server_program",
    "deploy.client_program",
    "deploy.remote_evaluator",
)
SHORT_TIMEOUTS = Timeouts(heartbeat=0.5, silence=4.0, first_retry=0.05, longest_retry=0.4)  # a plan takes seconds
COMMAND_LINE = "splitrelay.cli.main"  # imported by name: chaos does not depend on cli


class ForkedProgram(Program):
    """`splitrelay ...` in a process that is forked from the prepared one."""

    def start(self) -> ForkedProgram:
        """Start the program, or start it again."""
        self.process = _get_forkserver().Process(target=_run_program, args=(self.arguments, str(self.log)), daemon=True)
        self.process.start()
        return self

    def get_exit_code(self) -> int | None:
        """Return the exit code, or None while the program runs."""
        return None if self.process is None else self.process.exitcode

    def wait_for_exit(self, seconds: float | None = None) -> bool:
        """Wait at most so many seconds; return whether the program has ended."""
        self.process.join(seconds)
        return self.process.exitcode is not None


def _get_forkserver() -> Any:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch reads it when it is imported
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([f"splitrelay.{name}" for name in PRELOADED])
    return context


def _run_program(arguments: Sequence[str], log: str) -> None:
    die_with_parent()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(file, stream)
    import_module(COMMAND_LINE).run(list(arguments), SHORT_TIMEOUTS)
