"""Errors of wrong calls, errors in the user's own code, the printed tables, and the arguments KEY=VALUE."""

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import emit, format_tick, prepare_folder
from splitrelay.cli.key_values import Key, count, number, parse_settings
from splitrelay.cli.main import app, explain_error, run
from splitrelay.data.partition_schemes import draw_partition
from splitrelay.errors import InputError, OutOfRange, OutputError
from splitrelay.models import get_model_spec
from splitrelay.objectives.losses import get_loss
from splitrelay.runs.build import get_device
from splitrelay.runs.registry import algorithm
from splitrelay.table import Table
from tests.support.error_fields import expect_error

LABELS = np.arange(20) % 2
WRONG: dict[str, Callable[[Any], Any]] = {
    "partition": lambda value: draw_partition(value, LABELS, M=2),
    "algorithm": algorithm,
    "device": get_device,
    "model": lambda value: get_model_spec(value, (1, 8, 8), 2),
    "loss": get_loss,
    "M": lambda value: draw_partition("iid", LABELS, M=value),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("value", [None, 3.5, ["ssl"]])
def test_wrong_type_is_an_input_error(name: str, value: Any) -> None:
    with pytest.raises(InputError):
        WRONG[name](value)


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("build_fails", "def net():\n    return 1 / 0\n", 2),
        ("import_fails", "x = 1\nx.missing_name_of_an_int\n\n\ndef net():\n    pass\n", 2),
        ("syntax_fails", "def net(:\n", 1),
    ],
)
def test_error_in_own_model_names_file_and_line(
    name: str, text: str, line: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"{name}.py").write_text(text)
    error = CliRunner().invoke(app, ["run", "data=digits", f"model={name}:net", "R=1"]).exception
    assert isinstance(error, Exception)
    message, code = explain_error(error)
    assert f"{name}.py, line {line}" in message and "report it" not in message and code != 0


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A spec, a folder that holds one, and one that does not."""
    monkeypatch.chdir(tmp_path)
    Path("first.toml").write_text('algorithm = "ssl"\n')
    for folder in ("a run", "empty"):
        Path(folder).mkdir()
    Path("a run/spec.toml").write_text("")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("run", "frst.toml"), "there is no spec frst.toml. Did you mean 'first.toml'?"),
        (("run", "empty/first.toml"), "there is no spec empty/first.toml. splitrelay new NAME"),
        (("run", "first.toml", "R"), "run takes one spec; got first.toml R. Settings are KEY=VALUE."),
        (("run", "a run"), "splitrelay run 'a run/spec.toml' --out 'a run'"),
        (("run", "empty"), "empty is a folder, not a spec"),
        (("sweep",), "there is nothing to sweep"),
        (("sweep", "eta=0.1:0.3:logg"), "eta=0.1:0.3:logg is not a range. Ranges: from:to, from:to:log"),
        (("reproduce",), "there is nothing to reproduce. For example"),
        (("reproduce", "R=3"), "there is nothing to reproduce. For example"),
        (("cost", "algorithm=fedavgg"), "unknown algorithm 'fedavgg'. Did you mean 'fedavg'?"),
        (("cost", "--algorithm", "sls"), "unknown algorithm 'sls'. Did you mean 'ssl'?"),
    ],
)
def test_a_slip_is_said(words: tuple[str, ...], says: str) -> None:
    before = sorted(Path().rglob("*"))
    error = CliRunner().invoke(app, list(words)).exception
    assert isinstance(error, InputError) and says in str(error)
    assert sorted(Path().rglob("*")) == before


def test_the_next_command_can_be_typed_as_it_stands() -> None:
    assert "next: splitrelay run 'two words.toml'" in CliRunner().invoke(app, ["new", "two words"]).stderr


KEYS = (Key("R", count), Key("eta", number))


@pytest.mark.parametrize("shape", ["table", "csv", "markdown", "json"])
def test_every_format_prints_one_line_break_at_the_end(shape: str, capsys: pytest.CaptureFixture[str]) -> None:
    emit(Table(("a",), [(1,)]), {"a": 1}, shape)
    out = capsys.readouterr().out
    assert out.endswith("\n") and not out.endswith("\n\n")


def test_ticks_are_signs_where_the_output_can_carry_them() -> None:
    assert {format_tick(True), format_tick(False)} in ({"✓", "✗"}, {"yes", "NO"})


def test_a_range_that_does_not_say_how_many_takes_what_the_caller_says() -> None:
    assert len(parse_settings(["eta=1:2"], KEYS, points=7)["eta"]) == 7
    assert len(parse_settings(["eta=1:2:lin:3"], KEYS, points=7)["eta"]) == 3
    assert parse_settings(["R=1:3"], KEYS, points=100)["R"] == [1, 2, 3]


def test_a_command_lists_its_keys() -> None:
    command = Command("some", keys=[Key("R", count, "rounds")], example="some R=1")
    text = CliRunner().invoke(command, ["--help"]).output
    assert "Keys:\n  R  rounds\n" in text
    assert text.rstrip().endswith("some R=1")


def test_a_range_of_a_thousand_million_points_is_refused_at_once() -> None:
    with expect_error(OutOfRange, what="R", value="1,000,000,000", limit="1,000,000"):
        parse_settings(["R=1:1e9:log:1e9"], KEYS)


def test_a_key_given_twice_is_sent_to_a_list_only_where_it_may_be_one() -> None:
    with expect_error(InputError, what="R", hint="R=a,b"):
        parse_settings(["R=1", "R=2"], [Key("R", count)])
    with expect_error(InputError, what="R", hint=True) as found:
        parse_settings(["R=1", "R=2"], [Key("R", count, many=False)])
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
