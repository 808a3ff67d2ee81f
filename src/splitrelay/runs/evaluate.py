"""Evaluate a saved model on a set of images, with the settings of the run that made it if they are known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from splitrelay.data.images import Samples
from splitrelay.engine.select import build_evaluator, resolve_engine
from splitrelay.engine.torch_threads import limit_torch_threads
from splitrelay.errors import InputError, UnknownName
from splitrelay.evaluation import Score
from splitrelay.models import get_model_spec
from splitrelay.models.weights_io import load_weights, read_precision
from splitrelay.objectives.losses import get_loss
from splitrelay.objectives.metrics import get_metrics
from splitrelay.objectives.network import Network, to_device
from splitrelay.runs.build import build_partition, get_device, get_dtype, load_data, split_validation
from splitrelay.runs.spec import DataSpec, Spec, load_spec

PARTS = ("test", "train", "validation")


@dataclass(frozen=True)
class Subject:
    """The weights to evaluate, and the settings to do it with."""

    weights: Path
    model: str = "lenet-small"
    data: str = "digits"
    loss: str = "cross-entropy"
    dtype: str = "float32"
    engine: str = "auto"
    spec: Spec | None = None  # of the run that made the weights


def weights_at(path: Path) -> Path:
    """Return the file itself, or the final model of a run directory."""
    file = path / "model.safetensors" if path.is_dir() else path
    if not file.exists():
        raise InputError(f"no weights at {file}", hint="Name a .safetensors file, or the folder of a run.")
    return file


def subject_at(path: Path, *, model: str | None = None, data: str | None = None, loss: str | None = None) -> Subject:
    """Return what to evaluate: the settings of the run in a directory, or of a file and default settings.

    Arguments that are not None replace the settings. A file alone has only its precision.
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


def images_of(subject: Subject, part: str = "test") -> Samples:
    """Return the images of a part. `validation` is the samples that the clients of the run did not train on."""
    if part not in PARTS:
        raise UnknownName("part", part, PARTS)
    own = subject.spec is not None and subject.spec.data.name == subject.data
    data = load_data(subject.spec.data if own and subject.spec else DataSpec(name=subject.data))
    if part != "validation":
        return data.test if part == "test" else data.train
    spec = subject.spec
    if spec is None or not spec.data.validation or spec.data.name != subject.data:
        hint = "Score the folder of a run with validation=0.1 or another share, on its own data."
        raise InputError(f"nothing is known of samples kept from training in {subject.data}", hint=hint)
    _, kept = split_validation(build_partition(spec, data).indices, spec.data.validation, spec.seed)
    return data.train.part(kept)


def score(subject: Subject, images: Samples, device: str = "cpu") -> Score:
    """Return loss and accuracy, on the device of the run bit-identical to those of the run."""
    dtype, classes = get_dtype(subject.dtype), images.outputs
    plan = get_model_spec(subject.model, images.inputs, classes)
    x = load_weights(subject.weights, plan.layout(dtype))
    engine, _ = resolve_engine(
        subject.engine, plan, dtype=subject.dtype, loss=subject.loss, samples=images, device=device
    )
    seen = to_device(images, dtype, get_device(device))
    metrics = get_metrics(subject.spec.metrics if subject.spec else (), images.target, images.outputs)
    network = Network(plan, seen, (), loss=get_loss(subject.loss), dtype=dtype)
    with limit_torch_threads():
        return build_evaluator(engine, plan, seen, classes, network, metrics).score(x.to(seen.device))
