"""The command line as a reader of the docs meets it: the real entry point, without a terminal."""

import io
import re
import shlex
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

from splitrelay.cli.main import run

# Command lines that no test of the house may run, each with the reason.
EXEMPT = {
    r"splitrelay (serve|join|status|collect)\b": "it talks to another host; tests/deploy does",
    r"splitrelay rehearse\b": "it starts a process for every client; tests/deploy rehearses",
    r"splitrelay demo\b": "it trains on all cores for a minute",
    r"splitrelay convex data=digits\b": "it takes a minute and a half",
    r"splitrelay data get\b": "it brings a data set here",
    r".*\bdata=(mnist|fashion-mnist|cifar10)\b": "it brings the data set here if it is not",
}
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


def exemption(line: str) -> str | None:
    """Why this command line is not run; None if it is."""
    return next((why for pattern, why in EXEMPT.items() if re.match(pattern, line)), None)
