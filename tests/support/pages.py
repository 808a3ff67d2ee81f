"""The pages of the documentation, and the commands on them: in blocks, in sentences, in every --help.

A page is a sequence of pieces. A fenced block is one, and so is a command in a sentence, `splitrelay ...` or
`python ...` between backquotes.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from splitrelay.cli.main import app

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
