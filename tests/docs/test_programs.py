"""Programs that need each other, serve, join, status and collect, are run together, as the pages show them.

Every page that starts a server is a scene, and so are the examples in --help: keys are issued, the server and its
clients are processes, and status requests are answered over the same mutual TLS. Rehearsals are run one by one.
"""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from tests.docs.substitutions import TOGETHER, instead, why_not
from tests.support.command_line import Invoke
from tests.support.pages import (
    COMMANDS,
    LEAVES,
    PAGES,
    PATIENCE,
    ROOT,
    PageRunner,
    get_example,
    get_page_name,
    list_commands,
    list_lines,
    read_pieces,
)

SCENE = r"splitrelay (serve|join|status|collect|keys)\b"
LESS = {r"^R = \d+": "R = 2", r"^K = \d+": "K = 1", r"^C = \d+": "C = 5"}  # of the starter spec
PROGRAM = [sys.executable, "-c", "from splitrelay.cli.main import run; run()"]
REHEARSALS = {
    re.sub(r"(?<=--out )\S+", "rehearsed", instead(line))
    for line in list_lines()
    if "rehearse " in line and why_not(line) is None
}


def scenes() -> Iterator[tuple[str, list[str]]]:
    """The lines of each page that has a server, and those of --help."""
    for page in PAGES:
        shown = [line for piece in read_pieces(page) if piece.language != "sentence" for line in list_commands(piece)]
        lines = [line for line in shown if re.match(SCENE, line)]
        if any("splitrelay serve " in line for line in lines):
            yield get_page_name(page), lines
    yield "--help", [get_example(path) for path in LEAVES if re.match(TOGETHER, path) and "rehearse" not in path]


SCENES = dict(scenes())


class Stage:
    """A folder with the starter spec, somebody's own data, and keys for all who are named."""

    def __init__(self, invoke: Invoke, lines: list[str], stack: ExitStack) -> None:
        self.invoke, self.lines, self.stack = invoke, lines, stack
        self.named = list(dict.fromkeys(re.findall(r"--keys (\S+)", " ".join(lines))))
        clients = [int(name.removeprefix("hospital-")) for name in self.named if name.startswith("hospital-")]
        self.everybody = [f"hospital-{number}" for number in range(max(2, 1 + max(clients)))]
        self.port, self.joined = "", list[subprocess.Popen[bytes]]()
        self.prepare()

    def prepare(self) -> None:
        self.said("splitrelay new first")
        spec = Path("first.toml").read_text(encoding="utf-8")
        for pattern, less in {**LESS, r"^M = \d+": f"M = {len(self.everybody)}"}.items():
            spec, found = re.subn(pattern, less, spec, flags=re.MULTILINE)
            assert found == 1, pattern
        Path("first.toml").write_text(spec, encoding="utf-8")
        y = np.arange(60) % 10
        pixels = np.arange(64).reshape(8, 8) * (y[:, None, None] + 1) % 17
        np.savez("patients.npz", x=pixels.astype(np.uint8), y=y)

    def issue(self) -> None:
        """Keys for those to whom no line has given any."""
        if not Path("authority").exists():
            self.said("splitrelay keys authority --name clinics")
        for name in [*self.named, *self.everybody]:
            if not Path(name).exists():
                number = name.removeprefix("hospital-")
                role = f"--client {number}" if number.isdecimal() else "--observer"
                self.said(f"splitrelay keys issue {name} {'--host 127.0.0.1' if name == 'server' else role}")

    def said(self, line: str) -> str:
        answer = self.invoke(line.replace("PORT", self.port))
        assert answer.code == 0, f"{line}\n{answer.output}\n{self.logs()}"
        return answer.output

    def logs(self) -> str:
        return "\n".join(f"{log}:\n{log.read_text(errors='replace')}" for log in sorted(Path().glob("*.log")))

    def program(self, line: str, log: str, **environment: str) -> subprocess.Popen[bytes]:
        """A process; what it says goes to a file."""
        words = [*PROGRAM, *shlex.split(line.replace("PORT", self.port))[1:]]
        with Path(log).open("wb") as file:
            process = subprocess.Popen(words, stdout=file, stderr=file, env={**os.environ, **environment})
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        return process

    def serve(self, line: str) -> None:
        """Start it, and wait until it says, as it would to systemd, that it listens."""
        self.issue()
        notified = self.stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        notified.bind("notify")
        notified.settimeout(PATIENCE)
        self.server = self.program(line, "server.log", NOTIFY_SOCKET="notify")
        assert notified.recv(100) == b"READY=1", self.logs()
        self.port = Path("port").read_text().strip()

    def join(self, line: str) -> None:
        """This client, and in one program all the others of the spec: the run waits for everybody."""
        (mine,) = re.findall(r"--keys (\S+)", line)
        rest = " ".join(f"--keys {name} --data patients.npz" for name in self.everybody if name != mine)
        lines = (line, f"splitrelay join 127.0.0.1:PORT {rest} --spec first.toml")
        self.joined = [self.program(each, f"join-{j}.log") for j, each in enumerate(lines)]

    def ended(self) -> None:
        for process in self.joined:
            assert process.wait(PATIENCE) == 0, self.logs()

    def tell(self, line: str) -> None:
        if line.startswith("splitrelay serve"):
            self.serve(line)
        elif line.startswith("splitrelay join") and "--check" not in line:
            self.join(line)
        elif "--watch" in line:  # it ends with the run: not in this process, which may have to give up
            assert self.program(line, "watch.log").wait(PATIENCE) == 0, self.logs()
        else:
            if line.startswith("splitrelay collect"):
                self.ended()
            self.said(line)


@pytest.mark.parametrize("name", SCENES)
def test_programs_of_a_page_work_together(name: str, splitrelay: Invoke) -> None:
    if set(SCENES[name]) < set(SCENES["--help"]):
        return  # the same lines are a part of that scene
    with ExitStack() as stack:
        stage = Stage(splitrelay, [instead(line) for line in SCENES[name]], stack)
        for line in stage.lines:
            stage.tell(line)
        stage.ended()
        stage.server.send_signal(signal.SIGTERM)
        assert stage.server.wait(PATIENCE) == 0, stage.logs()
        (kept,) = Path().glob("*/**/model.safetensors")
        if any("collect" in line for line in stage.lines):
            assert Path("model.safetensors").read_bytes() == kept.read_bytes()


@pytest.mark.parametrize("line", sorted(REHEARSALS))
def test_a_rehearsal_ends_as_the_simulation(line: str, splitrelay: Invoke) -> None:
    story = PageRunner(splitrelay)
    story.ours("before", "splitrelay new first", 0)
    for piece in read_pieces(ROOT / "docs" / "deploy.md"):
        if piece.language == "toml":
            story.toml(piece)  # a plan of faults
    assert "same" in story.ours(line, line, 0)


def test_the_unit_for_systemd_names_a_command_with_options_that_exist() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    units = re.findall(r"^ExecStart=/usr/bin/env splitrelay (\w+) (.*)$", pages, re.MULTILINE)
    assert units
    for name, words in units:
        COMMANDS[f"splitrelay {name}"].make_context(name, shlex.split(words))
