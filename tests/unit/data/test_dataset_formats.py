"""Official files: there and back byte for byte, and never taken for what they are not."""

import hashlib

import numpy as np
import pytest

from splitrelay.data.dataset_formats import CifarBinary, DigitsCsv, Idx, OfficialFile, decode_csv, decode_idx
from splitrelay.errors import WorkError
from splitrelay.randomness import Purpose, rng
from tests.support.error_fields import expect_error
from tests.support.small_datasets import tiny_files


def noise(*shape: int) -> np.ndarray:
    return rng(5, Purpose.INSTANCES).integers(0, 256, shape).astype(np.uint8)


def test_idx_files_come_back_byte_for_byte() -> None:
    files = tiny_files()
    assert dict(Idx().encode(Idx().decode(files))) == files


def test_cifar_files_come_back_byte_for_byte() -> None:
    binary = CifarBinary(("one", "two"), ("three",), (3, 4, 4))
    files = {name: noise(5, 49).tobytes() for name in ("one", "two", "three")}
    assert dict(binary.encode(binary.decode(files))) == files


def test_cifar_files_are_label_then_planes() -> None:
    record = bytes([7]) + bytes(range(48))
    arrays = CifarBinary(("one",), ("two",), (3, 4, 4)).decode({"one": record * 2, "two": record})
    assert arrays["train-y"].tolist() == [7, 7] and arrays["test-x"][0, 1, 0].tolist() == [16, 17, 18, 19]


def test_digits_come_back_byte_for_byte_and_the_last_are_the_test() -> None:
    table = DigitsCsv("d.csv", test=3)
    rows = [[*((row + pixel) % 17 for pixel in range(64)), row % 10] for row in range(13)]
    files = {"d.csv": "".join(",".join(map(str, row)) + "\n" for row in rows).encode()}
    arrays = table.decode(files)
    assert dict(table.encode(arrays)) == files and arrays["test-y"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("payload", "names"),
    [
        (b"", ("images", "idx")),
        (b"<html>", ("images", "idx")),
        (b"\0\0\x0d\x01\0\0\0\x01\0", ("images", "idx")),  # floats
        (b"\0\0\x08\x03\0\0\0\x01", ("images", "idx")),  # ends within its header
        (b"\0\0\x08\x01\0\0\0\x03\x01", ("images", "(3,)", "1")),
    ],
)
def test_what_is_no_idx_file_is_refused(payload: bytes, names: tuple[str, ...]) -> None:
    with expect_error(WorkError, what=names):
        decode_idx("images", payload)


@pytest.mark.parametrize("payload", [b"1,2,300\n", b"1,x\n", b"1,2\n1\n", b"\xff\n"])
def test_what_is_no_table_of_bytes_is_refused(payload: bytes) -> None:
    with expect_error(WorkError, what=("t.csv", "0 to 255")):
        decode_csv("t.csv", payload)


def test_broken_records_are_refused() -> None:
    with expect_error(WorkError, what=("one", "49 bytes")):
        CifarBinary(("one",), (), (3, 4, 4)).decode({"one": b"12345"})


@pytest.mark.parametrize("algorithm", ["md5", "sha1", "sha256"])
def test_a_checksum_tells_a_true_copy(algorithm: str) -> None:
    file = OfficialFile("f", 3, hashlib.new(algorithm, b"abc").hexdigest())
    assert file.check(b"abc") == b"abc"
    with expect_error(WorkError, what=("f", algorithm.upper(), file.checksum)):
        file.check(b"abd")


def test_a_wrong_size_is_said_in_bytes() -> None:
    with expect_error(WorkError, what=("f", "2 bytes", "3")):
        OfficialFile("f", 3, "0" * 32).check(b"ab")
