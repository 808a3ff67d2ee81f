"""Small networks on generated images, for tests of local steps."""

import numpy as np
import torch

from splitrelay.data.images import ImageSet
from splitrelay.models import get_model_spec
from splitrelay.objectives.batches import Batches
from splitrelay.objectives.network import DeviceImages, Network
from splitrelay.randomness import Purpose, rng


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
