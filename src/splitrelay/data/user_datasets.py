"""The user's own images: an .npz, a folder, a table, or any object with `data` and `targets`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np
import numpy.typing as npt

from splitrelay.data.cache import is_dataset_folder, open_dataset
from splitrelay.data.image_files import from_files, list_class_folders, list_image_files
from splitrelay.data.image_tables import read_csv, read_parquet
from splitrelay.data.images import DataSet, ImageSet, Labels, Pixels, compute_moments
from splitrelay.errors import InputError

Shape = tuple[int, int, int]

EVERY = 5  # where there is no test set, every fifth image of every class makes one
COLOURS = (1, 3)
DIGITS = 18  # of a number that 64 bits always hold
ENDINGS = ".npz, .csv, .csv.gz, .parquet, or a folder with a folder of pictures per class"


@dataclass(frozen=True, eq=False)
class Raw:
    """Images and labels as somebody wrote them down."""

    x: npt.NDArray[Any]
    y: npt.NDArray[Any]
    of: str
    classes: tuple[str, ...] | None = None


def load_user_dataset(source: Any, *, test: Any = None, shape: Shape | None = None) -> DataSet:
    """Images of one's own. `test` is a second source of the same kind; `shape` is (C, H, W) where it cannot be seen."""
    if isinstance(source, str | Path) and is_dataset_folder(Path(source)):
        return open_dataset(Path(source))
    train, held = read_parts(source)
    if test is not None:
        held = read_parts(test)[0]
    if held is None:
        train, held = hold_out_test_set(train)
    classes, labels = named([train, held])
    x, x_test = (to_pixels(raw, shape) for raw in (train, held))
    if x.shape[1:] != x_test.shape[1:]:
        raise InputError("training and test images differ in shape", value=f"{x.shape[1:]} and {x_test.shape[1:]}")
    mean, std = compute_moments(x)
    parts = [ImageSet(part, y, classes, mean, std) for part, y in zip((x, x_test), labels, strict=True)]
    return DataSet(train.of, parts[0], parts[1])


def read_parts(source: Any) -> tuple[Raw, Raw | None]:
    """What is in a source: a training part, and a test part where it has one."""
    if not isinstance(source, str | Path):
        return from_object(source), None
    path = Path(source).expanduser()
    if not path.exists():
        raise InputError(f"there is no file or folder {path}", limit=ENDINGS)
    if path.is_dir():
        return from_folder(path)
    if path.suffix == ".npz":
        return from_npz(path)
    if path.suffix == ".parquet":
        return _from_table(path, read_parquet(path)), None
    if path.name.endswith((".csv", ".csv.gz")):
        return _from_table(path, read_csv(path)), None
    raise InputError(f"cannot tell what {path} is", limit=ENDINGS)


def from_object(source: Any) -> Raw:
    """A torchvision data set, or anything else that carries `data` and `targets`."""
    for name in ("data", "targets"):
        if not hasattr(source, name):
            what = f"{type(source).__name__} has no attribute '{name}'"
            raise InputError(what, limit="an object with data and targets, or a path")
    return _checked(np.asarray(source.data), np.asarray(source.targets), type(source).__name__, _names(source))


def from_npz(path: Path) -> tuple[Raw, Raw | None]:
    """Arrays x and y, or x_train and y_train; x_test and y_test where there is a test part."""
    if path.is_file() and not is_zipfile(path):
        raise InputError(f"{path} is no npz file", hint="Write it with numpy.savez: x and y.")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name.lower(): archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"{path} cannot be read as arrays of numbers ({' '.join(str(error).split())[:100]})") from None
    train = "_train" if "x_train" in arrays else ""
    missing = [name for name in (f"x{train}", f"y{train}") if name not in arrays]
    if missing:
        raise InputError(f"{path} lacks {' and '.join(missing)}", value=sorted(arrays), limit="arrays x and y")
    raw = _checked(arrays[f"x{train}"], arrays[f"y{train}"], str(path))
    if "x_test" not in arrays or "y_test" not in arrays:
        return raw, None
    return raw, _checked(arrays["x_test"], arrays["y_test"], str(path))


def from_folder(path: Path) -> tuple[Raw, Raw | None]:
    """A folder of pictures per class; or such folders in `train` and `test`."""
    if (path / "train").is_dir():
        test = next((path / name for name in ("test", "val", "valid") if (path / name).is_dir()), None)
        train = _pictures(path / "train")
        return train, None if test is None else _pictures(test, train.classes)
    return _pictures(path), None


def hold_out_test_set(raw: Raw) -> tuple[Raw, Raw]:
    """Every fifth image of every class, in the order of the source, held out: the same on every machine."""
    held = np.zeros(len(raw.y), dtype=bool)
    for label in np.unique(raw.y):
        held[np.flatnonzero(raw.y == label)[EVERY - 1 :: EVERY]] = True
    if not held.any():
        raise InputError(
            f"{raw.of} is too small to hold out a test set", value=f"{len(held)} images", limit="5 a class"
        )
    return Raw(raw.x[~held], raw.y[~held], raw.of, raw.classes), Raw(raw.x[held], raw.y[held], raw.of, raw.classes)


def named(parts: list[Raw]) -> tuple[tuple[str, ...], list[Labels]]:
    """Names of the classes, in order, and every part's labels as positions among them."""
    labels = [simplify_labels(raw) for raw in parts]
    classes = parts[0].classes
    if classes is not None and all(y.dtype.kind in "iu" for y in labels):
        return classes, [y.astype(np.int64) for y in labels]
    values, positions = np.unique(np.concatenate(labels), return_inverse=True)
    ends = np.cumsum([len(y) for y in labels])[:-1]
    return tuple(map(str, values)), [y.astype(np.int64) for y in np.split(positions.reshape(-1), ends)]


def simplify_labels(raw: Raw) -> npt.NDArray[Any]:
    """The labels as whole numbers where all can be read so, else as names."""
    y = np.char.decode(raw.y, "utf-8", "backslashreplace") if raw.y.dtype.kind == "S" else raw.y
    if y.dtype.kind == "U" and all(label.isdecimal() and len(label) <= DIGITS for label in y.tolist()):
        return y.astype(np.int64)
    if y.dtype.kind == "f":
        with np.errstate(invalid="ignore"):  # what is not finite does not come back the same
            whole = y.astype(np.int64)
        if np.array_equal(whole, y):
            return whole
    if y.dtype.kind not in "iubU":
        raise InputError(f"the labels of {raw.of} are neither whole numbers nor names", value=y.dtype)
    return y


def to_pixels(raw: Raw, shape: Shape | None, peak: int = 255) -> Pixels:
    """The images as bytes (N, C, H, W), none above the peak."""
    x = arrange(to_bytes(raw, peak), shape, raw.of)
    return np.require(x, requirements=["C", "W"])  # torch wants it writable


def to_bytes(raw: Raw, peak: int = 255) -> Pixels:
    """Bytes as they are; whole numbers up to the peak; fractions from 0 to 1 if they are parts of it."""
    x = raw.x
    if x.dtype == np.uint8:
        return _up_to(peak, x, raw.of)
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
    return _up_to(peak, np.rint(scaled).astype(np.uint8), raw.of)


def arrange(x: Pixels, shape: Shape | None, of: str) -> Pixels:
    """(N, C, H, W), from that, from (N, H, W, C), from (N, H, W) or from flat rows."""
    if shape is not None:
        return _as_told(x, shape, of)
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 2 and (guess := _square(x.shape[1])) is not None:
        return x.reshape(-1, *guess)
    first, last = (x.ndim == 4 and x.shape[axis] in COLOURS for axis in (1, 3))
    if first == last:
        raise InputError(
            f"cannot tell the shape of the images of {of}", value=x.shape[1:], hint="Give shape=(C, H, W)."
        )
    return x if first else x.transpose(0, 3, 1, 2)


def _square(width: int) -> Shape | None:
    """Flat rows: a square image, grey or in three planes. No number is both."""
    for C in COLOURS:
        side = round((width / C) ** 0.5)
        if C * side * side == width:
            return C, side, side
    return None


def _as_told(x: Pixels, shape: Shape, of: str) -> Pixels:
    C, H, W = shape
    forms = [(C, H, W), (H, W, C), (H, W)][: 3 if C == 1 else 2]
    if x.shape[1:] == (H, W, C) != (C, H, W):  # a cube is taken to have its colour first, as pictures come
        return x.transpose(0, 3, 1, 2)
    if x.shape[1:] not in (*forms, (C * H * W,)):
        limit = f"{', '.join(map(str, forms))} or flat rows of {C * H * W}"
        raise InputError(f"the images of {of} do not have this shape", value=x.shape[1:], limit=limit)
    return x.reshape(len(x), C, H, W)


def _up_to(peak: int, x: Pixels, of: str) -> Pixels:
    highest = int(x.max(initial=0))
    if highest > peak:
        hint = f"Bring them to whole numbers from 0 for black to {peak} for white."
        what = f"the images of {of} have pixels brighter than white"
        raise InputError(what, value=highest, limit=f"pixels from 0 to {peak}", hint=hint)
    return x


def _checked(x: npt.NDArray[Any], y: npt.NDArray[Any], of: str, classes: tuple[str, ...] | None = None) -> Raw:
    if y.ndim != 1 or x.ndim < 2 or len(x) != len(y):
        raise InputError(
            f"images and labels of {of} do not match", value=f"{x.shape}, {y.shape}", limit="(N, ...), (N,)"
        )
    if not x.size:
        raise InputError(f"{of} holds no images", hint="Bring at least one.")
    return Raw(x, y, of, classes)


def _from_table(path: Path, table: tuple[npt.NDArray[Any], npt.NDArray[Any], tuple[str, ...] | None]) -> Raw:
    x, y, classes = table
    return _checked(x, y, str(path), classes)


def _names(source: Any) -> tuple[str, ...] | None:
    names = getattr(source, "classes", None)
    return None if names is None else tuple(map(str, names))


def _pictures(path: Path, classes: tuple[str, ...] | None = None) -> Raw:
    folders = list_class_folders(path)
    if not folders:
        raise InputError(f"{path} holds no folder per class", limit=ENDINGS)
    names = tuple(folder.name for folder in folders) if classes is None else classes
    strangers = [folder.name for folder in folders if folder.name not in names]
    if strangers:
        raise InputError(f"{path} holds classes that the training folder lacks", value=", ".join(strangers))
    files = [list_image_files(folder) for folder in folders]
    y = np.repeat([names.index(folder.name) for folder in folders], [len(found) for found in files])
    return Raw(from_files([name for found in files for name in found]), y, str(path), names)
