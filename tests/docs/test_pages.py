"""Run every command, every piece of Python, every link and every example of the docs (see page_runner.py).

The list of substitutions is as short as possible: every row is needed, and every skipped line has a reason.
"""

import ast
import re
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs.substitutions import NOT_RUN, ROWS, UNTIL, Row, instead
from tests.support.command_line import Invoke
from tests.support.page_runner import PageRunner, compare_words, matches, run_example, run_until
from tests.support.pages import PAGES, ROOT, get_page_name, list_lines, read_pieces, split_page

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LINK = re.compile(r"(?<!`)\[[^\]]*\]\(([^)\s]+)\)|<img[^>]*\ssrc=\"([^\"]+)\"")


@pytest.mark.parametrize("page", PAGES, ids=get_page_name)
def test_a_page_shows_what_happens(page: Path, splitrelay: Invoke) -> None:
    story = PageRunner(splitrelay)
    for piece in read_pieces(page):
        story.tell(piece)


@pytest.mark.parametrize("page", PAGES, ids=get_page_name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = [a or b for a, b in LINK.findall(page.read_text(encoding="utf-8"))]
    local = [target.partition("#")[0] for target in targets if not re.match(r"[a-z]+:", target)]
    assert [target for target in local if target and not (page.parent / target).exists()] == []


def test_every_page_can_be_reached_from_the_first() -> None:
    seen, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in seen and page.suffix == ".md" and page.exists():
            seen.add(page)
            links = [a for a, _ in LINK.findall(page.read_text(encoding="utf-8")) if a]
            waiting += [(page.parent / link.partition("#")[0]).resolve() for link in links if ":" not in link]
    assert set(PAGES) <= seen


@pytest.mark.parametrize("path", EXAMPLES, ids=get_page_name)
def test_an_example_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_example(path)


def extras() -> dict[str, list[str]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: dict[str, list[str]] = project["optional-dependencies"]
    return found


def installed(page: Path) -> list[tuple[str, str]]:
    """The options and the extra of every installation from a clone."""
    return re.findall(r"pip install (.*)'\.\[(\w+)\]'", page.read_text("utf-8"))


def brings_torch(extra: str) -> bool:
    words = " ".join(extras()[extra])
    inner = [name for names in re.findall(r"splitrelay\[([\w,]+)\]", words) for name in names.split(",")]
    return "torch" in words or any(map(brings_torch, inner))


def test_extras_that_the_pages_install_are_there() -> None:
    asked = {extra for page in PAGES for _, extra in installed(page)}
    assert asked and asked <= set(extras())


def test_whoever_installs_torch_from_a_clone_gets_the_pinned_one() -> None:
    """An unpinned torch is another one tomorrow, and gigabytes of CUDA."""
    asked = [(options, extra) for page in PAGES for options, extra in installed(page) if brings_torch(extra)]
    assert asked and {options for options, _ in asked} == {"-c constraints.txt "}


# The tests above can fail


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        (["a", "b"], "a\nb\n", True),
        (["a", "b"], "a\nc\n", False),
        (["a"], "a\nb\n", False),
        (["a", "..."], "a\nb\nc\n", True),
        (["...", "c"], "a\nb\nc\n", True),
        (["a", "...", "c"], "a\nb\n", False),
        (["1.5"], "1x5\n", False),
    ],
)
def test_shown_output_is_compared(shown: list[str], printed: str, same: bool) -> None:
    assert matches(shown, printed) is same


def test_words_are_compared_where_numbers_may_differ() -> None:
    compare_words("here", ["After 500 rounds", "12.5"], "After 2 rounds\n7\n")
    with pytest.raises(AssertionError) as wrong:
        compare_words("here", ["After 500 rounds"], "After all\n")
    assert "After 500 rounds" in str(wrong.value)


def test_a_long_program_must_come_to_its_mark(splitrelay: Invoke) -> None:
    run_until("here", "python -c \"print('row 1', flush=True); import time; time.sleep(60)\"", r"row \d")
    with pytest.raises(AssertionError) as ended:
        run_until("here", "python -m benchmarks nothing", r"row \d")
    assert r"row \d" in str(ended.value).replace("\\\\", "\\")


@pytest.mark.parametrize(
    "page",
    [
        "```console\n$ splitrelay --version\nsplitrelay 99\n```\n",
        "```console\n$ splitrelay notatoin\n```\n",
        "```console\n$ splitrelay notation\nsplitrelay: not an error\n```\n",
        "```console\n$ rm -r .\n```\n",
        "```sh\nsplitrelay notation --loud\n```\n",
        "```sh\npython -c 'raise SystemExit(1)'\n```\n",
        "Say `splitrelay notatoin`.\n",
        "See `splitrelay theory bound ssl L=1`.\n",
        "```python\nassert False\n```\n",
        "```python\nprint(1)\n```\n```text\n2\n```\n",
    ],
    ids=["output", "unknown", "no error", "not ours", "sh", "process", "name", "sentence", "python", "printed"],
)
def test_a_wrong_page_is_caught(page: str, splitrelay: Invoke) -> None:
    story = PageRunner(splitrelay)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        for piece in split_page("page", page):
            story.tell(piece)


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
