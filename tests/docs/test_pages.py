"""Run every command, example, notebook and link of the docs (see tests/support/pages.py), and build the site.

The list of substitutions is as short as possible: every row is needed, and every skipped line has a reason.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib
import pytest

import splitrelay as sr
from tests.docs.substitutions import NOT_RUN, ROWS, UNTIL, Row, instead
from tests.support.command_line import Invoke
from tests.support.pages import (
    PAGES,
    ROOT,
    PageRunner,
    compare_words,
    get_page_name,
    list_lines,
    matches,
    read_pieces,
    run_example,
    run_until,
    split_page,
)

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


NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def list_code(notebook: Path) -> list[str]:
    cells = json.loads(notebook.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def run_cell(code: str, names: dict[str, Any], where: str) -> Any:
    """Run a cell, and return the value of its last line as a notebook shows it."""
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, where, "exec"), names)
    return eval(compile(ast.Expression(last.value), where, "eval"), names) if isinstance(last, ast.Expr) else None


def run_notebook(notebook: Path) -> tuple[dict[str, Any], list[Any]]:
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for number, code in enumerate(list_code(notebook)):
        value = run_cell(code, names, f"{notebook.name}, code cell {number}")
        for method in ("__repr__", "_repr_html_"):  # a notebook asks for both
            getattr(value, method, lambda: "")()
        shown.append(value)
    return names, shown


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")


def test_there_are_four_notebooks() -> None:
    assert len(NOTEBOOKS) == 4


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_without_output(notebook: Path) -> None:
    cells = json.loads(notebook.read_text())["cells"]
    assert not any(cell.get("outputs") for cell in cells)


@pytest.mark.usefixtures("elsewhere")
def test_a_table_reaches_its_auroc() -> None:
    names, _ = run_notebook(ROOT / "examples" / "notebooks" / "table_to_auroc.ipynb")
    assert names["split"].metrics["auroc"] > 0.95


@pytest.mark.usefixtures("elsewhere")
def test_a_residual_network_has_the_same_bits_whole_and_cut() -> None:
    names, shown = run_notebook(ROOT / "examples" / "notebooks" / "residual_network.ipynb")
    assert shown[-1] is True
    assert names["run"].metrics["loss"] < names["run"].rows[0]["test_loss"]


@pytest.mark.usefixtures("elsewhere")
def test_adapters_learn_and_frozen_weights_do_not_travel() -> None:
    names, _ = run_notebook(ROOT / "examples" / "notebooks" / "transformer_with_lora.ipynb")
    assert len(names["run"].x) < names["total"] / 10
    assert names["run"].metrics["accuracy"] > names["run"].rows[0]["test_accuracy"]


@pytest.mark.usefixtures("elsewhere")
def test_an_own_algorithm_holds_its_contract() -> None:
    names, _ = run_notebook(ROOT / "examples" / "notebooks" / "own_algorithm.ipynb")
    assert set(names["results"]["algorithm"]) == {"FedAvg", "ServerMomentum", "SSL"}


def build_site(out: Path, source: Path = ROOT) -> subprocess.CompletedProcess[str]:
    options = ["--conf-dir", str(source / "docs"), "--fail-on-warning", "--keep-going", "--quiet"]
    command = [sys.executable, "-m", "sphinx", *options, "--doctree-dir", str(out / "doctrees"), str(source), str(out)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    built = build_site(out)
    assert built.returncode == 0, built.stderr
    return out


def test_every_page_is_in_the_site(site: Path) -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    missing = [page for page in pages if not (site / page.relative_to(ROOT)).with_suffix(".html").exists()]
    assert missing == []


def test_the_site_loads_nothing_from_other_hosts(site: Path) -> None:
    loads = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=["'](?:https?:)?//[^"']*""")
    assert {found for page in site.rglob("*.html") for found in loads.findall(page.read_text())} == set()


def test_the_search_works_without_a_server(site: Path) -> None:
    index = (site / "searchindex.js").read_text()
    assert "docs/tutorial" in index and "handov" in index  # the stem of handover


def test_a_broken_link_fails(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "docs").mkdir(parents=True)
    (source / "docs" / "conf.py").write_text((ROOT / "docs" / "conf.py").read_text())
    (source / "docs" / "site").mkdir()
    (source / "docs" / "site" / "site.css").write_text("")
    (source / "CHANGELOG.md").write_text("# Changelog\n")
    (source / "docs" / "page.md").write_text("# Page\n\n[Missing](page.md#nothing)\n")
    (source / "docs" / "index.md").write_text("# Start\n\n**Pages**\n\n[Page](page.md)\n")
    broken = build_site(tmp_path / "out", source)
    assert broken.returncode != 0
    (source / "docs" / "page.md").write_text("# Page\n\n## Nothing\n\n[Found](page.md#nothing)\n")
    assert build_site(tmp_path / "out2", source).returncode == 0


def test_the_site_has_the_reference_of_every_public_name(site: Path) -> None:
    page = (site / "docs" / "python.html").read_text()
    names = [name for name in sr.__all__ if not isinstance(getattr(sr, name), str | ModuleType)]
    missing = [name for name in names if not re.search(rf'id="splitrelay[\w.]*\.{name}"', page)]
    assert missing == []
