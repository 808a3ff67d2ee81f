"""Load images of the user from an .npz file, a folder, a table, or an object with `data` and `targets`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np
import numpy.typing as npt

from splitrelay.data.cache import is_dataset_folder, open_dataset
from splitrelay.data.image_files import list_class_folders, list_image_files, read_csv, read_images, read_parquet
from splitrelay.data.images import DataSet, ImageSet, Labels, Pixels, compute_moments
from splitrelay.errors import InputError

Shape = tuple[int, int, int]

EVERY = 5  # without a test set, every fifth image of each class goes into the test set
COLOURS = (1, 3)
DIGITS = 18  # a number with this many digits fits into 64 bits
ENDINGS = ".npz, .csv, .csv.gz, .parquet, or a folder with a folder of pictures per class"


@dataclass(frozen=True, eq=False)
class Raw:
    """Images and labels as they were read. `of` is the name of the source for messages."""

    x: npt.NDArray[Any]
    y: npt.NDArray[Any]
    of: str
    classes: tuple[str, ...] | None = None


def load_user_dataset(source: Any, *, test: Any = None, shape: Shape | None = None) -> DataSet:
    """Load images of the user.

    Args:
        source: A path (.npz, .csv, .csv.gz, .parquet, or a folder), or an object with `data` and `targets`.
        test: A second source for the test set. Without it, the source must contain a test set, or every fifth image
            of each class becomes the test set.
        shape: The shape (C, H, W), if it cannot be derived from the data.
    """
    if isinstance(source, str | Path) and is_dataset_folder(Path(source)):
        return open_dataset(Path(source))
    train, test_part = read_parts(source)
    if test is not None:
        test_part = read_parts(test)[0]
    if test_part is None:
        train, test_part = hold_out_test_set(train)
    classes, labels = encode_labels([train, test_part])
    x, x_test = (to_pixels(raw, shape) for raw in (train, test_part))
    if x.shape[1:] != x_test.shape[1:]:
        raise InputError("training and test images differ in shape", value=f"{x.shape[1:]} and {x_test.shape[1:]}")
    mean, std = compute_moments(x)
    parts = [ImageSet(part, y, classes, mean, std) for part, y in zip((x, x_test), labels, strict=True)]
    return DataSet(train.of, parts[0], parts[1])


def read_parts(source: Any) -> tuple[Raw, Raw | None]:
    """Read the training part of a source, and its test part or None."""
    if not isinstance(source, str | Path):
        return read_object(source), None
    path = Path(source).expanduser()
    if not path.exists():
        raise InputError(f"there is no file or folder {path}", limit=ENDINGS)
    if path.is_dir():
        return read_folder(path)
    if path.suffix == ".npz":
        return read_npz(path)
    if path.suffix == ".parquet":
        return _from_table(path, read_parquet(path)), None
    if path.name.endswith((".csv", ".csv.gz")):
        return _from_table(path, read_csv(path)), None
    raise InputError(f"cannot tell what {path} is", limit=ENDINGS)


def read_object(source: Any) -> Raw:
    """Read a torchvision data set or another object with `data` and `targets`."""
    for name in ("data", "targets"):
        if not hasattr(source, name):
            what = f"{type(source).__name__} has no attribute '{name}'"
            raise InputError(what, limit="an object with data and targets, or a path")
    names = getattr(source, "classes", None)
    classes = None if names is None else tuple(map(str, names))
    return _build_raw(np.asarray(source.data), np.asarray(source.targets), type(source).__name__, classes)


def read_npz(path: Path) -> tuple[Raw, Raw | None]:
    """Read the arrays x and y, or x_train and y_train, and x_test and y_test if they exist."""
    if path.is_file() and not is_zipfile(path):
        raise InputError(f"{path} is not an npz file", hint="Write it with numpy.savez: x and y.")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name.lower(): archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"{path} cannot be read as arrays of numbers ({' '.join(str(error).split())[:100]})") from None
    train = "_train" if "x_train" in arrays else ""
    missing = [name for name in (f"x{train}", f"y{train}") if name not in arrays]
    if missing:
        raise InputError(f"{path} lacks {' and '.join(missing)}", value=sorted(arrays), limit="arrays x and y")
    raw = _build_raw(arrays[f"x{train}"], arrays[f"y{train}"], str(path))
    if "x_test" not in arrays or "y_test" not in arrays:
        return raw, None
    return raw, _build_raw(arrays["x_test"], arrays["y_test"], str(path))


def read_folder(path: Path) -> tuple[Raw, Raw | None]:
    """Read a folder with one folder of images per class, or with `train` and `test` folders of this form."""
    if (path / "train").is_dir():
        test = next((path / name for name in ("test", "val", "valid") if (path / name).is_dir()), None)
        train = _read_class_folders(path / "train")
        return train, None if test is None else _read_class_folders(test, train.classes)
    return _read_class_folders(path), None


def hold_out_test_set(raw: Raw) -> tuple[Raw, Raw]:
    """Move every fifth image of each class to a test set. The result is the same on every machine."""
    held = np.zeros(len(raw.y), dtype=bool)
    for label in np.unique(raw.y):
        held[np.flatnonzero(raw.y == label)[EVERY - 1 :: EVERY]] = True
    if not held.any():
        raise InputError(
            f"{raw.of} is too small to hold out a test set", value=f"{len(held)} images", limit="5 a class"
        )
    return Raw(raw.x[~held], raw.y[~held], raw.of, raw.classes), Raw(raw.x[held], raw.y[held], raw.of, raw.classes)


def encode_labels(parts: list[Raw]) -> tuple[tuple[str, ...], list[Labels]]:
    """Return the sorted names of the classes, and the labels of each part as positions in them."""
    labels = [simplify_labels(raw) for raw in parts]
    classes = parts[0].classes
    if classes is not None and all(y.dtype.kind in "iu" for y in labels):
        return classes, [y.astype(np.int64) for y in labels]
    values, positions = np.unique(np.concatenate(labels), return_inverse=True)
    ends = np.cumsum([len(y) for y in labels])[:-1]
    return tuple(map(str, values)), [y.astype(np.int64) for y in np.split(positions.reshape(-1), ends)]


def simplify_labels(raw: Raw) -> npt.NDArray[Any]:
    """Return the labels as integers if all of them are integers, else as names."""
    y = np.char.decode(raw.y, "utf-8", "backslashreplace") if raw.y.dtype.kind == "S" else raw.y
    if y.dtype.kind == "U" and all(label.isdecimal() and len(label) <= DIGITS for label in y.tolist()):
        return y.astype(np.int64)
    if y.dtype.kind == "f":
        with np.errstate(invalid="ignore"):  # NaN and infinity are not equal after the conversion
            whole = y.astype(np.int64)
        if np.array_equal(whole, y):
            return whole
    if y.dtype.kind not in "iubU":
        raise InputError(f"the labels of {raw.of} are neither whole numbers nor names", value=y.dtype)
    return y


def to_pixels(raw: Raw, shape: Shape | None, peak: int = 255) -> Pixels:
    """Return the images as bytes (N, C, H, W). Raise InputError if a pixel is above the peak."""
    x = arrange(to_bytes(raw, peak), shape, raw.of)
    return np.require(x, requirements=["C", "W"])  # torch needs writable memory


def to_bytes(raw: Raw, peak: int = 255) -> Pixels:
    """Return the images as bytes. Integers up to the peak and multiples of 1/peak from 0 to 1 are accepted."""
    x = raw.x
    if x.dtype == np.uint8:
        return _check_peak(peak, x, raw.of)
    if x.dtype.kind not in "biuf" or not np.isfinite(x).all():
        raise InputError(f"the images of {raw.of} are not finite numbers", value=x.dtype)
    low, high = float(x.min()), float(x.max())
    scale = peak if x.dtype.kind in "bf" and high <= 1 else 1
    scaled = x.astype(np.float64) * scale
    if low < 0 or high * scale > 255 or np.abs(scaled - np.rint(scaled)).max() > 1e-3:
        span = f"{x.dtype} from {low:g} to {high:g}"
        limit = f"whole numbers from 0 to {peak}, or multiples of 1/{peak} from 0 to 1"
        hint = "Save them as uint8." if peak == 255 else f"Save them as uint8, from 0 to {peak}."
        raise InputError(f"the images of {raw.of} are not bytes", value=span, limit=limit, hint=hint)
    return _check_peak(peak, np.rint(scaled).astype(np.uint8), raw.of)


def arrange(x: Pixels, shape: Shape | None, of: str) -> Pixels:
    """Return (N, C, H, W) from this shape, from (N, H, W, C), from (N, H, W) or from flat rows."""
    if shape is not None:
        return _apply_shape(x, shape, of)
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 2 and (guess := _guess_shape(x.shape[1])) is not None:
        return x.reshape(-1, *guess)
    first, last = (x.ndim == 4 and x.shape[axis] in COLOURS for axis in (1, 3))
    if first == last:
        raise InputError(
            f"cannot tell the shape of the images of {of}", value=x.shape[1:], hint="Give shape=(C, H, W)."
        )
    return x if first else x.transpose(0, 3, 1, 2)


def _guess_shape(width: int) -> Shape | None:
    """Return the shape of flat rows if they can be square grey or RGB images. No width can be both."""
    for C in COLOURS:
        side = round((width / C) ** 0.5)
        if C * side * side == width:
            return C, side, side
    return None


def _apply_shape(x: Pixels, shape: Shape, of: str) -> Pixels:
    C, H, W = shape
    forms = [(C, H, W), (H, W, C), (H, W)][: 3 if C == 1 else 2]
    if x.shape[1:] == (H, W, C) != (C, H, W):  # if all sides are equal, the channels come first
        return x.transpose(0, 3, 1, 2)
    if x.shape[1:] not in (*forms, (C * H * W,)):
        limit = f"{', '.join(map(str, forms))} or flat rows of {C * H * W}"
        raise InputError(f"the images of {of} do not have this shape", value=x.shape[1:], limit=limit)
    return x.reshape(len(x), C, H, W)


def _check_peak(peak: int, x: Pixels, of: str) -> Pixels:
    highest = int(x.max(initial=0))
    if highest > peak:
        hint = f"Bring them to whole numbers from 0 for black to {peak} for white."
        what = f"the images of {of} have pixels brighter than white"
        raise InputError(what, value=highest, limit=f"pixels from 0 to {peak}", hint=hint)
    return x


def _build_raw(x: npt.NDArray[Any], y: npt.NDArray[Any], of: str, classes: tuple[str, ...] | None = None) -> Raw:
    if y.ndim != 1 or x.ndim < 2 or len(x) != len(y):
        raise InputError(
            f"images and labels of {of} do not match", value=f"{x.shape}, {y.shape}", limit="(N, ...), (N,)"
        )
    if not x.size:
        raise InputError(f"{of} holds no images", hint="Bring at least one.")
    return Raw(x, y, of, classes)


def _from_table(path: Path, table: tuple[npt.NDArray[Any], npt.NDArray[Any], tuple[str, ...] | None]) -> Raw:
    x, y, classes = table
    return _build_raw(x, y, str(path), classes)


def _read_class_folders(path: Path, classes: tuple[str, ...] | None = None) -> Raw:
    folders = list_class_folders(path)
    if not folders:
        raise InputError(f"{path} holds no folder per class", limit=ENDINGS)
    names = tuple(folder.name for folder in folders) if classes is None else classes
    unknown = [folder.name for folder in folders if folder.name not in names]
    if unknown:
        raise InputError(f"{path} holds classes that the training folder lacks", value=", ".join(unknown))
    files = [list_image_files(folder) for folder in folders]
    y = np.repeat([names.index(folder.name) for folder in folders], [len(paths) for paths in files])
    return Raw(read_images([path for paths in files for path in paths]), y, str(path), names)
