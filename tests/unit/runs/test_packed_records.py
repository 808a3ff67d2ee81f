"""Records of a study in one archive: read like the folder, written the same each time, refused where damaged."""

import io
import lzma
import tarfile
from pathlib import Path

import pytest

from splitrelay.errors import InputError
from splitrelay.reports.html_report import write_report
from splitrelay.runs import packed_records
from splitrelay.runs.compare import compare, model_hash
from splitrelay.runs.packed_records import pack_records, read_packed, read_record
from splitrelay.runs.records import has_runs, is_run, publish, run_at, runs_under
from splitrelay.runs.spec import load_spec
from tests.support.run_directories import write_run

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
