"""Tables in the docs equal the code and the records: notation, keys of a spec, and results of the paper.

Run `python tests/docs/test_generated_tables.py` to write the table of keys again.
"""

import csv
import io
import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest
from click.testing import CliRunner

from splitrelay.cli.main import app
from splitrelay.errors import UnknownName
from splitrelay.notation import BY_NAME, CUT_SYMBOLS, KEY_SYMBOLS, SYMBOLS, Symbol, describe_symbol, get_axis_label
from splitrelay.paper.evidence import BLOCK, fill_blocks
from splitrelay.runs.compare import model_hash
from splitrelay.runs.packed_records import has_record
from splitrelay.runs.records import runs_under
from splitrelay.runs.run_directory import RunDirectory
from splitrelay.runs.spec import KEYS, SpecKey
from tests.support.error_fields import expect_error

# Typed from the paper, row by row; where a row has several symbols they stand side by side.
FIRST_TABLE = [
    "R", "M", "K", r"\pi", "S", r"\eta", r"\tilde\eta", r"\mu", "L", r"\sigma", "B", r"\zeta", r"\zeta_*", "F", "F_m",
    "x^r", "x_m^{(r,k)}", r"g_{\pi_m}^{(r,k)}", r"\mathrm{ExDir}(C,\alpha)",
]  # fmt: skip
SECOND_TABLE = [
    r"\tau_m", "x_c", "x_s", "X_m", "Y_m", r"\hat Y_m", "A_m", r"\ell_{\pi_m}",
    r"\nabla\ell(x_s; A)", r"\nabla\ell(A; x_s)", r"\nabla\ell(x_c; X)",
]  # fmt: skip


@pytest.mark.parametrize(("symbols", "rows"), [(KEY_SYMBOLS, FIRST_TABLE), (CUT_SYMBOLS, SECOND_TABLE)])
def test_every_row_of_the_papers_tables_is_there(symbols: tuple[Symbol, ...], rows: list[str]) -> None:
    assert [symbol.tex for symbol in symbols] == rows


def test_one_name_one_symbol() -> None:
    assert len(BY_NAME) == len(SYMBOLS)


def test_an_axis_shows_the_papers_symbol() -> None:
    assert get_axis_label("eta_tilde") == r"$\tilde\eta$"


def test_an_axis_without_a_symbol_shows_its_name() -> None:
    assert get_axis_label("accuracy") == "accuracy"


def test_the_meaning_of_an_unknown_name_is_an_error() -> None:
    with expect_error(UnknownName, name="eta_tild", hint="eta_tilde"):
        describe_symbol("eta_tild")


@pytest.mark.parametrize("shape", ["table", "markdown", "csv", "json"])
def test_every_shape_shows_every_symbol(shape: str) -> None:
    answer = CliRunner().invoke(app, ["notation", "--format", shape])
    assert answer.exit_code == 0
    assert all(symbol.name in answer.output and symbol.plain in answer.output for symbol in SYMBOLS)


def test_json_carries_the_tex() -> None:
    found = json.loads(CliRunner().invoke(app, ["notation", "--format", "json"]).output)
    assert [row["tex"] for row in found] == [symbol.tex for symbol in SYMBOLS]


def test_csv_is_one_table() -> None:
    found = list(csv.DictReader(io.StringIO(CliRunner().invoke(app, ["notation", "--format", "csv"]).output)))
    assert [row["here"] for row in found] == [symbol.name for symbol in SYMBOLS]


KEY_PAGE = Path(__file__).parents[2] / "docs/experiments.md"
TABLE = re.compile(r"(?<=<!-- keys -->\n).*?(?=<!-- end of keys -->)", re.S)


def format_default(key: SpecKey) -> str:
    if key.default in (None, ()):
        return ""
    return f"`{str(key.default).lower() if isinstance(key.default, bool) else key.default}`"


def format_key_table() -> str:
    rows = [f"| `{key.name}` | {key.description} | {format_default(key)} |\n" for key in KEYS.values()]
    return "| key | meaning | default |\n|---|---|---|\n" + "".join(rows)


def test_the_table_of_keys_is_that_of_the_spec() -> None:
    assert TABLE.findall(KEY_PAGE.read_text(encoding="utf-8")) == [format_key_table()]


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


if __name__ == "__main__":
    KEY_PAGE.write_text(TABLE.sub(lambda _: format_key_table(), KEY_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
