"""Decode image files to bytes of one shape: grey if all images are grey, else RGB."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from splitrelay.data.images import Pixels
from splitrelay.data.optional_imports import import_optional
from splitrelay.errors import InputError

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
            sizes = f"{_size(images[0])} in {names[0]}, {_size(image)} in {name}"
            raise InputError("pictures of different sizes", value=sizes, hint="Bring them to one size first.")
    if all(image.mode in GREY for image in images):
        return np.stack([np.asarray(image.convert("L"))[None] for image in images])
    return np.stack([np.asarray(image.convert("RGB")).transpose(2, 0, 1) for image in images])


def _size(image: Image) -> str:
    return f"{image.size[0]}x{image.size[1]}"
