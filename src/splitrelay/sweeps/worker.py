"""The program of a sweep's process: errands come in at stdin, news go out at stdout, one JSON object a line.

It ends with its parent, however that ends: the kernel kills it where it can, and the end of stdin tells it elsewhere.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from queue import SimpleQueue
from threading import Event, Thread
from typing import IO

from splitrelay.sweeps.jobs import Errand, News

PR_SET_PDEATHSIG = 1


def serve(parent: int, core: int | None) -> None:
    """Errands, one after another, until there are no more."""
    _end_with(parent)
    if core is not None:
        os.sched_setaffinity(0, {core})  # before torch is imported: it counts cores
    out = _own_stdout()
    errands: SimpleQueue[Errand] = SimpleQueue()
    stop = Event()
    Thread(target=_listen, args=(errands, stop), daemon=True).start()
    carry_out = import_module("splitrelay.sweeps.errands").carry_out
    for errand in _each(errands):
        _tell(out, carry_out(errand, stop, lambda news: _tell(out, news)))


def _each(errands: SimpleQueue[Errand]) -> Iterator[Errand]:
    while True:
        yield errands.get()


def _listen(errands: SimpleQueue[Errand], stop: Event) -> None:
    for line in sys.stdin:
        word = json.loads(line)
        if "stop" in word:
            stop.set()
        else:
            errands.put(Errand(**word))
    os._exit(0)  # nobody is there any more


def _end_with(parent: int) -> None:
    """Die with the parent, also after its kill -9; at once if it is gone already."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _own_stdout() -> IO[str]:
    """The channel for news; whatever else prints goes to stderr, lest it be taken for news."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return out


def _tell(out: IO[str], news: News) -> None:
    out.write(json.dumps(asdict(news)) + "\n")
    out.flush()


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
