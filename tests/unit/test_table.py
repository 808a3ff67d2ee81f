"""One table in all formats."""

import csv
import io
import json

import pytest

from splitrelay.table import Heading, Piece, Table, format_cell, format_json, get_pieces

NAN = float("nan")
BOLD = (Piece("9", bold=True), Piece(" ± 1"))


def test_a_combining_mark_takes_no_column() -> None:
    tilde, plain = Table(("a", "b"), [("η̃", "x"), ("μ", "x")]).to_text().splitlines()[1:]
    assert tilde.replace("̃", "") == plain.replace("μ", "η")


def test_a_table_wider_than_the_terminal_repeats_its_leading_columns() -> None:
    table = Table(("K", "R", "first", "second"), [(1, 2, "x" * 20, "y" * 20)], lead=2)
    first, second = table.to_text(width=30).split("\n\n")
    assert first.split() == ["K", "R", "first", "1", "2", "x" * 20]
    assert second.split() == ["K", "R", "second", "1", "2", "y" * 20]


def test_columns_without_a_group_lead_a_table_with_groups() -> None:
    table = Table([Heading("K"), Heading("R"), Heading("x", "one"), Heading("y", "two")], [["1", "2", "x" * 20, "y"]])
    assert [block.split()[:2] for block in table.to_text(width=24).split("\n\n")] == [["K", "R"], ["K", "R"]]


def test_numbers_are_aligned_to_the_right_and_text_to_the_left() -> None:
    table = Table([Heading("n"), Heading("s"), Heading("given", is_numeric=True)], [(1, "a", "5"), (100, "bb", "50")])
    assert table.to_text().splitlines() == ["  n  s   given", "  1  a       5", "100  bb     50"]


def test_title_caption_and_names_are_emphasised_and_notes_are_not() -> None:
    table = Table(("a",), [(1,)], "T", ["note"], caption="C")
    assert table.to_text(emphasise=lambda text: f"<{text}>").splitlines() == ["<T>", "<C>", "<a>", "1", "note"]


def test_markdown_escapes_bars_and_shows_title_caption_and_notes() -> None:
    table = Table(("a", Heading("b", "g", is_numeric=True)), [("||x||", BOLD)], "Title\nmore", ["note"], caption="C.")
    assert table.to_markdown() == (
        "**Title**\n\nmore\n\nC.\n\n| a | g b |\n| --- | ---: |\n| \\|\\|x\\|\\| | **9** ± 1 |\n\nnote\n"
    )


def test_missing_values_are_a_dash_in_text_empty_in_csv_and_null_in_json() -> None:
    assert [format_cell(value) for value in (None, NAN, "", 0.0, True)] == ["-", "-", "", "0", "yes"]
    assert Table(("a", "b", "c"), [(None, NAN, 1)]).to_csv() == "a,b,c\n,,1\n"
    assert json.loads(format_json([None, NAN, float("inf"), -float("inf")])) == [None, None, "inf", "-inf"]


def test_csv_and_json_contain_the_records_behind_the_cells() -> None:
    table = Table(("shown",), [(BOLD,)], caption="C.", name="t", records=[{"a": 9.25, "b": NAN}, {"c": None}])
    assert list(csv.reader(io.StringIO(table.to_csv()))) == [["a", "b", "c"], ["9.25", "", ""], ["", "", ""]]
    assert json.loads(table.to_json()) == {
        "table": "t", "caption": "C.", "notes": [], "rows": [{"a": 9.25, "b": None}, {"c": None}],
    }  # fmt: skip


@pytest.mark.parametrize(("value", "text"), [(BOLD, "*9* ± 1"), ((1, 2), "(1, 2)"), (3, "3"), (1 / 3, "0.33333")])
def test_a_cell_is_pieces_or_a_value(value: object, text: str) -> None:
    assert format_cell(value) == text
    assert "".join(piece.text for piece in get_pieces(value)) == text.replace("*", "")
