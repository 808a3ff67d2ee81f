"""`splitrelay data`: a table for people, JSON for programs, one line and the right code when it fails."""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

from splitrelay.cli.main import app, run
from splitrelay.data.datasets import SETS
from splitrelay.data.downloads import Folder
from tests.support.small_datasets import tiny_set, write_files


@dataclass(frozen=True)
class Answer:
    """The exit code and what went to the two streams."""

    code: object
    out: str
    err: str


class Line:
    """The command line with a small set on its list, and its folders."""

    def __init__(self, capsys: pytest.CaptureFixture[str], root: Path, source: Path) -> None:
        self.capsys, self.root, self.source = capsys, root, source

    def __call__(self, words: str) -> Answer:
        with pytest.raises(SystemExit) as left:
            run(shlex.split(words))
        return Answer(left.value.code, *self.capsys.readouterr())


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Line:
    root, source = tmp_path / "cache", tmp_path / "source"
    monkeypatch.setenv("SPLITRELAY_DATA", str(root))
    monkeypatch.setitem(SETS, "tiny", tiny_set(Folder(source)))
    monkeypatch.setitem(app.lazy, "data", ("splitrelay.cli.data:data", ""))
    return Line(capsys, root, source)


def damage(root: Path) -> None:
    file = root / "tiny" / "train-y.npy"
    file.write_bytes(file.read_bytes()[:-8] + bytes(8))


def test_the_list_says_what_is_where(line: Line) -> None:
    before = line("data list").out.splitlines()
    write_files(line.source)
    line("data get tiny")
    after = line("data list").out.splitlines()
    assert before[0].split() == ["name", "images", "shape", "classes", "size", "where"]
    assert [row.split()[0] for row in before[1:]] == ["digits", "mnist", "fashion-mnist", "cifar10", "tiny"]
    assert before[-1].endswith("12 + 6         1x20x30        3  11 kB   not here: splitrelay data get tiny")
    assert after[-1].endswith(f"11 kB   {line.root / 'tiny'}")


def test_the_list_as_json(line: Line) -> None:
    rows = {row["name"]: row for row in json.loads(line("data list --format json").out)}
    assert rows["mnist"]["images"] == [60000, 10000] and rows["cifar10"]["shape"] == [3, 32, 32]
    assert rows["mnist"]["bytes"] == 70000 * (784 + 8) and rows["tiny"]["where"] is None


def test_get_says_which_way_served(line: Line) -> None:
    write_files(line.source)
    first, second = line("data get tiny"), line("data get tiny")
    assert f"the folder {line.source}" in first.out and "tiny: tried before: cache: empty" in first.out
    assert f"tiny: trying the folder {line.source}" in first.err
    assert "the cache" in second.out and (first.code, second.code, second.err) == (0, 0, "")


def test_get_as_json(line: Line) -> None:
    write_files(line.source)
    (row,) = json.loads(line("data get tiny --format json").out)
    assert row == {
        "name": "tiny",
        "way": "folder",
        "served_by": f"the folder {line.source}",
        "folder": str(line.root / "tiny"),
        "tried": ["cache: empty"],
    }


def test_get_from_a_folder(line: Line, tmp_path: Path) -> None:
    write_files(tmp_path / "stick", packed=True)
    assert f"the folder {tmp_path / 'stick'}" in line(f"data get tiny --from {tmp_path / 'stick'}").out


def test_get_that_fails_is_one_line_with_every_way_and_the_way_out(line: Line) -> None:
    answer = line("data get tiny -q")
    assert answer.code == 1 and not answer.out and answer.err.count("\n") == 1
    assert f"no way to tiny. Tried cache: empty; folder: there is no folder {line.source}." in answer.err
    assert "splitrelay data get tiny --from FOLDER" in answer.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("data get mnst", "unknown data set 'mnst'. Did you mean 'mnist'?"),
        ("data get tiny --way foldr", "unknown way to tiny 'foldr'. Did you mean 'folder'?"),
        ("data get", "Missing argument 'NAME...'"),
        ("data check tiny", "tiny is not in"),
        ("data path tiny", "Fetch it: splitrelay data get tiny"),
        ("data lst", "unknown command 'lst'. Did you mean 'list'?"),
    ],
)
def test_wrong_input_is_one_line_and_code_2(line: Line, words: str, says: str) -> None:
    answer = line(words)
    assert answer.code == 2 and says in answer.err and answer.err.count("\n") == 1 and not answer.out


def test_a_folder_that_cannot_be_written_is_code_2(line: Line) -> None:
    line.root.write_text("")
    answer = line("data get tiny")
    assert answer.code == 2 and "cannot write to" in answer.err and "SPLITRELAY_DATA=FOLDER" in answer.err


def test_check_of_what_is_here(line: Line) -> None:
    write_files(line.source)
    line("data get tiny")
    answer = line("data check")
    assert answer.code == 0 and answer.out.count("right") == 4


def test_check_of_nothing_is_no_error(line: Line) -> None:
    assert line("data check").code == 0


def test_check_finds_damage_and_says_how_to_mend_it(line: Line) -> None:
    write_files(line.source)
    line("data get tiny")
    damage(line.root)
    answer = line("data check tiny")
    assert answer.code == 1 and "train-labels-idx1-ubyte has the wrong MD5" in answer.out
    assert answer.err == f"splitrelay: damaged in {line.root}: tiny. Fetch again: splitrelay data get tiny\n"
    assert line("data get tiny").code == 0 and line("data check tiny").code == 0


def test_check_as_json(line: Line) -> None:
    write_files(line.source)
    line("data get tiny")
    damage(line.root)
    rows = json.loads(line("data check --format json").out)
    assert [row["right"] for row in rows] == [True, False, True, True] and "wrong MD5" in rows[1]["wrong"]


def test_the_path(line: Line) -> None:
    write_files(line.source)
    line("data get tiny")
    assert line("data path").out == f"{line.root}\n" and line("data path tiny").out == f"{line.root / 'tiny'}\n"
