"""Both engines, the fast one only where it is built, and small networks for them."""

import numpy as np
import torch

from splitrelay.data.images import ImageSet
from splitrelay.engine.select import FastEngine
from splitrelay.engine.torch_engine import SplitEngine, WholeEngine
from splitrelay.kernels import find_obstacle
from splitrelay.models import get_model_spec
from splitrelay.objectives.batches import Batches
from splitrelay.objectives.network import DeviceImages, Network
from splitrelay.randomness import Purpose, rng

ENGINES = ["reference", "fast"] if find_obstacle() is None else ["reference"]


def whole(engine: str, net: Network, seed: int = 5) -> WholeEngine | FastEngine:
    return WholeEngine(net, seed) if engine == "reference" else FastEngine(net, seed, "whole")


def in_two(engine: str, net: Network, seed: int = 5, cut: str | int | None = None) -> SplitEngine | FastEngine:
    return SplitEngine(net, seed, cut) if engine == "reference" else FastEngine(net, seed, "cut", cut)


def make_images(shape: tuple[int, int, int] = (1, 8, 8), N: int = 60) -> ImageSet:
    """Return random images of ten classes."""
    generator = rng(1, Purpose.INSTANCES)
    x = generator.integers(0, 256, (N, *shape), dtype=np.uint8)
    mean, std = (0.5,) * shape[0], (0.3,) * shape[0]
    return ImageSet(x, generator.integers(0, 10, N), tuple("0123456789"), mean, std)


def make_network(dtype: torch.dtype = torch.float32, model: str = "lenet-small", M: int = 2) -> Network:
    """Return a network whose M clients have the same number of images."""
    images = make_images()
    holdings = np.array_split(np.arange(len(images)), M)
    plan = get_model_spec(model, images.shape, 10)
    return Network(plan, DeviceImages(images, dtype), holdings, Batches(7), dtype=dtype)
