"""Tables in LaTeX fit on a page: whatever they hold, no part is too wide, none too long, and nothing is lost."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from splitrelay.cli.main import app
from splitrelay.errors import InputError
from splitrelay.reports.latex_fitting import FOOTNOTE, SMALL, Column, Fit, broken, em, in_parts, side_by_side, width
from splitrelay.reports.latex_typeset import HIGH, latex, typeset
from splitrelay.reports.table import Head, Piece, Sheet, entry
from tests.support.run_directories import write_run

WIDTHS = (240.0, 345.0, 397.0)


def grid(rows: int, groups: int, columns: int, *, beside: bool = False, name: str = "variant") -> Sheet:
    """Like the accuracy table: every cell is another number, the first ones are bold."""
    heads = [Head("setting"), Head("data"), Head("K", numeric=True), *[Head("")] * beside]
    heads += [Head(f"{name} {j}", f"ExDir({g}, 10)") for g in range(groups) for j in range(columns)]
    made = []
    for i in range(rows):
        label = [entry("cross-device, M=500, S=10" if i == 0 else ""), entry("" if i % 3 else f"set{i}"), entry(i)]
        for mark in ("ours", "paper") if beside else ("",):
            numbers = [f"{10 + i}.{1000 + k}{mark[:1]}" for k in range(groups * columns)]
            cells = [(Piece(number, k == 0), Piece(" ± 0.25 (15)")) for k, number in enumerate(numbers)]
            made.append([*(label if mark != "paper" else [entry("")] * 3), *[entry(mark)] * beside, *cells])
    return Sheet("grid", "A table.", heads, made)


def listing(rows: int, path: str = "results/sweep/cross-device-mnist-c1-k10-ssl-seed1234") -> Sheet:
    """Like the table of runs: many columns without groups, a long path at the end."""
    heads = [Head(f"key{j}", numeric=True) for j in range(9)] + [Head("hash", names=True), Head("run")]
    numbers = [[entry(f"{i}.{100 + j}") for j in range(9)] for i in range(rows)]
    made = [[*row, entry(f"{i:012x}"), entry(f"{path}-{i}")] for i, row in enumerate(numbers)]
    return Sheet("runs", "Many runs.", heads, made)


SHEETS = [
    grid(1, 1, 2), grid(3, 2, 2), grid(8, 2, 4), grid(1, 1, 16), grid(8, 3, 7, beside=True), grid(60, 2, 3),
    grid(2, 2, 3, name="SSL (order=consumed, gamma=1.5, momentum=0.9)"), listing(3), listing(120),
]  # fmt: skip


def tabulars(text: str) -> list[str]:
    return re.findall(r"\\begin\{tabular\}.*?\\end\{tabular\}", text, re.DOTALL)


@pytest.mark.parametrize("page", WIDTHS)
@pytest.mark.parametrize("sheet", SHEETS)
def test_no_part_is_wider_than_the_page_and_no_page_is_too_long(sheet: Sheet, page: float) -> None:
    table = typeset(sheet, page)
    assert all(width(table.columns, table.fit, part) <= page for part in table.fit.parts)
    for found in table.pages():
        assert sum(table.height(part, rows) for part, rows in found) < HIGH


@pytest.mark.parametrize("page", WIDTHS)
@pytest.mark.parametrize("sheet", SHEETS)
def test_every_number_stands_in_the_table_once(sheet: Sheet, page: float) -> None:
    found = re.findall(r"\d+\.\d+[op]?", latex(sheet, page))
    telling = [j for j, head in enumerate(sheet.heads) if head.group or "key" in head.name]
    numbers = [row[j][0].text for row in sheet.rows for j in telling]
    assert numbers and all(found.count(number) == 1 for number in numbers)


def test_a_table_that_is_narrow_enough_is_left_as_it_is() -> None:
    text = latex(grid(2, 1, 2), page=450)
    assert "\\small" in text and "{llrcc}" in text and "shortstack" not in text


def test_the_setting_goes_above_its_rows_before_letters_get_smaller() -> None:
    text = latex(grid(3, 1, 3), page=380)
    assert "\\small" in text and len(tabulars(text)) == 1
    assert "\\multicolumn{5}{l}{\\emph{cross-device, M=500, S=10}}" in text


def test_one_row_of_many_columns_is_turned() -> None:
    (body,) = tabulars(latex(grid(1, 1, 16)))
    rows = [line for line in body.splitlines() if "& variant" in line]
    assert len(rows) == 16 and rows[3].startswith(" & variant 3 & 10.1003")


def test_turned_rows_that_belong_together_share_a_heading() -> None:
    turned = grid(2, 1, 3, beside=True).turned()
    assert [head.full for head in turned.heads][2:] == [
        f"cross-device, M=500, S=10, set0, K={i} {mark}" for i in (0, 1) for mark in ("ours", "paper")
    ]
    numbers = ["10.1001o", "10.1001p", "11.1001o", "11.1001p"]
    assert [cell[0].text for cell in turned.rows[1]] == ["", "variant 1", *numbers]


def test_parts_begin_with_what_names_a_row_and_keep_groups_whole() -> None:
    columns = [Column("data", width=4, names=True)]
    columns += [Column("x", f"group {g}", width=7) for g in range(3) for _ in range(2)]
    assert in_parts(columns, False, SMALL, 250).parts == ((0, 1, 2), (0, 3, 4), (0, 5, 6))
    assert in_parts(columns, False, SMALL, 345).parts == ((0, 1, 2, 3, 4), (0, 5, 6))


def test_a_group_that_is_too_wide_is_dealt_out_evenly_and_shares_no_part() -> None:
    columns = [Column("data", width=4, names=True), *[Column("x", "wide", 7)] * 4, Column("y", "narrow", 3)]
    assert in_parts(columns, False, FOOTNOTE, 250).parts == ((0, 1, 2), (0, 3, 4), (0, 5))


def test_rows_that_say_nothing_in_a_part_are_left_out_of_it() -> None:
    """Three parts of four columns, each of which has values in another row."""
    heads = [Head("data", names=True), Head("K", numeric=True, names=True), *(Head(f"column {j}") for j in range(12))]
    values = [[f"{j}.5 is a value" if j // 4 == i else "" for j in range(12)] for i in range(3)]
    rows = [list(map(entry, ["own" if i == 0 else "", 5 + i, *row])) for i, row in enumerate(values)]
    bodies = tabulars(latex(Sheet("sparse", "Sparse.", heads, rows)))
    assert [re.findall(r"(\d) & \d+.5 is a value", body) for body in bodies] == [["5"], ["6"], ["7"]]
    assert [body.count("own") for body in bodies] == [1, 1, 1]


def test_a_long_text_is_broken_where_its_parts_are_joined() -> None:
    text = latex(Sheet("notes", "N.", [Head("what"), Head("where")], [[entry("a b"), entry("some/long-path_of/" * 9)]]))
    assert re.search(r"\{lp\{\d+pt\}\}", text)
    assert "\\raggedright some/\\allowbreak{}long-\\allowbreak{}path\\_\\allowbreak{}of/" in text
    assert text.count("\\tabularnewline") == 2  # \\ would end a line within the cell


def test_a_long_table_goes_on_and_no_page_begins_in_the_middle_of_a_row() -> None:
    text = latex(grid(40, 1, 2, beside=True), page=397)
    pages = text.split("\\begin{table}")[1:]
    assert len(pages) > 1 and text.count("\\label{") == 1
    assert all("(continued)" in page for page in pages[1:]) and "(continued)" not in pages[0]
    for page in pages:
        rows = [line for line in page.splitlines() if "& ours &" in line or "& paper &" in line]
        assert rows and "& ours &" in rows[0] and "& paper &" in rows[-1] and "cross-device" in page


def test_where_a_page_begins_its_first_row_is_named_in_full() -> None:
    pages = latex(grid(81, 1, 2), page=397).split("\\begin{table}")[1:]
    firsts = [re.findall(r"^.*& \d+ & .*\d+\.\d+ .*$", page, re.MULTILINE)[0] for page in pages]
    assert len(pages) > 1 and all("set" in row for row in firsts)
    assert any(int(row.split("&")[-3]) % 3 for row in firsts)  # where the table itself has a blank


def test_a_heading_over_a_group_needs_its_own_room() -> None:
    columns = [Column("x", "W" * 30, width=1), Column("y", "W" * 30, width=1)]
    assert width(columns, Fit(((0, 1),)), (0, 1)) > SMALL.em * em("W" * 30)


def test_headings_are_broken_between_words() -> None:
    assert broken("SSL (order=fixed, gamma=2)", 6) == ["SSL", "(order=fixed,", "gamma=2)"]
    assert broken("SSL (order=fixed, gamma=2)", 60) == ["SSL (order=fixed, gamma=2)"]
    assert em("mmm") > em("aaa") > em("iii") and em("77", bold=True) > em("77")


def test_columns_that_fit_nowhere_have_no_way_side_by_side() -> None:
    assert side_by_side([Column("x", width=60)], False) is None
    assert side_by_side([Column("x", width=60, text=True)], False) is not None


def test_the_width_is_asked_for_and_told_with_the_runs(tmp_path: Path) -> None:
    for algorithm in ("ssl", "fedavg", "scaffold"):
        write_run(tmp_path / "runs" / algorithm, [0.1, 0.5, 0.7], f"algorithm={algorithm}")
    out, words = tmp_path / "table.tex", ["table", "accuracy", str(tmp_path / "runs")]
    for points, columns in (("252", "{ll}"), ("500", "{llrccc}")):
        assert CliRunner().invoke(app, [*words, "--out", str(out), "--width", points]).exit_code == 0
        assert f"--width {points}" in (tmp_path / "table.tex.json").read_text()
        assert columns in out.read_text()
    assert isinstance(CliRunner().invoke(app, [*words, "--width", "300"]).exception, InputError)


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs a LaTeX")
def test_latex_finds_nothing_too_wide_or_too_long(tmp_path: Path) -> None:
    body = "\n\\clearpage\n".join(latex(sheet) for sheet in SHEETS)
    text = f"\\documentclass{{article}}\n\\usepackage{{booktabs}}\n\\begin{{document}}\n{body}\n\\end{{document}}\n"
    (tmp_path / "all.tex").write_text(text)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 0
    log = (tmp_path / "all.log").read_text(encoding="latin-1")
    assert "Overfull" not in log and "too large" not in log
