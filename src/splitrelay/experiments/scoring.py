"""A saved model scored on a set of images."""

from __future__ import annotations

from pathlib import Path

import torch

from splitrelay.data.images import ImageSet
from splitrelay.errors import InputError
from splitrelay.evaluation import Evaluator, Score
from splitrelay.models import blueprint
from splitrelay.models.files import load_weights
from splitrelay.objectives.images import DeviceImages
from splitrelay.objectives.losses import loss_named


def weights_at(path: Path) -> Path:
    """The file itself, or that of the run whose folder this is."""
    file = path / "model.safetensors" if path.is_dir() else path
    if not file.exists():
        raise InputError(f"no weights at {file}", way_out="Name a .safetensors file, or the folder of a run.")
    return file


def score_file(path: Path, model: str, images: ImageSet, loss: str = "cross-entropy") -> Score:
    """Loss and accuracy of the weights in a file."""
    plan = blueprint(model, images.shape, len(images.classes))
    x = load_weights(weights_at(path), plan.layout())
    return Evaluator(plan, DeviceImages(images), len(images.classes), loss_named(loss), torch.float32).score(x)
