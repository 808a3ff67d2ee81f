"""The cache: where it is, mapped memory, damage noticed, folders that appear whole."""

import mmap
from pathlib import Path

import numpy as np
import pytest

from splitrelay.data import load, save
from splitrelay.data.cache import build_dataset, check_files, get_cache_folder, get_data_folder, is_cached, map_arrays
from splitrelay.data.dataset_formats import Idx
from splitrelay.data.images import DataSet
from splitrelay.errors import InputError, OutputError, WorkError
from tests.support.error_fields import expect_error
from tests.support.small_datasets import same, tiny_files, tiny_set

TINY = tiny_set()


def tiny() -> DataSet:
    return build_dataset(TINY, Idx().decode(tiny_files()))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    save(tiny(), get_cache_folder(TINY, tmp_path))
    return tmp_path


def test_the_folder_is_the_users_choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPLITRELAY_DATA", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert get_data_folder() == tmp_path / "own"


def test_else_it_is_in_the_users_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SPLITRELAY_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert get_data_folder() == tmp_path / "xdg" / "splitrelay"


@pytest.mark.parametrize("relative", ["", "here"])
def test_else_in_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, relative: str) -> None:
    monkeypatch.delenv("SPLITRELAY_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", relative)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert get_data_folder() == tmp_path / ".cache" / "splitrelay"


def test_what_was_saved_is_what_is_mapped(root: Path) -> None:
    assert same(map_arrays(TINY, root), tiny_files())


def test_images_are_pages_of_their_file(root: Path) -> None:
    base = map_arrays(TINY, root)["train-x"]
    while isinstance(base, np.ndarray):
        base = base.base
    assert isinstance(base, mmap.mmap)


def test_writing_to_the_images_leaves_the_file_alone(root: Path) -> None:
    map_arrays(TINY, root)["train-x"][:] = 0
    assert same(map_arrays(TINY, root), tiny_files())


def test_a_true_copy_has_the_right_checksums(root: Path) -> None:
    assert [verdict.wrong for verdict in check_files(TINY, root)] == ["", "", "", ""]


def test_one_flipped_bit_is_found(root: Path) -> None:
    file = get_cache_folder(TINY, root) / "test-x.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    wrong = {verdict.file: verdict.wrong for verdict in check_files(TINY, root) if verdict.wrong}
    assert list(wrong) == ["t10k-images-idx3-ubyte"] and "MD5" in wrong["t10k-images-idx3-ubyte"]


@pytest.mark.parametrize("size", [0, 10, 200])
def test_a_cut_file_is_damage_and_not_data(root: Path, size: int) -> None:
    file = get_cache_folder(TINY, root) / "train-x.npy"
    file.write_bytes(file.read_bytes()[:size])
    assert not is_cached(TINY, root) and all(verdict.wrong for verdict in check_files(TINY, root))
    with expect_error(WorkError, what=str(file), hint="splitrelay data get tiny"):
        map_arrays(TINY, root)


def test_arrays_of_another_shape_are_damage(root: Path) -> None:
    np.save(get_cache_folder(TINY, root) / "train-y.npy", np.zeros(5, dtype=np.int64))
    with expect_error(WorkError, what="train-y.npy", value="int64 (5,)", hint="splitrelay data get tiny"):
        map_arrays(TINY, root)


def test_a_replaced_set_stays_whole_for_those_who_use_it(root: Path) -> None:
    before = map_arrays(TINY, root)
    save(build_dataset(TINY, {part: array * 0 for part, array in before.items()}), get_cache_folder(TINY, root))
    assert same(before, tiny_files()) and not map_arrays(TINY, root)["train-x"].any()


def test_nothing_but_the_set_stays_behind(root: Path) -> None:
    save(tiny(), get_cache_folder(TINY, root))
    assert [path.name for path in root.iterdir()] == ["tiny"]


def test_a_shared_cache_can_be_read_by_all_who_may_read_its_folder(root: Path) -> None:
    (root / "plain").mkdir()
    assert get_cache_folder(TINY, root).stat().st_mode == (root / "plain").stat().st_mode


def test_a_saved_set_opens_the_same(tmp_path: Path) -> None:
    opened = load(str(save(tiny(), tmp_path / "mine")))
    assert same(
        {"train-x": opened.train.x, "train-y": opened.train.y, "test-x": opened.test.x, "test-y": opened.test.y},
        tiny_files(),
    )
    assert (opened.train.classes, opened.train.mean, opened.train.std) == (TINY.classes, TINY.mean, TINY.std)


@pytest.mark.parametrize(("words", "names"), [("{", ("line 1",)), ("{}", ("augmentation", "classes"))])
def test_a_saved_set_with_broken_words_is_refused(root: Path, words: str, names: tuple[str, ...]) -> None:
    (get_cache_folder(TINY, root) / "about.json").write_text(words)
    with expect_error(InputError, what=("about.json", *names)):
        load(str(get_cache_folder(TINY, root)))


def test_a_place_that_cannot_be_a_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with expect_error(OutputError, what=str(tmp_path / "file"), hint="SPLITRELAY_DATA=FOLDER"):
        save(tiny(), tmp_path / "file" / "tiny")
