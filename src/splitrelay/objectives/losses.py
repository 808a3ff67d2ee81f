"""Loss functions by name. A user can give `module:function` with the arguments (outputs, labels).

    targets      loss                      outputs of the model      labels
    classes      cross-entropy, mse        (N, classes)              int64 (N,)
    real         squared-error             (N, k)                    float (N,) or (N, k)
    multi-label  bce                       (N, labels)               0 or 1 (N, labels)
    tokens       token-cross-entropy       (N, T, vocabulary)        int64 (N, T), -100 does not count

Every loss is a mean over the samples of a batch, because F_m is a mean over the samples of a client.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.nn import functional

from splitrelay.data.samples import NO_TOKEN, Target
from splitrelay.errors import InputError, UnknownName, find_user_code
from splitrelay.user_functions import load_user_function

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def mse(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return half the squared distance to the unit vector of the label, averaged over the images."""
    target = functional.one_hot(labels, outputs.shape[1]).to(outputs.dtype)
    return (outputs - target).square().sum(1).mean() / 2


def compute_squared_error(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean squared difference of outputs and real numbers. Outputs (N, 1) fit labels (N,)."""
    return functional.mse_loss(outputs.reshape(labels.shape), labels)


def compute_bce(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean binary cross-entropy over samples and labels. The outputs are logits."""
    return functional.binary_cross_entropy_with_logits(outputs.reshape(labels.shape), labels)


def compute_token_cross_entropy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean over samples of the mean cross-entropy of their tokens."""
    losses = functional.cross_entropy(outputs.flatten(0, 1), labels.flatten(), ignore_index=NO_TOKEN, reduction="none")
    counts = (labels != NO_TOKEN).sum(1).clamp(min=1)
    return (losses.view(labels.shape).sum(1) / counts).mean()


LOSSES: dict[str, Loss] = {
    "cross-entropy": functional.cross_entropy,
    "mse": mse,
    "squared-error": compute_squared_error,
    "bce": compute_bce,
    "token-cross-entropy": compute_token_cross_entropy,
}
TARGET_LOSSES: dict[Target, tuple[str, ...]] = {  # the first is the usual one
    "classes": ("cross-entropy", "mse"),
    "real": ("squared-error",),
    "multi-label": ("bce",),
    "tokens": ("token-cross-entropy",),
}


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


def check_target(name: str, target: Target) -> None:
    """Raise InputError if a built-in loss does not fit the kind of targets."""
    if ":" not in name and name in LOSSES and name not in TARGET_LOSSES[target]:
        fitting = TARGET_LOSSES[target]
        what = f"loss {name} does not fit targets of the kind {target}"
        raise InputError(what, limit=" or ".join(fitting), value=name, hint=f"Use loss={fitting[0]}.")


@torch.no_grad()
def check_loss(loss: Loss, outputs: torch.Tensor, labels: torch.Tensor) -> None:
    """Raise InputError if the loss is not a mean over images, because F_m is a mean.

    The check computes the loss of a batch and of the same batch twice. A mean gives the same number.
    """
    name = f"loss {getattr(loss, '__name__', loss)}"
    try:
        once, twice = loss(outputs, labels), loss(torch.cat([outputs] * 2), torch.cat([labels] * 2))
    except Exception as error:  # the user's code can raise anything
        shape = "x".join(map(str, outputs.shape))
        place = find_user_code(error)
        where = f": error in your code, {place}" if place else ""
        what = f"{name} does not accept the outputs of the model, {shape}, and {len(labels)} labels{where}"
        raise InputError(what, value=f"{type(error).__name__}: {error}".splitlines()[0]) from error
    if not isinstance(once, torch.Tensor) or once.dim() != 0:
        value = str(tuple(once.shape)) if isinstance(once, torch.Tensor) else type(once).__name__
        raise InputError(f"{name} must return one number for a batch, as a tensor", value=value)
    if not math.isclose(float(once), float(twice), rel_tol=1e-3, abs_tol=1e-6):
        value = f"{float(once):.6g} for a batch and {float(twice):.6g} for the same images twice"
        raise InputError(f"{name} must be the mean over the images of a batch", value=value)
