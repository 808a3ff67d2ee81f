"""Tables in their four shapes, and the words key=value."""

import json

import pytest
from click.testing import CliRunner

from splitrelay.cli.lazy import Command
from splitrelay.cli.output import Table, aligned, cell, emit, tick
from splitrelay.cli.settings import Key, count, number, parsed

KEYS = (Key("R", count), Key("eta", number))


def test_a_mark_that_combines_takes_no_column() -> None:
    tilde, plain = aligned(Table(("a", "b"), [("η̃", "x"), ("μ", "x")])).splitlines()[1:]
    assert tilde.replace("̃", "") == plain.replace("μ", "η")


def test_a_table_wider_than_the_page_repeats_its_leading_columns() -> None:
    table = Table(("K", "R", "first", "second"), [(1, 2, "x" * 20, "y" * 20)], lead=2)
    first, second = aligned(table, width=30).split("\n\n")
    assert first.split() == ["K", "R", "first", "1", "2", "x" * 20]
    assert second.split() == ["K", "R", "second", "1", "2", "y" * 20]


def test_markdown_keeps_its_columns_apart_and_says_its_title(capsys: pytest.CaptureFixture[str]) -> None:
    emit(Table(("a",), [("||x||",)], "Title\nmore", ["note"]), None, "markdown")
    assert capsys.readouterr().out == "**Title**\n\nmore\n\n| a |\n| --- |\n| \\|\\|x\\|\\| |\n\nnote\n"


def test_nothing_is_a_dash_in_a_table_empty_in_csv_and_null_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    nan = float("nan")
    assert [cell(value) for value in (None, nan, "", 0.0)] == ["-", "-", "", "0"]
    emit(Table(("a", "b", "c"), [(None, nan, 1)]), None, "csv")
    emit(Table((), ()), [None, nan, float("inf")], "json")
    text, answer = capsys.readouterr().out.split("\n", 2)[1:]
    assert text == ",,1"
    assert json.loads(answer) == [None, None, "inf"]


def test_ticks_are_signs_where_the_output_can_carry_them() -> None:
    assert {tick(True), tick(False)} in ({"✓", "✗"}, {"yes", "NO"})


def test_a_range_that_does_not_say_how_many_takes_what_the_caller_says() -> None:
    assert len(parsed(["eta=1:2"], KEYS, points=7)["eta"]) == 7
    assert len(parsed(["eta=1:2:lin:3"], KEYS, points=7)["eta"]) == 3
    assert parsed(["R=1:3"], KEYS, points=100)["R"] == [1, 2, 3]


def test_a_command_lists_its_keys() -> None:
    command = Command("some", keys=[Key("R", count, "rounds")], example="some R=1")
    text = CliRunner().invoke(command, ["--help"]).output
    assert "Keys:\n  R  rounds\n" in text
    assert text.rstrip().endswith("some R=1")
