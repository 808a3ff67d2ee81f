"""Convert the official files of each data set to arrays and back.

All sources are converted to the official files first, because only these have published checksums.
"""

from __future__ import annotations

import hashlib
import io
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from splitrelay.errors import WorkError

Arrays = Mapping[str, npt.NDArray[Any]]  # "train-x", "train-y", "test-x", "test-y"

ALGORITHMS = {32: "md5", 40: "sha1", 64: "sha256"}  # by the length of the checksum
IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
PARTS = ("train-x", "train-y", "test-x", "test-y")


@dataclass(frozen=True)
class OfficialFile:
    """An unpacked file of a data set as its authors published it: name, size and checksum."""

    name: str
    size: int
    checksum: str

    def check(self, payload: bytes) -> bytes:
        """Return the payload. Raise WorkError if its size or checksum is wrong."""
        if len(payload) != self.size:
            raise WorkError(f"{self.name} has {len(payload)} bytes, not {self.size}")
        algorithm = ALGORITHMS[len(self.checksum)]
        digest = hashlib.new(algorithm, payload, usedforsecurity=False).hexdigest()
        if digest != self.checksum:
            raise WorkError(f"{self.name} has the wrong {algorithm.upper()} {digest}, not {self.checksum}")
        return payload


class Format(Protocol):
    """A file format: decodes official files to arrays, and encodes arrays to the same bytes."""

    def decode(self, files: Mapping[str, bytes], /) -> Arrays: ...
    def encode(self, arrays: Arrays, /) -> Iterator[tuple[str, bytes]]: ...


class Idx:
    """The format of MNIST: separate files for images and labels, with a magic number and big-endian sizes."""

    def decode(self, files: Mapping[str, bytes]) -> Arrays:
        """Decode the four files. Add a channel to the grey images and widen the labels to int64."""
        raw = {part: decode_idx(name, files[name]) for part, name in zip(PARTS, IDX_FILES, strict=True)}
        return {part: a[:, None] if part.endswith("x") else a.astype(np.int64) for part, a in raw.items()}

    def encode(self, arrays: Arrays) -> Iterator[tuple[str, bytes]]:
        """Encode the arrays to the original bytes."""
        for part, name in zip(PARTS, IDX_FILES, strict=True):
            a = arrays[part]
            yield name, encode_idx(a[:, 0] if part.endswith("x") else a.astype(np.uint8))


class CifarBinary:
    """The binary format of CIFAR-10: per image a label byte and 3 x 1024 planar bytes, 10,000 images per file."""

    def __init__(self, train_files: Sequence[str], test_files: Sequence[str], shape: tuple[int, int, int]) -> None:
        self.names = {"train": tuple(train_files), "test": tuple(test_files)}
        self.shape = shape

    def decode(self, files: Mapping[str, bytes]) -> Arrays:
        """Decode and concatenate all files of each part."""
        arrays: dict[str, npt.NDArray[Any]] = {}
        for part, names in self.names.items():
            rows = [self._decode_rows(name, files[name]) for name in names]
            arrays[f"{part}-x"] = np.concatenate([row[:, 1:] for row in rows]).reshape(-1, *self.shape)
            arrays[f"{part}-y"] = np.concatenate([row[:, 0] for row in rows]).astype(np.int64)
        return arrays

    def encode(self, arrays: Arrays) -> Iterator[tuple[str, bytes]]:
        """Encode the arrays to the original bytes."""
        for part, names in self.names.items():
            x, y = arrays[f"{part}-x"], arrays[f"{part}-y"]
            per_file = len(y) // len(names)
            for j, name in enumerate(names):
                which = slice(j * per_file, (j + 1) * per_file)
                yield name, encode_cifar(x[which].reshape(per_file, -1), y[which])

    def _decode_rows(self, name: str, payload: bytes) -> npt.NDArray[np.uint8]:
        width = 1 + int(np.prod(self.shape))
        if len(payload) % width:
            raise WorkError(f"{name} does not consist of records of {width} bytes")
        return np.frombuffer(payload, dtype=np.uint8).reshape(-1, width)


class DigitsCsv:
    """The file digits.csv of scikit-learn: 64 numbers from 0 to 16 and the label per row."""

    def __init__(self, name: str, test: int, shape: tuple[int, int, int] = (1, 8, 8)) -> None:
        self.name, self.test, self.shape = name, test, shape

    def decode(self, files: Mapping[str, bytes]) -> Arrays:
        """Decode the file. The last `test` images become the test set, because other people wrote them."""
        rows = decode_csv(self.name, files[self.name])
        x, y = rows[:, :-1].reshape(-1, *self.shape), rows[:, -1].astype(np.int64)
        cut = len(y) - self.test
        return {"train-x": x[:cut], "train-y": y[:cut], "test-x": x[cut:], "test-y": y[cut:]}

    def encode(self, arrays: Arrays) -> Iterator[tuple[str, bytes]]:
        """Encode the arrays to the original bytes."""
        x = np.concatenate([arrays["train-x"], arrays["test-x"]])
        y = np.concatenate([arrays["train-y"], arrays["test-y"]])
        rows = np.column_stack([x.reshape(len(y), -1), y]).tolist()
        yield self.name, "".join(",".join(map(str, row)) + "\n" for row in rows).encode()


def decode_idx(name: str, payload: bytes) -> npt.NDArray[np.uint8]:
    """Decode an idx file of bytes."""
    if len(payload) < 4 or payload[:3] != b"\0\0\x08" or len(payload) < 4 + 4 * payload[3]:
        raise WorkError(f"{name} is not an idx file of bytes")
    ndim = payload[3]
    shape = struct.unpack(f">{ndim}I", payload[4 : 4 + 4 * ndim])
    if len(payload) - 4 - 4 * ndim != int(np.prod(shape)):
        raise WorkError(f"{name} announces {shape} bytes but holds {len(payload) - 4 - 4 * ndim}")
    return np.frombuffer(payload, dtype=np.uint8, offset=4 + 4 * ndim).reshape(shape)


def encode_idx(array: npt.NDArray[np.uint8]) -> bytes:
    """Encode an array of bytes as an idx file."""
    return struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


def encode_cifar(x: npt.NDArray[np.uint8], y: npt.NDArray[Any]) -> bytes:
    """Encode rows of planar pixels and their labels as CIFAR-10 binary records."""
    return np.column_stack([y.astype(np.uint8), x]).tobytes()


def decode_csv(name: str, payload: bytes, skip: int = 0) -> npt.NDArray[np.uint8]:
    """Decode a CSV table of integers from 0 to 255."""
    try:
        return np.loadtxt(io.BytesIO(payload), delimiter=",", dtype=np.uint8, ndmin=2, skiprows=skip)
    except ValueError as error:
        raise WorkError(f"{name} is not a table of whole numbers from 0 to 255 ({error})") from None
