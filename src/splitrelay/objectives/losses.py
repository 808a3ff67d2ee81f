"""Loss functions by name. A user can give `module:function` with the arguments (outputs, labels)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.nn import functional

from splitrelay.errors import InputError, UnknownName
from splitrelay.models.user_functions import load_user_function

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def mse(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return half the squared distance to the unit vector of the label, averaged over the images."""
    target = functional.one_hot(labels, outputs.shape[1]).to(outputs.dtype)
    return (outputs - target).square().sum(1).mean() / 2


LOSSES: dict[str, Loss] = {"cross-entropy": functional.cross_entropy, "mse": mse}


def get_loss(name: str) -> Loss:
    """Return the built-in loss with this name, or import the user's loss if the name contains a colon."""
    if not isinstance(name, str):
        raise InputError("a loss must be given by its name", value=type(name).__name__, limit="text")
    if ":" in name:
        loss: Loss = load_user_function("loss", name)
        return loss
    if name not in LOSSES:
        raise UnknownName("loss", name, LOSSES)
    return LOSSES[name]


@torch.no_grad()
def check_loss(loss: Loss, outputs: torch.Tensor, labels: torch.Tensor) -> None:
    """Raise InputError if the loss is not a mean over images, because F_m is a mean.

    The check computes the loss of a batch and of the same batch twice. A mean gives the same number.
    """
    name = f"loss {getattr(loss, '__name__', loss)}"
    try:
        once, twice = loss(outputs, labels), loss(torch.cat([outputs] * 2), torch.cat([labels] * 2))
    except (RuntimeError, TypeError, ValueError, AttributeError, LookupError) as error:
        shape = "x".join(map(str, outputs.shape))
        what = f"{name} does not accept the outputs of the model, {shape}, and {len(labels)} labels"
        raise InputError(what, value=str(error).splitlines()[0]) from None
    if not isinstance(once, torch.Tensor) or once.dim() != 0:
        value = str(tuple(once.shape)) if isinstance(once, torch.Tensor) else type(once).__name__
        raise InputError(f"{name} must return one number for a batch, as a tensor", value=value)
    if not math.isclose(float(once), float(twice), rel_tol=1e-3, abs_tol=1e-6):
        value = f"{float(once):.6g} for a batch and {float(twice):.6g} for the same images twice"
        raise InputError(f"{name} must be the mean over the images of a batch", value=value)
