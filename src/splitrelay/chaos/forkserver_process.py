"""Processes that begin with everything imported: forked from one that waits, so that 200 plans need not import torch
a thousand times. Each is a process of its own, with its own threads, connections and memory, and can be killed.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from splitrelay.deploy.subprocesses import Program, die_with_parent

PRELOADED = (  # in this order
    "chaos.short_timeouts",
    "deploy.server_program",
    "deploy.client_program",
    "deploy.remote_evaluator",
)
COMMAND_LINE = "splitrelay.cli.main"  # from outside, as any program comes to it


class Child(Program):
    """`splitrelay ...` in a process forked from the nursery."""

    def start(self) -> Child:
        """Begin, or begin again."""
        self.process = _nursery().Process(target=_live, args=(self.words, str(self.log)), daemon=True)
        self.process.start()
        return self

    def code(self) -> int | None:
        """How it left, if it did."""
        return None if self.process is None else self.process.exitcode

    def wait_for_exit(self, seconds: float | None = None) -> bool:
        """Whether it left within so many seconds."""
        self.process.join(seconds)
        return self.process.exitcode is not None


def _nursery() -> Any:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is imported, which is in the nursery
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([f"splitrelay.{name}" for name in PRELOADED])
    return context


def _live(words: Sequence[str], log: str) -> None:
    die_with_parent()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(file, stream)
    import_module(COMMAND_LINE).run(list(words))
