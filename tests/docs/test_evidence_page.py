"""The page of the paper's question says what the records in evidence/ say, and nothing in it is older than they are."""

import re
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest
from click.testing import CliRunner

from splitrelay.cli.main import app
from splitrelay.paper.evidence import BLOCK, fill_blocks
from splitrelay.runs.compare import model_hash
from splitrelay.runs.packed_records import has_record
from splitrelay.runs.records import runs_under
from splitrelay.runs.run_directory import RunDirectory

ROOT = Path(__file__).parents[2]
PAGE, RECORDS = ROOT / "docs/reproduce.md", ROOT / "evidence"
MOST = 10_000_000  # bytes


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What `reproduce --from evidence` writes."""
    out = tmp_path_factory.mktemp("shown")
    answer = CliRunner().invoke(app, ["-q", "reproduce", "--from", str(RECORDS), "--out", str(out)])
    assert answer.exit_code == 0, answer.output
    yield {path.name: path.read_text(encoding="utf-8") for path in out.glob("*.md")}


def test_the_page_shows_what_the_records_make_today(shown: dict[str, str]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert fill_blocks(page, shown) == page, f"splitrelay reproduce --from evidence --page {PAGE.relative_to(ROOT)}"


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
    kept = {"spec.toml", "environment.json", "rounds.jsonl", "model.sha256", "diverged.txt"}
    for file in RECORDS.glob("*.tar.xz"):
        with tarfile.open(file) as archive:
            assert {PurePosixPath(name).name for name in archive.getnames()} <= kept


def test_every_run_is_in_an_archive() -> None:
    assert len(runs_under(RECORDS)) == 1088 and not list(RECORDS.rglob("spec.toml"))


def test_every_record_can_be_run_again() -> None:
    """To its last round and weights, or to where it diverged."""
    for run in runs_under(RECORDS):
        ended = run.rows[-1]["round"] == run.spec.R and model_hash(run.path)
        assert run.path.name.endswith(run.spec.hash) and (ended or has_record(RunDirectory(run.path).diverged))


def test_wherever_the_model_is_cut_the_weights_are_the_same() -> None:
    ends = [model_hash(run.path) for run in runs_under(RECORDS / "cuts")]
    assert len(ends) == 11 and len(set(ends)) == 1
