"""Readers in torchvision's form, over any layout of the files."""

import inspect
from pathlib import Path

import numpy as np
import pytest

from splitrelay.data.dataset_formats import decode_idx
from splitrelay.data.datasets import SETS
from splitrelay.data.downloads import Folder
from splitrelay.data.torchvision_api import CIFAR10, MNIST, Digits, FashionMNIST, KnownReader, Reader, UserDataset
from splitrelay.errors import InputError, WorkError
from tests.support.error_fields import expect_error
from tests.support.small_datasets import H, W, tiny_files, tiny_set, write_files

X = decode_idx("x", tiny_files()["train-images-idx3-ubyte"])


class Tiny(KnownReader):
    """The small set of the tests."""

    name = "tiny"


@pytest.fixture(autouse=True)
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small set that is known by name, an empty cache, and the folder that serves it."""
    monkeypatch.setenv("SPLITRELAY_DATA", str(tmp_path / "cache"))
    folder = write_files(tmp_path / "source")
    monkeypatch.setitem(SETS, "tiny", tiny_set(Folder(folder)))
    return folder


@pytest.mark.parametrize("reader", [Digits, MNIST, FashionMNIST, CIFAR10, UserDataset])
def test_the_signature_is_torchvisions(reader: type[Reader]) -> None:
    parameters = inspect.signature(reader).parameters
    assert list(parameters) == ["root", "train", "transform", "target_transform", "download"]
    assert [parameters[name].default for name in list(parameters)[1:]] == [True, None, None, False]


@pytest.mark.parametrize("reader", [Digits, MNIST, FashionMNIST, CIFAR10])
def test_every_reader_reads_a_known_set(reader: type[KnownReader]) -> None:
    assert reader.name in SETS


def test_downloading_fills_the_root(tmp_path: Path) -> None:
    Tiny(tmp_path / "root", download=True)
    assert (tmp_path / "root" / "tiny" / "train-x.npy").is_file() and not (tmp_path / "cache").exists()


def test_what_is_not_there_says_how_to_get_it(tmp_path: Path) -> None:
    with expect_error(InputError, what=("tiny", "root"), hint=("splitrelay data get tiny", "download=True")):
        Tiny(tmp_path / "root")


def test_data_and_targets() -> None:
    reader = Tiny(download=True)
    assert np.array_equal(reader.data, X) and np.array_equal(reader.targets, np.arange(12) % 3) and len(reader) == 12


def test_the_test_part() -> None:
    assert len(Tiny(train=False, download=True)) == 6


def test_an_item_is_a_picture_and_a_number() -> None:
    image, target = Tiny(download=True)[4]
    assert image.mode == "L" and image.size == (W, H) and np.array_equal(np.asarray(image), X[4])
    assert target == 1 and type(target) is int


def test_items_end_where_the_data_end() -> None:
    assert len(list(Tiny(download=True))) == 12


def test_transforms_are_applied() -> None:
    image, target = Tiny(transform=np.asarray, target_transform=lambda y: -y, download=True)[5]
    assert np.array_equal(image, X[5]) and target == -2


def test_classes_and_their_numbers() -> None:
    reader = Tiny(download=True)
    assert reader.classes == ["a", "b", "c"] and reader.class_to_idx == {"a": 0, "b": 1, "c": 2}


def test_a_part_can_be_put_in_their_place() -> None:
    reader = Tiny(download=True)
    reader.data, reader.targets = reader.data[:2], reader.targets[:2]
    assert len(reader) == 2 and len(list(reader)) == 2


@pytest.mark.parametrize("packed", [False, True])
def test_files_in_torchvisions_layout_are_read_where_they_are(tmp_path: Path, packed: bool) -> None:
    write_files(tmp_path / "root" / "Tiny" / "raw", packed)
    assert np.array_equal(Tiny(tmp_path / "root").data, X) and not (tmp_path / "root" / "tiny").exists()


def test_damaged_files_in_torchvisions_layout_are_refused(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "root" / "Tiny" / "raw")
    (folder / "t10k-labels-idx1-ubyte").write_bytes(b"")
    with expect_error(WorkError, what=("t10k-labels-idx1-ubyte", "0 bytes")):
        Tiny(tmp_path / "root")


def test_the_cache_serves_any_root(tmp_path: Path) -> None:
    Tiny(download=True)
    assert len(Tiny(tmp_path / "root")) == 12


def test_own_images_through_a_reader(tmp_path: Path) -> None:
    x = np.arange(20 * 12, dtype=np.uint8).reshape(20, 2, 2, 3)
    np.savez(tmp_path / "d.npz", x=x, y=np.zeros(20, dtype=int))
    reader = UserDataset(tmp_path / "d.npz", train=False)
    assert np.array_equal(reader.data, x[4::5]) and reader[0][0].mode == "RGB"


def test_a_picture_is_as_bright_as_its_data_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Tiny(download=True)
    monkeypatch.setitem(reader.images.__dict__, "peak", 16)
    reader.data = np.array([[[0, 8, 16]]], dtype=np.uint8)
    assert np.asarray(reader[0][0]).tolist() == [[0, 128, 255]]
