"""Losses by name, or the user's own as module:function of (outputs, labels)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.nn import functional

from splitrelay.errors import InputError, UnknownName
from splitrelay.models.user_functions import load_user_function

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def mse(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Half the squared distance to the label's unit vector, the mean over images."""
    wanted = functional.one_hot(labels, outputs.shape[1]).to(outputs.dtype)
    return (outputs - wanted).square().sum(1).mean() / 2


LOSSES: dict[str, Loss] = {"cross-entropy": functional.cross_entropy, "mse": mse}


def get_loss(name: str) -> Loss:
    """The loss of that name."""
    if ":" in name:
        own: Loss = load_user_function("loss", name)
        return own
    if name not in LOSSES:
        raise UnknownName("loss", name, LOSSES)
    return LOSSES[name]


@torch.no_grad()
def check_loss(loss: Loss, outputs: torch.Tensor, labels: torch.Tensor) -> None:
    """F_m is a mean over images, and so must be a loss of one's own: the same batch twice has the same loss."""
    name = f"loss {getattr(loss, '__name__', loss)}"
    try:
        once, twice = loss(outputs, labels), loss(torch.cat([outputs] * 2), torch.cat([labels] * 2))
    except (RuntimeError, TypeError, ValueError, AttributeError, LookupError) as error:
        shape = "x".join(map(str, outputs.shape))
        what = f"{name} cannot take what the model puts out, {shape}, and {len(labels)} labels"
        raise InputError(what, value=str(error).splitlines()[0]) from None
    if not isinstance(once, torch.Tensor) or once.dim() != 0:
        value = str(tuple(once.shape)) if isinstance(once, torch.Tensor) else type(once).__name__
        raise InputError(f"{name} must answer with one number for a batch, as a tensor", value=value)
    if not math.isclose(float(once), float(twice), rel_tol=1e-3, abs_tol=1e-6):
        value = f"{float(once):.6g} for a batch and {float(twice):.6g} for the same images twice"
        raise InputError(f"{name} must be the mean over the images of a batch", value=value)
