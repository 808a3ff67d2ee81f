"""The page of the paper's question says what the records in evidence/ say, and nothing in it is older than they are."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from splitrelay.cli.main import app
from splitrelay.paper.page import BLOCK, filled
from splitrelay.runs.records import runs_under
from splitrelay.runs.run_directory import RunDirectory

ROOT = Path(__file__).parents[2]
PAGE, RECORDS = ROOT / "docs/reproduce.md", ROOT / "evidence"
MOST = 20_000_000  # bytes


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What `reproduce --from evidence` writes."""
    out = tmp_path_factory.mktemp("shown")
    answer = CliRunner().invoke(app, ["-q", "reproduce", "--from", str(RECORDS), "--out", str(out)])
    assert answer.exit_code == 0, answer.output
    yield {path.name: path.read_text(encoding="utf-8") for path in out.glob("*.md")}


def test_the_page_shows_what_the_records_make_today(shown: dict[str, str]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert filled(page, shown) == page, f"splitrelay reproduce --from evidence --page {PAGE.relative_to(ROOT)}"


def test_the_cells_one_by_one_have_the_accuracies_of_the_table(shown: dict[str, str]) -> None:
    ours = [line for line in shown["cells.md"].splitlines() if "| ours |" in line]
    in_table = re.findall(r"([\d.]+)\*{0,2} ± ([\d.]+)", "\n".join(ours))
    rows = [line.split("|") for line in shown["cell-by-cell.md"].splitlines() if line.startswith("| cross-device")]
    assert sorted(in_table) == sorted(tuple(row[4].strip().split(" ± ")) for row in rows)


def test_no_accuracy_stands_outside_the_tables() -> None:
    prose = BLOCK.sub("", PAGE.read_text(encoding="utf-8"))
    assert re.findall(r"\d+\.\d+", prose) == []


def test_records_carry_no_weights_and_stay_small() -> None:
    files = [path for path in RECORDS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MOST
    assert not [path for path in files if path.suffix == ".safetensors"]


def test_every_record_can_be_run_again() -> None:
    """To its last round and weights, or to where it diverged."""
    for run in runs_under(RECORDS):
        ended = run.rows[-1]["round"] == run.spec.R and (run.path / "model.sha256").exists()
        assert run.path.name.endswith(run.spec.hash) and (ended or RunDirectory(run.path).diverged.exists())


def test_wherever_the_model_is_cut_the_weights_are_the_same() -> None:
    ends = [path.read_text(encoding="ascii").split()[0] for path in (RECORDS / "cuts").glob("*/model.sha256")]
    assert len(ends) == 11 and len(set(ends)) == 1
