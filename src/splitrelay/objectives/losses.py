"""Losses by name, or the user's own as module:function of (outputs, labels)."""

from __future__ import annotations

import importlib

import torch
from torch.nn import functional

from splitrelay.errors import InputError, UnknownName
from splitrelay.objectives.network import Loss


def mse(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Half the squared distance to the label's unit vector, the mean over images."""
    wanted = functional.one_hot(labels, outputs.shape[1]).to(outputs.dtype)
    return (outputs - wanted).square().sum(1).mean() / 2


LOSSES: dict[str, Loss] = {"cross-entropy": functional.cross_entropy, "mse": mse}


def loss_named(name: str) -> Loss:
    """The loss of that name."""
    if ":" in name:
        return _own(name)
    if name not in LOSSES:
        raise UnknownName("loss", name, LOSSES)
    return LOSSES[name]


def _own(name: str) -> Loss:
    module, _, function = name.partition(":")
    try:
        found: Loss = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise InputError(f"loss {name} cannot be had", value=str(error), way_out="Name it module:function.") from None
    return found
