"""A record that is damaged: said by file and line, with the way out, by whatever reads it."""

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from splitrelay.cli.main import app
from splitrelay.errors import InputError, UnknownName
from splitrelay.runs.compare import compare, verify
from splitrelay.runs.records import publish, run_at
from splitrelay.runs.run_directory import RunDirectory, format_resume_command, load_rows
from tests.support.error_fields import expect_error
from tests.support.run_directories import row, write_run

WHOLE = [json.dumps(row(r, 0.1 * r)) for r in range(4)]
HURT = {
    "cut in the middle": '{"round": 2, "test_acc',
    "other letters": "\xff\xfe",
    "no row": "[1, 2]",
    "a field lost": '{"round": 2}',
    "no number": WHOLE[2].replace('"round": 2', '"round": "two"'),
    "twice": WHOLE[1],
}


def hurt(path: Path, line: str, at: int = 2) -> Path:
    write_run(path, [0.0, 0.1, 0.2, 0.3])
    lines = [*WHOLE[:at], line, *WHOLE[at + 1 :]]
    (path / "rounds.jsonl").write_bytes(("\n".join(lines) + "\n").encode("latin-1"))
    return path


def refused(*words: str) -> str:
    error = CliRunner().invoke(app, list(words)).exception
    assert isinstance(error, InputError), error
    return str(error)


@pytest.mark.parametrize("how", HURT)
def test_damage_is_said_with_its_line_and_the_way_out(tmp_path: Path, how: str) -> None:
    with pytest.raises(InputError) as caught:
        load_rows(hurt(tmp_path / "run", HURT[how]))
    assert "run/rounds.jsonl, line 3:" in caught.value.what
    command = f"splitrelay run {tmp_path}/run/spec.toml --out {tmp_path}/run --from-scratch"
    assert str(caught.value).endswith(command)


def test_whoever_reads_rows_from_the_directory_itself_hears_it_too(tmp_path: Path) -> None:
    with expect_error(InputError, what=("rounds.jsonl", "line 3"), hint="--from-scratch"):
        RunDirectory(hurt(tmp_path / "run", "{")).read_rows()


def test_a_half_written_last_line_is_no_damage(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [0.0, 0.1])
    with (tmp_path / "run/rounds.jsonl").open("a") as file:
        file.write('{"round": 2, "test_acc')
    assert [row["round"] for row in load_rows(tmp_path / "run")] == [0, 1]


@pytest.mark.parametrize(
    "words",
    [
        ("verify",),
        ("show",),
        ("report",),
        ("table", "accuracy"),
        ("table", "runs"),
        ("publish", "--to", "published"),
        ("figure", "curves", "--out", "curves.png"),
        ("run", "engine=reference", "--out"),
    ],
)
def test_every_reader_says_so(tmp_path: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    hurt(tmp_path / "run", "{")
    assert "run/rounds.jsonl, line 3:" in refused(*words, "run")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


@pytest.mark.parametrize(
    "content", [gzip.compress("\n".join(WHOLE).encode(), mtime=0)[:-9], b"junk"], ids=["cut off", "another file"]
)
def test_a_published_record_is_to_be_had_again(tmp_path: Path, content: bytes) -> None:
    write_run(tmp_path / "run", [0.0, 0.1])
    (tmp_path / "run/rounds.jsonl").unlink()
    (tmp_path / "run/rounds.jsonl.gz").write_bytes(content)
    with expect_error(InputError, what=str(tmp_path / "run/rounds.jsonl.gz"), hint=True):
        load_rows(tmp_path / "run")


def test_a_record_that_ends_before_its_run_is_not_verified(tmp_path: Path) -> None:
    """Rows are on the disk before the checkpoint of their round: without them it was cut afterwards."""
    run = write_run(tmp_path / "run", [0.0, 0.1, 0.2])
    (tmp_path / "run/checkpoints").mkdir()
    (tmp_path / "run/checkpoints/000004.json").write_text("{}")
    with expect_error(InputError, what=("rounds.jsonl", "line 3", "round 4"), hint="--from-scratch"):
        next(verify(run, tmp_path / "again"))


def test_a_published_record_that_ends_early_is_not_verified(tmp_path: Path) -> None:
    write_run(tmp_path / "runs/run", [0.0, 0.1, 0.2])
    for name in ("model.safetensors", "model.sha256", "environment.json"):
        (tmp_path / "runs/run" / name).write_text("{}")
    publish(tmp_path / "runs", tmp_path / "out")
    cut = "\n".join(WHOLE[:2]) + "\n"
    (tmp_path / "out/run/rounds.jsonl.gz").write_bytes(gzip.compress(cut.encode()))
    with expect_error(InputError, what=("rounds.jsonl.gz", "line 2", "round 1 of 2"), hint=True):
        next(verify(run_at(tmp_path / "out/run"), tmp_path / "again"))


@pytest.mark.parametrize("rows", [[], [0.1]])
def test_where_no_round_is_there_nothing_is_verified(tmp_path: Path, rows: list[float]) -> None:
    run = write_run(tmp_path / "run", rows, "R=3")
    with expect_error(InputError, what=("rounds.jsonl", "round 0"), hint="splitrelay run"):
        next(verify(run, tmp_path / "again"))


def test_runs_without_a_round_in_common_are_not_compared(tmp_path: Path) -> None:
    runs = write_run(tmp_path / "one", [], "R=3"), write_run(tmp_path / "other", [0.1, 0.2])
    with expect_error(InputError, what=("one", "other"), hint=("one has 0 rows", "other has 2 rows")):
        compare(*runs)


def test_an_environment_that_is_damaged_is_named(tmp_path: Path) -> None:
    runs = write_run(tmp_path / "one", [0.1, 0.2]), write_run(tmp_path / "other", [0.1, 0.2])
    (tmp_path / "one/environment.json").write_text("{")
    with expect_error(InputError, what="one/environment.json", hint=True):
        compare(*runs)


def test_a_table_of_runs_that_have_not_begun_says_so(tmp_path: Path) -> None:
    write_run(tmp_path / "bare", [0.1], "R=3")
    assert "none of these runs has a round yet" in refused("table", "accuracy", str(tmp_path))
    write_run(tmp_path / "begun", [0.1, 0.2], "seed=666")
    answer = CliRunner().invoke(app, ["table", "accuracy", str(tmp_path)])
    assert answer.exit_code == 0 and f"{tmp_path}/bare\n" in answer.stderr


@pytest.mark.parametrize("words", [("figure", "curvs"), ("figure", "curvs", "runs"), ("table", "curvs")])
def test_an_unknown_kind_comes_before_what_is_missing(words: tuple[str, ...]) -> None:
    error = CliRunner().invoke(app, list(words)).exception
    assert isinstance(error, UnknownName) and f"unknown {words[0]} 'curvs'" in str(error)


def test_a_round_that_is_not_compared_is_no_beginning(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [0.0, 0.1, 0.2, 0.3])
    with expect_error(InputError, value=3, limit=("--from", "2")):
        next(verify(run, tmp_path / "again", start=3, rounds=2))


def test_a_folder_of_runs_is_no_run_but_names_them(tmp_path: Path) -> None:
    for name in "abcd":
        write_run(tmp_path / name, [0.0, 0.1])
    named = ", ".join(str(tmp_path / name) for name in "abc")
    assert refused("verify", str(tmp_path)).endswith(f"is not the directory of a run. Runs in it: {named}, ...")


def test_records_are_not_published_among_their_own_runs(tmp_path: Path) -> None:
    write_run(tmp_path / "runs/run", [0.0, 0.1])
    for target in (tmp_path / "runs", tmp_path / "runs/published"):
        assert "Choose another --to" in refused("publish", str(tmp_path / "runs"), "--to", str(target))


def test_a_file_is_no_folder_of_runs(tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text("")
    assert "spec.toml is a file, not a folder of runs" in refused("show", str(tmp_path / "spec.toml"))


def test_what_to_type_is_quoted(tmp_path: Path) -> None:
    assert format_resume_command(tmp_path / "two words").endswith(f" --out '{tmp_path}/two words'")
