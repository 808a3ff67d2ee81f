"""A saved model scored on a set of images, by the words of the run that made it where there are any."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from splitrelay.data import load
from splitrelay.data.images import ImageSet
from splitrelay.engine.select import build_evaluator, resolve_engine
from splitrelay.errors import InputError, UnknownName
from splitrelay.evaluation import Score
from splitrelay.models import get_model_spec
from splitrelay.models.weights_io import load_weights, read_precision
from splitrelay.objectives.losses import get_loss
from splitrelay.objectives.network import DeviceImages, Network
from splitrelay.runs.build import build_partition, get_dtype, split_validation
from splitrelay.runs.spec import Spec, load_spec

PARTS = ("test", "train", "validation")


@dataclass(frozen=True)
class Subject:
    """What is scored, and how."""

    weights: Path
    model: str = "lenet-small"
    data: str = "digits"
    loss: str = "cross-entropy"
    dtype: str = "float32"
    engine: str = "auto"
    spec: Spec | None = None  # of the run that made it


def weights_at(path: Path) -> Path:
    """The file itself, or that of the run whose folder this is."""
    file = path / "model.safetensors" if path.is_dir() else path
    if not file.exists():
        raise InputError(f"no weights at {file}", hint="Name a .safetensors file, or the folder of a run.")
    return file


def subject_at(path: Path, *, model: str | None = None, data: str | None = None, loss: str | None = None) -> Subject:
    """Model, data, loss, precision and engine of the run in this folder; words that are given come first.

    A file alone tells its precision; the rest is the demo's unless it is said.
    """
    weights = weights_at(path)
    given: dict[str, Any] = {
        name: word for name, word in (("model", model), ("data", data), ("loss", loss)) if word is not None
    }
    if not (path / "spec.toml").is_file():
        return replace(Subject(weights, dtype=read_precision(weights)), **given)
    spec = load_spec(path / "spec.toml")
    engine = "auto" if {"model", "loss"} & given.keys() else spec.engine
    found = Subject(weights, spec.model.name, spec.data.name, spec.model.loss, spec.model.dtype, engine, spec)
    return replace(found, **given)


def images_of(subject: Subject, part: str = "test") -> ImageSet:
    """The images of that part; `validation` is what the run's clients kept from training."""
    if part not in PARTS:
        raise UnknownName("part", part, PARTS)
    data = load(subject.data)
    if part != "validation":
        return data.test if part == "test" else data.train
    spec = subject.spec
    if spec is None or not spec.data.validation or spec.data.name != subject.data:
        hint = "Score the folder of a run with validation=0.1 or another share, on its own data."
        raise InputError(f"nothing is known of samples kept from training in {subject.data}", hint=hint)
    _, kept = split_validation(build_partition(spec, data).indices, spec.data.validation, spec.seed)
    return data.train.part(kept)


def score(subject: Subject, images: ImageSet) -> Score:
    """Loss and accuracy, to the bit those of the run."""
    torch.set_num_threads(1)  # as in training: bits depend on it
    dtype, classes = get_dtype(subject.dtype), len(images.classes)
    plan = get_model_spec(subject.model, images.shape, classes)
    x = load_weights(subject.weights, plan.layout(dtype))
    engine, _ = resolve_engine(subject.engine, plan, dtype=subject.dtype, loss=subject.loss)
    seen = DeviceImages(images, dtype)
    network = Network(plan, seen, (), loss=get_loss(subject.loss), dtype=dtype)
    return build_evaluator(engine, plan, seen, classes, network).score(x)
