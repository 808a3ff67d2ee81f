"""The command line as a reader of the docs meets it: the real entry point, without a terminal."""

import io
import shlex
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

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
