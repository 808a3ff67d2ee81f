"""The list of departures is as short as it can be: every row is needed, every line that is not run has a reason."""

import ast
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs.substitutions import NOT_RUN, ROWS, UNTIL, Row, instead
from tests.support.pages import ROOT, list_lines

SHOWN = list(list_lines())
FOLDERS = ("src/splitrelay", "benchmarks", "tests", "examples")
PROGRAM = re.compile(r"python (?:-m ([a-z][\w.]*)|([a-z]\w*/[\w/]+\.py))")


def arriving(row: Row) -> list[str]:
    """The lines as they come to a row, after those above it."""
    above = ROWS[: ROWS.index(row)]
    lines = SHOWN
    for each in above:
        lines = [re.sub(each.pattern, each.instead, line) for line in lines]
    return lines


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.pattern)
def test_a_row_is_needed(row: Row) -> None:
    assert any(re.sub(row.pattern, row.instead, line) != line for line in arriving(row))


@pytest.mark.parametrize("pattern", [*UNTIL, *NOT_RUN])
def test_an_exception_is_needed(pattern: str) -> None:
    assert any(re.match(pattern, line) for shown in SHOWN for line in (shown, instead(shown)))


def test_every_row_says_why() -> None:
    assert all([*(row.why for row in ROWS), *(why for _, why in UNTIL.values()), *NOT_RUN.values()])


def modules() -> list[Path]:
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def programs(path: Path) -> set[str]:
    """What a module's docstring tells to run."""
    words = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return {module or file for module, file in PROGRAM.findall(words)}


def exists(name: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.syspath_prepend(ROOT)
    return (ROOT / name).is_file() if name.endswith(".py") else find_spec(name) is not None


def test_what_a_docstring_tells_to_run_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {path: programs(path) for path in modules()}
    assert sum(map(len, found.values())) > 5
    assert [(path, name) for path, names in found.items() for name in names if not exists(name, monkeypatch)] == []
