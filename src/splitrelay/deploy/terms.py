"""What server and clients agree on at the handshake, made from a spec and read back from the terms."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from threading import Lock

import torch
from pydantic import ValidationError

from splitrelay.data.augment import Augmentation
from splitrelay.data.images import DataSet
from splitrelay.errors import InputError
from splitrelay.experiments.assembly import Trial
from splitrelay.experiments.running import trial_of
from splitrelay.experiments.spec import Spec
from splitrelay.models import Blueprint, blueprint, cut_index
from splitrelay.models.stretch import Stretch
from splitrelay.wire import limits
from splitrelay.wire.messages import Accept, Terms


BUILDING = Lock()  # building a net draws from torch's own generator, and the check for hidden draws watches that


def engine_of(spec: Spec) -> str:
    """Who computes: bits are equal only between hosts with the same."""
    return str(getattr(spec, "engine", "reference"))


def cpu_level() -> str:
    """The instructions that torch uses here: bits may differ between hosts with different ones."""
    return torch.backends.cpu.get_cpu_capability()


def terms_of(spec: Spec, data: DataSet, heartbeat: float = limits.HEARTBEAT) -> Terms:
    """The spec, and how a pixel becomes a number: all that a client needs to know."""
    train, augmentation = data.train, data.augmentation
    return Terms(
        spec=spec.toml(),
        spec_hash=spec.hash,
        engine=engine_of(spec),
        cpu=cpu_level(),
        shape=train.shape,
        classes=train.classes,
        mean=train.mean,
        std=train.std,
        peak=train.peak,
        pad=augmentation.pad if augmentation else 0,
        flip=augmentation.flip if augmentation else False,
        heartbeat=heartbeat,
    )


def spec_in(terms: Terms) -> Spec:
    """The spec that the server sent, if it is the one that it names."""
    try:
        spec = Spec.model_validate(tomllib.loads(terms.spec))
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise InputError("the server's spec cannot be read", value=str(error).splitlines()[0]) from None
    if spec.hash != terms.spec_hash or engine_of(spec) != terms.engine:
        raise InputError("the server's spec is not the one it names", value=spec.hash, limit=terms.spec_hash)
    return spec


def augmentation_in(terms: Terms) -> Augmentation | None:
    """What training may do to an image."""
    return Augmentation(terms.pad, terms.flip) if terms.pad or terms.flip else None


@dataclass(frozen=True)
class Shape:
    """What both ends can tell from a spec before anything is sent."""

    trial: Trial
    blueprint: Blueprint
    cut: int  # layers of the client
    boundary: int  # numbers of the client's half
    size: int  # numbers of x
    h: tuple[int, ...]  # smashed data of one sample
    norms: int  # tensors of the server's half

    @property
    def whole(self) -> bool:
        """Whether clients hold the whole model."""
        return self.trial.placement == "whole"


def shape_of(spec: Spec, images: tuple[int, int, int], classes: int) -> Shape:
    """The sizes of a spec's messages."""
    trial = trial_of(spec)
    plan = blueprint(trial.model, images, classes, trial.cut)
    layout = plan.layout(getattr(torch, trial.dtype))
    cut = cut_index(plan, trial.cut)
    bottom = Stretch(plan, 0, cut, layout.dtype)
    bottom.layers.eval()
    with torch.no_grad():
        h = bottom.through(torch.zeros((1, *images), dtype=layout.dtype))
    norms = sum(slot.parameter for slot in layout.slots if slot.layer >= cut)
    return Shape(trial, plan, cut, layout.ends[cut], layout.size, tuple(h.shape[1:]), norms)


def disagreement(terms: Terms, accept: Accept) -> str | None:
    """Why a client cannot take part; None where it can. Another CPU level is allowed, and recorded."""
    if accept.spec_hash != terms.spec_hash:
        return f"this run is of spec {terms.spec_hash}, not {accept.spec_hash}"
    if accept.engine != terms.engine:
        return f"this run is computed by the engine {terms.engine}, not {accept.engine}"
    if accept.n == 0:
        return "a client without samples cannot train"
    return None
