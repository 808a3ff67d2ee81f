"""Tables in LaTeX: nothing is lost, and LaTeX finds no part too wide or too long."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from splitrelay.cli.main import app
from splitrelay.errors import InputError
from splitrelay.reports.latex import MAX_LINES, escape, format_latex
from splitrelay.table import Heading, Piece, Table, get_pieces
from tests.support.run_directories import write_run


def grid(rows: int, groups: int, columns: int, *, beside: bool = False, name: str = "variant") -> Table:
    """Like the accuracy table: every cell is another number, the first ones are bold."""
    heads = [Heading("setting"), Heading("data"), Heading("K", is_numeric=True), *[Heading("")] * beside]
    heads += [Heading(f"{name} {j}", f"ExDir({g}, 10)") for g in range(groups) for j in range(columns)]
    made = []
    for i in range(rows):
        label = [("cross-device, M=500, S=10" if i == 0 else ""), ("" if i % 3 else f"set{i}"), str(i)]
        for mark in ("ours", "paper") if beside else ("",):
            numbers = [f"{10 + i}.{1000 + k}{mark[:1]}" for k in range(groups * columns)]
            cells = [(Piece(number, k == 0), Piece(" ± 0.25 (15)")) for k, number in enumerate(numbers)]
            made.append([*(label if mark != "paper" else [""] * 3), *[mark] * beside, *cells])
    return Table(heads, made, caption="A table.", name="grid")


def listing(rows: int, path: str = "results/sweep/cross-device-mnist-c1-k10-ssl-seed1234") -> Table:
    """Like the table of runs: many columns without groups, a long path at the end."""
    heads = [Heading(f"key{j}", is_numeric=True) for j in range(9)] + [Heading("hash", is_label=True), Heading("run")]
    numbers = [[f"{i}.{100 + j}" for j in range(9)] for i in range(rows)]
    made = [[*row, f"{i:012x}", f"{path}-{i}"] for i, row in enumerate(numbers)]
    return Table(heads, made, caption="Many runs.", name="runs")


TABLES = [
    grid(1, 1, 2), grid(3, 2, 2), grid(8, 2, 4), grid(1, 1, 16), grid(8, 3, 7, beside=True), grid(60, 2, 3),
    grid(2, 2, 3, name="SSL (order=consumed, gamma=1.5, momentum=0.9)"), listing(3), listing(120),
]  # fmt: skip


LABELS = {"setting", "data", "K", "hash"}


def tabulars(text: str) -> list[str]:
    return re.findall(r"\\begin\{tabular\}.*?\\end\{tabular\}", text, re.DOTALL)


def columns_of(body: str) -> int:
    """How many columns the preamble of a tabular declares."""
    line = body.splitlines()[0].removeprefix("\\begin{tabular}{").removesuffix("}")
    return len(re.sub(r"p\{\w+\}", "p", line))


@pytest.mark.parametrize("table", TABLES)
def test_every_line_has_a_cell_for_each_column(table: Table) -> None:
    text = format_latex(table)
    for body in tabulars(text):
        for line in (line for line in body.splitlines() if line.endswith("\\tabularnewline")):
            spans = sum(int(width) - 1 for width in re.findall(r"\\multicolumn\{(\d+)\}", line))
            assert line.count("&") + 1 + spans == columns_of(body)
    bare = re.sub(r"\\[{}]", "", text)
    assert text.isascii() and bare.count("{") == bare.count("}") and text.count("$") % 2 == 0
    begins, ends = (re.findall(rf"\\{word}{{(\w+)}}", text) for word in ("begin", "end"))
    assert sorted(begins) == sorted(ends)


@pytest.mark.parametrize("table", TABLES)
def test_every_number_is_in_the_table_once(table: Table) -> None:
    found = re.findall(r"\d+\.\d+[op]?", format_latex(table))
    telling = [j for j, heading in enumerate(table.headings) if heading.group or "key" in heading.name]
    numbers = [get_pieces(row[j])[0].text for row in table.rows for j in telling]
    assert numbers and all(found.count(number) == 1 for number in numbers)


@pytest.mark.parametrize("table", TABLES)
def test_every_part_begins_with_the_labels_of_the_rows(table: Table) -> None:
    labels = [heading.name for heading in table.headings if heading.name in LABELS]
    for body in tabulars(format_latex(table)):
        names = next(line for line in body.splitlines() if line.endswith("\\tabularnewline") and "multicol" not in line)
        assert [name for name in re.findall(r"\w+", names) if name in LABELS] == labels


def test_a_small_table_is_one_tabular_with_its_caption_and_groups() -> None:
    text = format_latex(grid(3, 2, 2))
    for part in ("\\begin{table}", "\\toprule", "\\bottomrule", "\\caption{A table.}", "\\label{tab:grid}"):
        assert text.count(part) == 1
    assert "{llrcccc}" in text and "\\cmidrule(lr){4-5}\\cmidrule(lr){6-7}" in text
    assert "\\textbf{10.1000} $\\pm$ 0.25 (15)" in text


def test_rules_divide_blocks_of_rows() -> None:
    blocks = Table(("x", "y"), [["a", "1"], ["", "2"], ["b", "3"]])
    single = Table(("x", "y"), [["a", "1"], ["b", "2"], ["c", "3"]])
    assert [format_latex(table).count("\\midrule") for table in (blocks, single)] == [2, 1]


def test_a_long_table_continues_and_each_page_names_its_first_row() -> None:
    pages = format_latex(grid(40, 1, 2, beside=True)).split("\\begin{table}")[1:]
    assert len(pages) > 1 and all("(continued)" in page for page in pages[1:]) and "(continued)" not in pages[0]
    for page in pages:
        assert "cross-device" in page and re.search(r"set\d+", page)
        assert page.count("\\tabularnewline") <= MAX_LINES + 2


def test_a_page_begins_with_a_row_that_has_a_label_if_there_is_one() -> None:
    rows = [[f"block {i // 3}" if i % 3 == 0 else "", str(i)] for i in range(50)]
    pages = tabulars(format_latex(Table(("x", "y"), rows)))
    firsts = [next(line for line in page.splitlines() if "block" in line) for page in pages]
    assert len(pages) == 2 and int(firsts[1].split("&")[1].split()[0]) % 3 == 0


def test_a_long_text_is_broken_where_its_parts_are_joined() -> None:
    text = format_latex(Table(("what", "where"), [["a b", "some/long-path_of/" * 9]], name="notes"))
    assert re.search(r"\{lp\{\d+em\}\}", text)
    assert "\\raggedright some/\\allowbreak{}long-\\allowbreak{}path\\_\\allowbreak{}of/" in text


def test_a_table_is_shrunk_to_the_text_or_to_the_width_asked_for(tmp_path: Path) -> None:
    assert "\\ifdim\\width>\\linewidth \\linewidth\\else" in format_latex(grid(1, 1, 2))
    write_run(tmp_path / "runs/ssl", [0.1, 0.5, 0.7])
    out, words = tmp_path / "table.tex", ["table", "accuracy", str(tmp_path / "runs")]
    assert CliRunner().invoke(app, [*words, "--out", str(out), "--width", "252"]).exit_code == 0
    assert "--width 252" in (tmp_path / "table.tex.json").read_text()
    assert "\\ifdim\\width>252pt 252pt\\else" in out.read_text()
    assert isinstance(CliRunner().invoke(app, [*words, "--width", "300"]).exception, InputError)


def test_a_minus_is_set_before_a_number_only() -> None:
    assert escape("-0.79 ± 5.17, cross-silo, 2026-11-16, (-)") == (r"$-$0.79 $\pm$ 5.17, cross-silo, 2026-11-16, (-)")


def test_special_characters_are_escaped() -> None:
    assert escape("50 % a_b & {#} ~^\\ $") == (
        r"50 \% a\_b \& \{\#\} \textasciitilde{}\textasciicircum{}\textbackslash{} \$"
    )
    assert escape("± † η") == r"$\pm$ $^\dagger$ $\eta$"


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs a LaTeX")
def test_latex_finds_nothing_too_wide_or_too_long(tmp_path: Path) -> None:
    body = "\n\\clearpage\n".join(format_latex(table) for table in TABLES)
    head = "\\documentclass{article}\n\\usepackage{booktabs,graphicx}\n\\begin{document}"
    (tmp_path / "all.tex").write_text(f"{head}\n{body}\n\\end{{document}}\n")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 0
    log = (tmp_path / "all.log").read_text(encoding="latin-1")
    assert "Overfull" not in log and "too large" not in log
