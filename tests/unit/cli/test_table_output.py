"""Tables in their four shapes, and the words key=value."""

import errno
import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import emit, format_tick, prepare_folder
from splitrelay.cli.key_values import Key, count, number, parsed
from splitrelay.cli.main import run
from splitrelay.errors import InputError, OutOfRange, OutputError
from splitrelay.table import Table
from tests.support.error_fields import expect_error

KEYS = (Key("R", count), Key("eta", number))


@pytest.mark.parametrize("shape", ["table", "csv", "markdown", "json"])
def test_every_format_prints_one_line_break_at_the_end(shape: str, capsys: pytest.CaptureFixture[str]) -> None:
    emit(Table(("a",), [(1,)]), {"a": 1}, shape)
    out = capsys.readouterr().out
    assert out.endswith("\n") and not out.endswith("\n\n")


def test_ticks_are_signs_where_the_output_can_carry_them() -> None:
    assert {format_tick(True), format_tick(False)} in ({"✓", "✗"}, {"yes", "NO"})


def test_a_range_that_does_not_say_how_many_takes_what_the_caller_says() -> None:
    assert len(parsed(["eta=1:2"], KEYS, points=7)["eta"]) == 7
    assert len(parsed(["eta=1:2:lin:3"], KEYS, points=7)["eta"]) == 3
    assert parsed(["R=1:3"], KEYS, points=100)["R"] == [1, 2, 3]


def test_a_command_lists_its_keys() -> None:
    command = Command("some", keys=[Key("R", count, "rounds")], example="some R=1")
    text = CliRunner().invoke(command, ["--help"]).output
    assert "Keys:\n  R  rounds\n" in text
    assert text.rstrip().endswith("some R=1")


def test_a_range_of_a_thousand_million_points_is_refused_at_once() -> None:
    with expect_error(OutOfRange, what="R", value="1,000,000,000", limit="1,000,000"):
        parsed(["R=1:1e9:log:1e9"], KEYS)


def test_a_key_given_twice_is_sent_to_a_list_only_where_it_may_be_one() -> None:
    with expect_error(InputError, what="R", hint="R=a,b"):
        parsed(["R=1", "R=2"], [Key("R", count)])
    with expect_error(InputError, what="R", hint=True) as found:
        parsed(["R=1", "R=2"], [Key("R", count, many=False)])
    assert "R=a,b" not in str(found.value.hint)


def test_a_folder_below_a_file_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with expect_error(OutputError, what=str(tmp_path / "file" / "folder"), value=os.strerror(errno.ENOTDIR), hint=True):
        prepare_folder(tmp_path / "file" / "folder")


def test_a_folder_that_is_not_there_is_made_and_left_empty(tmp_path: Path) -> None:
    prepare_folder(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


@pytest.mark.parametrize("line", ["theory errata 1 2", "completion", "notation --fomat x"])
def test_a_wrong_call_ends_in_sentences(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(line.split())
    assert re.search(r"[^.?][.?] See: splitrelay ", capsys.readouterr().err)
