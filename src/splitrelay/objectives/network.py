"""F_m for real work: the mean loss of a network over the images of client m."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from splitrelay.data.augment import Augmentation
from splitrelay.models import ModelSpec, SubModel
from splitrelay.objectives.batches import Batches
from splitrelay.objectives.device_images import DeviceImages
from splitrelay.objectives.losses import LOSSES, Loss, check_loss
from splitrelay.randomness import Purpose, rng

__all__ = ["Loss", "Name", "Network"]
FEW = 4  # images on which a loss of one's own is tried


@dataclass(frozen=True)
class Name:
    """What names a visit's randomness: the root seed, then round, client and occurrence."""

    seed: int
    r: int
    m: int
    i: int

    def rng(self, purpose: Purpose, *more: int) -> np.random.Generator:
        """The visit's generator for this purpose."""
        return rng(self.seed, purpose, self.r, self.m, self.i, *more)


@dataclass(frozen=True, eq=False)
class Network:
    """A model, a training set, who holds which of its images, and how batches are drawn from them."""

    model_spec: ModelSpec
    images: DeviceImages
    holdings: Sequence[npt.NDArray[np.int64]]
    batches: Batches = field(default_factory=Batches)
    augmentation: Augmentation | None = None
    loss: Loss = torch.nn.functional.cross_entropy
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if self.loss not in LOSSES.values():
            features, labels = next(self.images.slices(FEW))
            layers = SubModel(self.model_spec, 0, len(self.model_spec.layers()), self.dtype, self.device)
            layers.load(self.model_spec.x0(0, self.dtype))
            check_loss(self.loss, layers.predict(features), labels)

    @property
    def M(self) -> int:
        """The number of clients."""
        return len(self.holdings)

    @property
    def device(self) -> torch.device:
        """Where everything happens."""
        return self.images.x.device

    def samples(self, name: Name, K: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """(features, labels) of K steps. All positions and crops of the visit are drawn, and copied, once."""
        held = self.holdings[name.m]
        steps = self.batches.positions(len(held), K, name.rng(Purpose.BATCHES))
        together = torch.from_numpy(held[np.concatenate(steps)]).to(self.device)
        crops = self.augmentation and self.augmentation.draw(name.rng(Purpose.AUGMENT), len(together))
        start = 0
        for step in steps:
            here = slice(start, start + len(step))
            yield self.images.batch(together[here], crops[here] if crops else None)
            start = here.stop
