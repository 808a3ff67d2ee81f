"""Decode image files, and tables of images in CSV or Parquet, to bytes of one shape."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt

from splitrelay.data.images import Pixels
from splitrelay.data.optional_imports import import_optional
from splitrelay.errors import InputError
from splitrelay.structured_text import parse_json

Image = Any  # PIL's
ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp"}
GREY = {"1", "L", "LA"}
DEEP = ("I", "F")  # modes of more than 8 bits


def list_class_folders(folder: Path) -> list[Path]:
    """Return the folders of the classes. Numbers are sorted as numbers, so that 10 comes after 9."""
    folders = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith((".", "__"))]
    if folders and all(path.name.isdecimal() for path in folders):
        return sorted(folders, key=lambda path: int(path.name))
    return sorted(folders)


def list_image_files(folder: Path) -> list[Path]:
    """Return all image files below a folder, sorted by name."""
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS and path.name[0] != ".")
    if not files:
        raise InputError(f"the folder {folder} holds no pictures", limit=f"files ending in {' '.join(sorted(ENDINGS))}")
    return files


def read_images(paths: Sequence[Path]) -> Pixels:
    """Read image files as one array (N, C, H, W)."""
    return stack_images([decode_image(path, str(path)) for path in paths], [str(path) for path in paths])


def decode_images(payloads: Iterable[bytes], of: str) -> Pixels:
    """Decode the images of a table's column. `of` names the column in error messages."""
    names = []
    images = []
    for row, payload in enumerate(payloads):
        names.append(f"row {row} of {of}")
        images.append(decode_image(io.BytesIO(payload), names[-1]))
    return stack_images(images, names)


def decode_image(file: Any, name: str) -> Image:
    """Decode one image from a path or a stream."""
    pil = import_optional("PIL.Image", "decoding a picture")
    try:
        with pil.open(file) as image:
            image.load()
            picture = image.copy()
    except (OSError, SyntaxError, pil.DecompressionBombError, pil.DecompressionBombWarning) as error:
        raise InputError(f"{name} is not an image that can be decoded ({' '.join(str(error).split())[:100]})") from None
    if picture.mode.startswith(DEEP):
        raise InputError(f"{name} has more than 8 bits a pixel", value=f"mode {picture.mode}", hint="Save it with 8.")
    return picture


def stack_images(images: Sequence[Image], names: Sequence[str]) -> Pixels:
    """Return images of one size as one array."""
    for image, name in zip(images, names, strict=True):
        if image.size != images[0].size:
            sizes = f"{_get_size(images[0])} in {names[0]}, {_get_size(image)} in {name}"
            raise InputError("pictures of different sizes", value=sizes, hint="Bring them to one size first.")
    if all(image.mode in GREY for image in images):
        return np.stack([np.asarray(image.convert("L"))[None] for image in images])
    return np.stack([np.asarray(image.convert("RGB")).transpose(2, 0, 1) for image in images])


def _get_size(image: Image) -> str:
    return f"{image.size[0]}x{image.size[1]}"


LABEL_NAMES = ("label", "labels", "y", "target", "targets", "class")
IMAGE_NAMES = ("image", "img", "x", "pixels")
NO_COLUMN = ("", "unnamed: 0", "__index_level_0__")  # an index column of an exported data frame

Table = tuple[npt.NDArray[Any], npt.NDArray[Any], tuple[str, ...] | None]  # x, y, names of the classes


def read_csv(path: Path) -> Table:
    """Read a CSV file with one image per row. The label is in the column `label` or in the first column."""
    try:
        titles, has_titles = _read_titles(path)
    except (ValueError, csv.Error, EOFError, OSError) as error:
        raise InputError(f"{path} is no table of text ({' '.join(str(error).split())[:140]})") from None
    label = next((j for j, title in enumerate(titles) if title in LABEL_NAMES), 0) if has_titles else 0
    pixels = [j for j, title in enumerate(titles) if j != label and not (has_titles and title in NO_COLUMN)]
    if not pixels:
        raise InputError(f"{path} has no columns of pixels", value=f"{len(titles)} column")
    try:
        y = _read_columns(path, has_titles, [label], str)[:, 0]
        try:
            return _read_columns(path, has_titles, pixels, np.uint8), y, None
        except ValueError:  # fractions or numbers above 255; to_bytes checks them
            return _read_columns(path, has_titles, pixels, np.float32), y, None
    except ValueError as error:
        raise InputError(f"{path} is no table of numbers ({' '.join(str(error).split())[:140]})") from None


def read_parquet(path: Path) -> Table:
    """Read a Parquet file with labels, and with either a column of images or one column per pixel."""
    table = open_parquet(path)
    names = {name.lower(): name for name in table.column_names if name.lower() not in NO_COLUMN}
    label = next((names[name] for name in LABEL_NAMES if name in names), None)
    if label is None:
        raise InputError(f"{path} has no column of labels", value=sorted(names), limit=f"one of {LABEL_NAMES}")
    y = np.asarray(table.column(label).to_pylist())
    image = next((names[name] for name in IMAGE_NAMES if name in names), None)
    if image is not None:
        x = _decode_column(table.column(image), f"{path}, column {image}")
    else:
        pixels = [name for name in names.values() if name != label]
        x = np.column_stack([table.column(name).to_numpy() for name in pixels])
    return x, y, _read_class_names(table, label)


def _read_titles(path: Path) -> tuple[list[str], bool]:
    with open_text(path) as file:
        first = next(csv.reader(file), None)
    if not first:
        raise InputError(f"{path} is empty")
    titles = [title.strip().lower() for title in first]
    # The titles of pixels may be numbers. Without a title line, the label in the first column may be a word.
    return titles, not all(map(_is_number, first[1:])) or any(title in LABEL_NAMES for title in titles)


def _read_columns(path: Path, has_titles: bool, columns: list[int], dtype: Any) -> npt.NDArray[Any]:
    with open_text(path) as file:
        return np.loadtxt(
            file,
            delimiter=",",
            skiprows=int(has_titles),
            usecols=columns,
            dtype=dtype,
            ndmin=2,
            comments=None,
            quotechar='"',
        )


def open_text(path: Path) -> IO[str]:
    """Open a text file that may be compressed."""
    if path.suffix == ".gz":
        return cast(IO[str], gzip.open(path, "rt", encoding="utf-8-sig", newline=""))
    return path.open(encoding="utf-8-sig", newline="")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def open_parquet(path: Path) -> Any:
    """Read a Parquet file as a table of Arrow."""
    pyarrow, parquet = import_optional("pyarrow", "parquet"), import_optional("pyarrow.parquet", "parquet")
    try:
        return parquet.read_table(path)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise InputError(f"{path} is no parquet file ({' '.join(str(error).split())[:100]})") from None


def _decode_column(column: Any, of: str) -> npt.NDArray[Any]:
    rows = column.to_pylist()
    if isinstance(rows[0], dict):  # the format of the library `datasets`
        rows = [row.get("bytes") for row in rows]
    if all(isinstance(row, bytes) for row in rows):
        return decode_images(rows, of)
    try:
        return np.asarray(rows, dtype=np.float32)
    except (ValueError, TypeError):
        raise InputError(f"{of} holds neither encoded pictures nor lists of pixels of one length") from None


def _read_class_names(table: Any, label: str) -> tuple[str, ...] | None:
    try:
        description = parse_json((table.schema.metadata or {})[b"huggingface"])
        return tuple(description["info"]["features"][label]["names"])
    except (KeyError, TypeError, ValueError):
        return None
