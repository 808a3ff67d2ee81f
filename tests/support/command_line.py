"""Run `splitrelay ...` in this process, or as a process of its own with its output in files."""

import io
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from splitrelay.cli.main import run

SHELL = {">", ">>", "|"}  # what follows them is the shell's business


@dataclass(frozen=True)
class Answer:
    """The exit code, and all that was printed, results and notes in their order."""

    code: int
    output: str


Invoke = Callable[[str], Answer]


def invoke(line: str) -> Answer:
    """Run `splitrelay ...` in this process."""
    words = shlex.split(line)
    stop = next((j for j, word in enumerate(words) if word in SHELL), len(words))
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with redirect_stdout(stream), redirect_stderr(stream):
        try:
            run(words[1:stop])
        except SystemExit as leaving:
            code = leaving.code
    stream.seek(0)
    assert isinstance(code, int)
    return Answer(code, stream.read())


START = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "  # a shell's background job ignores it
    "from splitrelay.deploy.rehearsal import die_with_parent; die_with_parent(); "
)
PROGRAM = [sys.executable, "-c", START + "from splitrelay.cli.main import run; run()"]
PATIENCE = 300.0  # seconds, on a machine where much else runs


def start_and_read(words: Sequence[str], lines: int, **how: Any) -> "subprocess.Popen[bytes]":
    """Start a program whose output waits for us, and read so many lines of it.

    The pipe holds one page, which is less than a hundred rows of a run: no run of more rows ends before it is read.
    """
    process = subprocess.Popen(words, stdout=subprocess.PIPE, bufsize=0, pipesize=4096, **how)
    assert process.stdout is not None
    for _ in range(lines):
        while (letter := process.stdout.read(1)) != b"\n":
            assert letter, "the program has ended"
    return process


class Program:
    """A started program and its output."""

    def __init__(self, folder: Path, name: str, words: tuple[str, ...]) -> None:
        self.out, self.err = folder / f"{name}.out", folder / f"{name}.err"
        self.reports = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)  # as systemd's
        self.reports.settimeout(PATIENCE)
        self.reports.bind(str(folder / f"{name}.notify"))
        variables = {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "NOTIFY_SOCKET": str(folder / f"{name}.notify")}
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [*PROGRAM, *words], stdout=out, stderr=err, stdin=subprocess.DEVNULL, env={**os.environ, **variables}
            )

    def heard(self) -> str:
        """The next report to systemd."""
        return self.reports.recv(100).decode()

    def said(self, text: str, times: int = 1) -> None:
        """Wait until it has said this so often, on either stream."""
        self.until(lambda: self.words.count(text) >= times, f"no '{text}', {times} times")

    def until(self, holds: Callable[[], object], what: str) -> None:
        """Wait for something; it is in vain where the program has left."""
        deadline = time.monotonic() + PATIENCE
        while not holds():
            gone = self.process.poll() is not None and not holds()
            assert not gone and time.monotonic() < deadline, f"{what}:\n{self.words}"
            threading.Event().wait(0.01)

    def left(self, number: int | None = None) -> int:
        """How it leaves, after this signal if there is one."""
        if number is not None:
            self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    @property
    def words(self) -> str:
        """All that was said so far."""
        return self.out.read_text(encoding="utf-8") + self.err.read_text(encoding="utf-8")

    def objects(self) -> list[dict[str, Any]]:
        """Every line of stderr, each of which must be an object."""
        found = [json.loads(line) for line in self.err.read_text(encoding="utf-8").splitlines()]
        assert all(isinstance(one, dict) and {"time", "message"} <= set(one) for one in found), found
        return found

    def close(self) -> None:
        """Kill the process."""
        self.reports.close()
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@contextmanager
def run_programs(folder: Path) -> Iterator[Callable[..., Program]]:
    """Yield a function that starts programs by name and arguments; all end with the block."""
    with ExitStack() as stack:

        def start(name: str, *words: str) -> Program:
            program = Program(folder, name, words)
            stack.callback(program.close)
            return program

        yield start
