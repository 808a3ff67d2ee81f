"""Records in folders and archives: both read the same, and damage is reported with file and line."""

import gzip
import io
import json
import lzma
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from splitrelay.cli.main import app
from splitrelay.errors import InputError, UnknownName
from splitrelay.reports.html_report import write_report
from splitrelay.runs import packed_records
from splitrelay.runs.compare import compare, model_hash, verify
from splitrelay.runs.packed_records import pack_records, read_packed, read_record
from splitrelay.runs.records import has_runs, is_run, publish, read_runs, run_at, runs_under
from splitrelay.runs.run_directory import RunDirectory, format_resume_command, load_rows
from splitrelay.runs.spec import load_spec
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
    "text": WHOLE[2].replace('"test_accuracy": 0.2', '"test_accuracy": "high"'),
    "null": WHOLE[2].replace('"test_accuracy": 0.2', '"test_accuracy": null'),
    "too large": json.dumps(row(2, 0.2) | {"bytes_up": 10**400}),
    "too large in a list": json.dumps(row(2, 0.2) | {"test_per_class": [0.0, -(10**400)]}),
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
        ("track", "--to", "tensorboard:logs"),
        ("run", "engine=reference", "--out"),
    ],
)
def test_every_reader_says_so(tmp_path: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    hurt(tmp_path / "run", "[1, 2]", at=3)
    assert "run/rounds.jsonl, line 4:" in refused(*words, "run")
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


def test_a_damaged_run_hides_no_other(tmp_path: Path) -> None:
    for name in ("b", "deep/a", "cut", "wrong"):
        write_run(tmp_path / name, [0.0, 0.1])
    (tmp_path / "cut/rounds.jsonl").write_text(f"{WHOLE[0]}\n{WHOLE[1][:20]}\n{WHOLE[2]}\n")
    (tmp_path / "wrong/spec.toml").write_text('algorithm = "ssl\n')
    runs, errors = read_runs(tmp_path)
    assert list(runs) == [tmp_path / "b", tmp_path / "deep/a"] and list(errors) == [
        tmp_path / "cut",
        tmp_path / "wrong",
    ]
    assert "rounds.jsonl, line 2" in errors[tmp_path / "cut"].what and "spec.toml" in errors[tmp_path / "wrong"].what


def test_records_are_not_published_among_their_own_runs(tmp_path: Path) -> None:
    write_run(tmp_path / "runs/run", [0.0, 0.1])
    for target in (tmp_path / "runs", tmp_path / "runs/published"):
        assert "Choose another --to" in refused("publish", str(tmp_path / "runs"), "--to", str(target))


@pytest.mark.parametrize("how", ["missing", "link"])
def test_only_files_of_the_run_itself_are_published(how: str, tmp_path: Path) -> None:
    """The directory may come from somebody else. A link in it may lead to any file of the operator's host."""
    write_run(tmp_path / "runs/run", [0.0, 0.1, 0.2])
    for name in ("model.safetensors", "model.sha256", "private.json"):
        (tmp_path / "runs/run" / name).write_text("{}")
    if how == "link":
        (tmp_path / "runs/run/environment.json").symlink_to(tmp_path / "runs/run/private.json")
    with expect_error(InputError, value=str(tmp_path / "runs/run/environment.json")):
        publish(tmp_path / "runs", tmp_path / "out")


def test_a_file_is_no_folder_of_runs(tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text("")
    assert "spec.toml is a file, not a folder of runs" in refused("show", str(tmp_path / "spec.toml"))


def test_what_to_type_is_quoted(tmp_path: Path) -> None:
    assert format_resume_command(tmp_path / "two words").endswith(f" --out '{tmp_path}/two words'")


ENDS = {"best/one": [0.1, 0.5], "search/two": [0.1, 0.7]}


def write_finished(path: Path, accuracies: list[float]) -> None:
    write_run(path, accuracies)
    (path / "environment.json").write_text('{"cpu": "abacus"}')
    (path / "model.safetensors").write_bytes(b"weights")
    (path / "model.sha256").write_text("0123\n")


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """The path that stands for an archive of two finished runs."""
    for name, accuracies in ENDS.items():
        write_finished(tmp_path / "runs" / name, accuracies)
    assert publish(tmp_path / "runs", tmp_path / "evidence/tuned.tar.xz")[0] == len(ENDS)
    return tmp_path / "evidence/tuned"


def test_runs_of_an_archive_equal_the_runs_of_the_folder(packed: Path, tmp_path: Path) -> None:
    ours, theirs = runs_under(packed), runs_under(tmp_path / "runs")
    assert [run.path.relative_to(packed).as_posix() for run in ours] == list(ENDS)
    for one, other in zip(ours, theirs, strict=True):
        assert one.finished and one.spec == other.spec and one.rows == other.rows
        assert compare(one, other).environments == {} and model_hash(one.path) == "0123"
    assert not packed.exists()


def test_an_archive_is_found_from_the_folder_around_it_and_by_its_own_name(packed: Path) -> None:
    assert [run.path for run in runs_under(packed.parent)] == [packed / name for name in ENDS]
    archive = packed.with_name("tuned.tar.xz")
    assert [run.path for run in runs_under(archive)] == [archive / name for name in ENDS]
    assert [run.path for run in runs_under(packed / "best")] == [packed / "best/one"]


def test_a_spec_in_an_archive_can_be_run_again(packed: Path) -> None:
    assert load_spec(packed / "best/one/spec.toml") == run_at(packed / "best/one").spec


def test_paths_that_an_archive_does_not_hold_are_missing(packed: Path) -> None:
    assert not has_runs(packed / "bests") and not is_run(packed / "best/on") and not is_run(packed / "best")
    with pytest.raises(InputError):
        runs_under(packed / "bests")
    with pytest.raises(OSError):
        read_record(packed / "best/one/partition.npz")


def test_folder_and_archive_of_one_name_are_read_together(packed: Path) -> None:
    write_finished(packed / "best/three", [0.1, 0.9])
    assert [run.path.name for run in runs_under(packed)] == ["one", "three", "two"]


def test_an_archive_unpacks_to_the_published_folder(packed: Path, tmp_path: Path) -> None:
    publish(packed, tmp_path / "unpacked")
    publish(tmp_path / "runs", tmp_path / "folder")
    found = {p.relative_to(tmp_path / "folder"): p for p in (tmp_path / "folder").rglob("*") if p.is_file()}
    assert len(found) == 4 * len(ENDS)
    for name, file in found.items():
        assert (tmp_path / "unpacked" / name).read_bytes() == file.read_bytes()


def test_the_same_records_make_the_same_bytes(tmp_path: Path) -> None:
    records = [("b/spec.toml", b"1"), ("a/spec.toml", b"2"), ("a/rounds.jsonl", b"3")]
    pack_records(records, tmp_path / "one.tar.xz")
    pack_records(reversed(records), tmp_path / "two.tar.xz")
    assert (tmp_path / "one.tar.xz").read_bytes() == (tmp_path / "two.tar.xz").read_bytes()
    with tarfile.open(tmp_path / "one.tar.xz") as archive:
        assert archive.getnames() == ["a/rounds.jsonl", "a/spec.toml", "b/spec.toml"]
        assert {member.mtime for member in archive} == {0}


def test_an_archive_that_changed_is_read_again(tmp_path: Path) -> None:
    for content in (b"1", b"22"):
        pack_records([("a/spec.toml", content)], tmp_path / "one.tar.xz")
        assert read_packed(tmp_path / "one/a/spec.toml") == content


def test_damaged_archives_raise_an_input_error(packed: Path) -> None:
    archive = packed.with_name("tuned.tar.xz")
    whole = archive.read_bytes()
    for content in (whole[: len(whole) // 2], b"no archive", lzma.compress(b"no tar" * 500)):
        archive.write_bytes(content)
        with pytest.raises(InputError) as caught:
            runs_under(packed)
        assert str(archive) in caught.value.what


@pytest.mark.parametrize("name", ["../a/spec.toml", "/a/spec.toml", "a/../../spec.toml"])
def test_names_that_lead_out_of_an_archive_raise_an_input_error(tmp_path: Path, name: str) -> None:
    pack_records([(name, b"")], tmp_path / "one.tar.xz")
    with pytest.raises(InputError) as caught:
        runs_under(tmp_path / "one")
    assert caught.value.value == name


def test_links_in_an_archive_are_no_records(tmp_path: Path) -> None:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:xz") as archive:
        link = tarfile.TarInfo("a/spec.toml")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    (tmp_path / "one.tar.xz").write_bytes(content.getvalue())
    assert not is_run(tmp_path / "one/a")


def test_an_archive_with_too_much_content_raises_an_input_error(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_records, "MAX_BYTES", 100)
    with pytest.raises(InputError):
        runs_under(packed)


def test_a_report_needs_a_folder(packed: Path) -> None:
    for path in (packed, packed / "best/one", packed.parent):
        with pytest.raises(InputError):
            write_report(path)
    assert [path.name for path in packed.parent.rglob("*")] == ["tuned.tar.xz"]
