"""Every command, every piece of Python and every link of the docs, and every example, do what they show.

A page is a story: its blocks run from top to bottom in one folder, its Python in one namespace.
    ```console   `$ splitrelay ...` is run; the lines below it must be its output, a line `...` standing for any lines.
                 Output that begins with `splitrelay: ` is an error: the command must leave with code 2.
    ```python    is run; a ```text block right below it must be what it prints.
    ```toml      whose first line is `# name.toml` is written to that file.
Other blocks (sh: the set-up of a machine) are for the eyes.
"""

import difflib
import io
import re
import runpy
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from front_door import Invoke, exemption

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!`)\[[^\]]*\]\(([^)\s]+)\)|<img[^>]*\ssrc=\"([^\"]+)\"")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page: where it begins, its language, its lines, and whether it follows another at once."""

    where: str
    language: str
    lines: list[str]
    close: bool


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(name: str, text: str) -> Iterator[Block]:
    end = 0
    for found in BLOCK.finditer(text):
        where = f"{name}:{text.count(chr(10), 0, found.start()) + 1}"
        yield Block(where, found[1], found[2].splitlines(), close=not text[end : found.start()].strip())
        end = found.end()


def commands(block: Block) -> Iterator[tuple[str, list[str]]]:
    """Each command of a console block with the output shown below it."""
    shown: list[str] = []
    for line in block.lines:
        if line.startswith("$ "):
            shown = []
            yield line.removeprefix("$ "), shown
        else:
            shown.append(line)


def matches(shown: list[str], printed: str) -> bool:
    """Whether the output is what is shown; `...` stands for any lines."""
    pattern = "".join(r"(?:.*\n)*?" if line.strip() == "..." else re.escape(line.rstrip()) + r"\n" for line in shown)
    return re.fullmatch(pattern, plain(printed)) is not None


def plain(printed: str) -> str:
    return "".join(line.rstrip() + "\n" for line in printed.rstrip().splitlines())


def compare(where: str, shown: list[str], printed: str) -> None:
    while shown and not shown[-1].strip():
        shown = shown[:-1]
    if shown and not matches(shown, printed):
        pytest.fail(f"{where}\n" + "\n".join(difflib.ndiff(shown, plain(printed).splitlines())), pytrace=False)


class Story:
    """What has happened on a page so far."""

    def __init__(self, invoke: Invoke) -> None:
        self.invoke, self.names, self.printed = invoke, {"__name__": "__main__"}, ""

    def tell(self, block: Block) -> None:
        if block.language in ("console", "python", "text", "toml"):
            getattr(self, block.language)(block)

    def console(self, block: Block) -> None:
        for line, shown in list(commands(block)):
            self.command(f"{block.where}: $ {line}", line, shown)

    def command(self, where: str, line: str, shown: list[str]) -> None:
        if line.startswith("python examples/"):
            compare(where, shown, run_example(ROOT / line.removeprefix("python ")))
            return
        assert line.startswith("splitrelay"), f"{where}: not a command of ours; write it in a ```sh block"
        if exemption(line) is None:
            answer = self.invoke(line)
            refused = any(text.startswith("splitrelay: ") for text in shown)
            assert answer.code == (2 if refused else 0), f"{where}\n{answer.output}"
            compare(where, shown, answer.output)

    def python(self, block: Block) -> None:
        printed = io.StringIO()
        first = int(block.where.rsplit(":", 1)[1])
        code = compile("\n" * first + "\n".join(block.lines), block.where.rsplit(":", 1)[0], "exec")
        with redirect_stdout(printed):
            exec(code, self.names)
        self.printed = printed.getvalue()

    def text(self, block: Block) -> None:
        if block.close and self.printed:
            compare(block.where, block.lines, self.printed)
        self.printed = ""

    def toml(self, block: Block) -> None:
        if block.lines[0].startswith("# ") and block.lines[0].endswith(".toml"):
            Path(block.lines[0].removeprefix("# ")).write_text("\n".join(block.lines) + "\n", encoding="utf-8")


def run_example(path: Path) -> str:
    printed = io.StringIO()
    with redirect_stdout(printed):
        runpy.run_path(str(path), run_name="__main__")
    return printed.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_page_shows_what_happens(page: Path, splitrelay: Invoke) -> None:
    story = Story(splitrelay)
    for block in blocks(named(page), page.read_text(encoding="utf-8")):
        story.tell(block)


@pytest.mark.parametrize("page", PAGES, ids=named)
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


@pytest.mark.parametrize("path", EXAMPLES, ids=named)
def test_an_example_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_example(path)


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


@pytest.mark.parametrize(
    "page",
    [
        "```console\n$ splitrelay --version\nsplitrelay 99\n```\n",
        "```console\n$ splitrelay notatoin\n```\n",
        "```console\n$ splitrelay notation\nsplitrelay: not an error\n```\n",
        "```console\n$ rm -r .\n```\n",
        "```python\nassert False\n```\n",
        "```python\nprint(1)\n```\n```text\n2\n```\n",
    ],
    ids=["output", "unknown command", "no error", "not ours", "python", "printed"],
)
def test_a_wrong_page_is_caught(page: str, splitrelay: Invoke) -> None:
    story: Any = Story(splitrelay)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        for block in blocks("page", page):
            story.tell(block)
