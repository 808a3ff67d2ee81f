"""Data set classes with the interface of torchvision: the same arguments, `data`, `targets`, len and items."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from splitrelay.data.datasets import load
from splitrelay.data.images import DataSet, ImageSet, Labels, get_images
from splitrelay.data.optional_imports import import_optional
from splitrelay.data.user_datasets import load_user_dataset


class Reader(ABC):
    """The training or test part of a data set.

    Items are (PIL image, label), as torchvision transforms expect. `images` is the ImageSet.
    """

    def __init__(
        self,
        root: str | Path | None = None,
        train: bool = True,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        download: bool = False,
    ) -> None:
        self.root, self.train, self.transform, self.target_transform = root, train, transform, target_transform
        whole = self.open(root, download)
        self.images: ImageSet = get_images(whole.train if train else whole.test, type(self).__name__)
        x = self.images.x
        # The shapes of torchvision: (N, H, W) for grey, (N, H, W, C) for colour. These are views, not copies.
        self.data: npt.NDArray[np.uint8] = x[:, 0] if x.shape[1] == 1 else x.transpose(0, 2, 3, 1)
        self.targets: Labels = self.images.y
        self.classes = list(self.images.classes)
        self.class_to_idx = {name: label for label, name in enumerate(self.classes)}

    @abstractmethod
    def open(self, root: str | Path | None, download: bool) -> DataSet:
        """Open the data set."""

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        image, target = self._build_image(index), int(self.targets[index])
        if self.transform is not None:
            image = self.transform(image)
        return image, target if self.target_transform is None else self.target_transform(target)

    def __repr__(self) -> str:
        part = "train" if self.train else "test"
        return f"{type(self).__name__}({len(self)} images, {part}, root={self.root})"

    def _build_image(self, index: int) -> Any:
        pixels = self.data[index]
        if self.images.peak != 255:  # white is 255 in a PIL image
            pixels = np.rint(pixels * (255 / self.images.peak)).astype(np.uint8)
        return import_optional("PIL.Image", "a PIL image").fromarray(np.ascontiguousarray(pixels))


class KnownReader(Reader):
    """A data set that is known by name."""

    name: ClassVar[str]

    def open(self, root: str | Path | None, download: bool) -> DataSet:
        """Load from the root, else from the cache, else download into the root if `download` is True."""
        return load(self.name, root, download=download)


class Digits(KnownReader):
    """1,797 handwritten digits of 8 x 8; the last 360 are the test set."""

    name = "digits"


class MNIST(KnownReader):
    """60,000 and 10,000 handwritten digits of 28 x 28."""

    name = "mnist"


class FashionMNIST(KnownReader):
    """60,000 and 10,000 articles of clothing of 28 x 28."""

    name = "fashion-mnist"


class CIFAR10(KnownReader):
    """50,000 and 10,000 photographs of 32 x 32 in colour."""

    name = "cifar10"


class UserDataset(Reader):
    """Images of the user. The root is the file or folder."""

    def open(self, root: str | Path | None, download: bool) -> DataSet:
        """Load with splitrelay.data.load_user_dataset."""
        return load_user_dataset(root)
