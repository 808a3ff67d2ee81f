"""Read the pages of the documentation and run their commands and Python, from top to bottom in one folder.

A page is a sequence of pieces. A fenced block is one, and so is a command in a sentence, `splitrelay ...` or
`python ...` between backquotes. All Python of a page shares one namespace.
"""

import difflib
import io
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest.mock import patch

import click
import pytest

from splitrelay.cli.main import app
from tests.docs.substitutions import DEAR, TOGETHER, UNTIL, instead, why_not
from tests.support.command_line import Invoke
from tests.support.small_datasets import write_placeholders

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SENTENCE = re.compile(r"(?<!`)`((?:time |\./go |splitrelay |python (?:-m |[a-z]+/))[^`]*)`(?!`)")
REMARK = re.compile(r"\s+# .*$", re.MULTILINE)


@dataclass(frozen=True)
class Piece:
    """Where it begins, its language ("sentence" for a command in one), its lines, and whether it follows at once."""

    where: str
    language: str
    lines: list[str]
    close: bool = False


def get_page_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def read_pieces(page: Path) -> Iterator[Piece]:
    return split_page(get_page_name(page), page.read_text(encoding="utf-8"))


def split_page(name: str, text: str) -> Iterator[Piece]:
    """Blocks and commands in sentences, in their order."""
    end = 0
    for found in BLOCK.finditer(text):
        yield from _sentences(name, text, end, found.start())
        close = not text[end : found.start()].strip()
        yield Piece(_where(name, text, found.start()), found[1], found[2].splitlines(), close)
        end = found.end()
    yield from _sentences(name, text, end, len(text))


def _sentences(name: str, text: str, start: int, end: int) -> Iterator[Piece]:
    for found in SENTENCE.finditer(text, start, end):
        yield Piece(_where(name, text, found.start()), "sentence", [" ".join(found[1].split())])


def _where(name: str, text: str, position: int) -> str:
    return f"{name}:{text.count(chr(10), 0, position) + 1}"


def split_console(piece: Piece) -> Iterator[tuple[str, list[str]]]:
    """Each command of a console block with the output shown below it."""
    shown: list[str] = []
    for line in piece.lines:
        if line.startswith("$ "):
            shown = []
            yield line.removeprefix("$ "), shown
        else:
            shown.append(line)


def split_shell(piece: Piece) -> Iterator[str]:
    """Each command of an sh block, without its remark: a line, unless a backslash or an open quote goes on."""
    command = ""
    for line in piece.lines:
        command += line
        if command.endswith("\\") or not _is_closed(command):
            command += "\n"
        elif command.strip():
            yield REMARK.sub("", command).strip()
            command = ""


def _is_closed(command: str) -> bool:
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return False
    return True


def list_commands(piece: Piece) -> list[str]:
    """The command lines of any piece."""
    if piece.language == "console":
        return [line for line, _ in split_console(piece)]
    return list(split_shell(piece)) if piece.language == "sh" else piece.lines if piece.language == "sentence" else []


def walk_commands(command: click.Command, path: str = "splitrelay") -> Iterator[tuple[str, click.Command]]:
    """Every command and group of the command line, by its full name."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from walk_commands(inner, f"{path} {name}")


COMMANDS = dict(walk_commands(app))
LEAVES = [path for path, command in COMMANDS.items() if not isinstance(command, click.Group)]


def get_example(path: str) -> str:
    """The example in the --help of a command."""
    return str(getattr(COMMANDS[path], "example", ""))


def list_lines() -> dict[str, str]:
    """All command lines that anybody is shown, once each, with the first place where they stand."""
    found: dict[str, str] = {}
    for page in PAGES:
        for piece in read_pieces(page):
            for line in list_commands(piece):
                found.setdefault(line, piece.where)
    for path in LEAVES:
        found.setdefault(get_example(path), f"{path} --help")
    return found


CHECKOUT = ("benchmarks", "examples", "tests", "tools")  # what a reader has in the folder
PATIENCE = 300.0  # seconds, on a machine where much else runs


def strip_lines(printed: str) -> str:
    return "".join(line.rstrip() + "\n" for line in printed.rstrip().splitlines())


def matches(shown: list[str], printed: str) -> bool:
    """Whether the output is what is shown; `...` stands for any lines."""
    pattern = "".join(r"(?:.*\n)*?" if line.strip() == "..." else re.escape(line.rstrip()) + r"\n" for line in shown)
    return re.fullmatch(pattern, strip_lines(printed)) is not None


def compare(where: str, shown: list[str], printed: str) -> None:
    while shown and not shown[-1].strip():
        shown = shown[:-1]
    if shown and not matches(shown, printed):
        pytest.fail(f"{where}\n" + "\n".join(difflib.ndiff(shown, strip_lines(printed).splitlines())), pytrace=False)


def list_words(line: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[^\W\d_]{2,}", line))


def compare_words(where: str, shown: list[str], printed: str) -> None:
    """Numbers may differ; what is said must be said."""
    said = {list_words(line) for line in printed.splitlines()}
    missing = [line for line in shown if list_words(line) and list_words(line) not in said]
    assert not missing, f"{where}: nothing like this was printed:\n" + "\n".join(missing) + "\n\n" + printed


@cache
def find_owners() -> dict[str, str]:
    """Of every line that is run outside a console block, the first place where it stands; a --help comes first."""
    found = {instead(get_example(path)): f"{path} --help" for path in LEAVES}
    for line, where in list_lines().items():
        found.setdefault(instead(line), where)
    return found


class PageRunner:
    """What has happened on a page so far."""

    def __init__(self, invoke: Invoke) -> None:
        self.invoke, self.names, self.printed = invoke, {"__name__": "__main__"}, ""

    def tell(self, piece: Piece) -> None:
        if piece.language in ("console", "sh", "sentence", "python", "text", "toml"):
            getattr(self, piece.language)(piece)

    def console(self, piece: Piece) -> None:
        for line, shown in list(split_console(piece)):
            where = f"{piece.where}: $ {line}"
            if line.startswith("python examples/"):
                compare(where, shown, run_example(ROOT / line.removeprefix("python ")))
            else:
                assert line.startswith("splitrelay"), f"{where}: not a command of ours; write it in a ```sh block"
                self.command(where, line, shown)

    def command(self, where: str, line: str, shown: list[str]) -> None:
        if re.match(TOGETHER, line) or why_not(line):
            return
        run = instead(line)
        refused = any(text.startswith("splitrelay: ") for text in shown)
        (compare if run == line else compare_words)(where, shown, self.ours(where, run, 2 if refused else 0))

    def sh(self, piece: Piece) -> None:
        for line in split_shell(piece):
            self.shown(piece.where, line, again=not re.match(DEAR, instead(line)))

    def sentence(self, piece: Piece) -> None:
        (line,) = piece.lines
        self.shown(piece.where, f"{line} --help" if line in COMMANDS else line, again=False)

    def shown(self, where: str, line: str, *, again: bool) -> None:
        """Run it; unless `again`, only where it stands first."""
        run = instead(line)
        mine = again or find_owners().get(run, where) == where
        if mine and not re.match(TOGETHER, run) and why_not(run) is None:
            self.run(f"{where}: {line}", run)

    def run(self, where: str, run: str) -> None:
        until = next((mark for pattern, (mark, _) in UNTIL.items() if re.match(pattern, run)), None)
        if until is not None:
            run_until(where, run, until)
        elif run.startswith("splitrelay"):
            self.ours(where, run, 0)
        elif run.startswith("python examples/"):
            run_example(ROOT / "examples" / shlex.split(run)[1].removeprefix("examples/"))
        elif run.startswith("python -c "):
            run_code(where, shlex.split(run)[2])
        else:
            run_in_shell(where, run)

    def ours(self, where: str, run: str, code: int) -> str:
        write_placeholders(run, Path(os.environ["SPLITRELAY_DATA"]))
        answer = self.invoke(run)
        assert answer.code == code, f"{where}\n{answer.output}"
        return answer.output

    def python(self, piece: Piece) -> None:
        printed = io.StringIO()
        first = int(piece.where.rsplit(":", 1)[1])
        code = compile("\n" * first + "\n".join(piece.lines), piece.where.rsplit(":", 1)[0], "exec")
        with redirect_stdout(printed):
            exec(code, self.names)
        self.printed = printed.getvalue()

    def text(self, piece: Piece) -> None:
        if piece.close and self.printed:
            compare(piece.where, piece.lines, self.printed)
        self.printed = ""

    def toml(self, piece: Piece) -> None:
        if piece.lines[0].startswith("# ") and piece.lines[0].endswith(".toml"):
            Path(piece.lines[0].removeprefix("# ")).write_text("\n".join(piece.lines) + "\n", encoding="utf-8")


def run_example(path: Path) -> str:
    """Run an example as `instead` says, and return what it prints."""
    printed = io.StringIO()
    arguments = shlex.split(instead(f"python examples/{path.name}"))[2:]
    with redirect_stdout(printed), patch.object(sys, "argv", [str(path), *arguments]):  # not the arguments of pytest
        runpy.run_path(str(path), run_name="__main__")
    return printed.getvalue()


def run_code(where: str, code: str) -> None:
    """Run the code of `python -c` in this process, which has already imported most of what it needs."""
    try:
        exec(compile(code, where, "exec"), {"__name__": "__main__"})
    except SystemExit as leaving:
        assert not leaving.code, f"{where}\n{leaving}"


def environment() -> dict[str, str]:
    """The reader's shell: our programs on the path, a checkout in the folder."""
    for name in CHECKOUT:
        if not Path(name).exists():
            Path(name).symlink_to(ROOT / name)
    here = str(Path(sys.executable).parent)
    return {**os.environ, "PATH": f"{here}{os.pathsep}{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}


def run_in_shell(where: str, line: str) -> None:
    """Any command, by the shell."""
    with start_process(line) as going:
        printed, _ = going.communicate(timeout=PATIENCE)
    assert going.returncode == 0, f"{where}\n{printed}"


@contextmanager
def start_process(line: str) -> Iterator[subprocess.Popen[str]]:
    """A command with all its children, none of which is left behind."""
    going = subprocess.Popen(
        ["sh", "-ec", line], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield going
    finally:
        with suppress(ProcessLookupError):
            os.killpg(going.pid, signal.SIGKILL)
        going.wait()
        assert going.stdout is not None
        going.stdout.close()


def run_until(where: str, line: str, mark: str) -> None:
    """A long program, until it prints a line in which `mark` is found."""
    with start_process(line) as going:
        assert going.stdout is not None
        printed = ""
        while not re.search(mark, printed):
            printed = going.stdout.readline()
            assert printed, f"{where}: it ended before it printed {mark!r}"
