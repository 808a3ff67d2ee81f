"""How far one visit may move the weights: a deposit beyond that is refused before it counts.

With clip the bound is what K steps of the spec can do: the gradient (SCAFFOLD's shift included) has at most the norm
`clip`, weight decay and the proximal term add their own part, momentum repeats them, and rounding gets a small
tolerance. Without clip no gradient is bounded, so a factor of the weights' own norm must do (limits.MOVE_FACTOR).
Adam, AdamW and Adagrad divide the gradient by its own size: they move no weight further than a multiple of eta in a
step, with clip and without it (`compute_reach`).
Buffers such as batch norm's running variance are never clipped: a half that has some takes the factor too. In either
case no single weight may come near an overflow (limits.LARGEST_WEIGHT).

The server checks its own half and the clients' half. Where the clients' half is sealed, the next client that opens it,
the evaluator or the fed server checks it, against x^0, which all of them can draw from the seed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from splitrelay.algorithms.base import Step, UpdateRule
from splitrelay.errors import Diverged
from splitrelay.network import limits
from splitrelay.network.codec import BadMessage
from splitrelay.runs.local_steps import build_step, compute_largest_eta
from splitrelay.runs.spec import Spec
from splitrelay.security.encryption import RejectedHalf

Vector = npt.NDArray[Any]
LARGEST_LOSS = float(np.finfo(np.float32).max)  # a loss of 1.7e308 is finite, but the sum of two is not
TOLERANCE = 0.01  # of the bound, for the rounding of norms and of clipped gradients
WAY_OUT = "Lower eta, or set clip, if the client is honest."


class DepositOutOfBounds(BadMessage):
    """Weights that a visit has moved further than it may."""


class UnlikelyHalf(RejectedHalf):
    """A sealed half that no honest visit can have left."""


@dataclass(frozen=True)
class Excess:
    """By how much weights went too far, and how far they may go."""

    what: str
    value: float
    limit: float


def check_move(before: Vector, after: Vector, limit: float, *, whose: str) -> None:
    """Raise DepositOutOfBounds if a visit moved these weights further than `limit`, Diverged if they overflowed."""
    found = find_excess(before, after, limit)
    if found is not None:
        what = f"{whose}: {found.what}"
        if not math.isfinite(found.value):
            raise Diverged(what, value=found.value, hint=WAY_OUT)
        raise DepositOutOfBounds(what, value=found.value, limit=f"at most {found.limit:.6g}", hint=WAY_OUT)


def check_sealed_half(
    half: Vector, x0: Vector, spec: Spec, visit: int, writer: int | None, *, has_buffers: bool = False
) -> None:
    """Raise UnlikelyHalf where a sealed half, after `visit` visits, is further from x^0 than honest ones can bring it.

    `writer` is the client that sealed it, as far as the half itself says so.
    """
    start = compute_norm(x0)
    limit = compute_factor_limit(start) if has_buffers else compute_sealed_limit(spec, start, visit, x0.size)
    found = find_excess(x0, half, limit)
    if found is not None:
        who = "an unknown client" if writer is None else f"client {writer}"
        what = f"the half of visit {visit}, which {who} wrote last: {found.what}"
        hint = "The server's keeper can go back: serve --back-to ROUND, with --without for that client."
        raise UnlikelyHalf(what, value=found.value, limit=f"at most {found.limit:.6g}", hint=hint)


def check_loss(value: float) -> None:
    """Raise BadMessage if a client reports a loss that sums cannot hold. An honest run in float32 has none."""
    if not abs(value) <= LARGEST_LOSS:  # also NaN
        raise BadMessage("a client reports a loss out of range", value=value, limit=f"at most {LARGEST_LOSS:g}")


def find_excess(before: Vector, after: Vector, limit: float) -> Excess | None:
    """Compare a half with its start. Single weights come first: then the squares below cannot overflow."""
    if not after.size:
        return None
    largest, allowed = find_largest(after), max(limits.LARGEST_WEIGHT, 2.0 * find_largest(before))
    if not largest <= allowed:  # NaN is not
        return Excess("a weight is too large", largest, allowed)
    moved = compute_norm(after - before)
    return None if moved <= limit else Excess("the weights moved too far", moved, limit)


def compute_move_limit(step: Step[Any], K: int, before: Vector, *, has_buffers: bool = False) -> float:
    """Derive how far K of these steps can move the weights `before`, as a Euclidean norm."""
    start, eta = compute_norm(before), _get_largest_eta(step)
    if step.rule.kind != "sgd":
        moved = _move_adaptively(step, eta, K, start, before.size) * (1.0 + TOLERANCE)
        rounding = K * float(np.finfo(before.dtype).eps) * (start + moved)
        return moved + rounding + (compute_factor_limit(start) if has_buffers else 0.0)
    if step.clip is None or has_buffers:
        shift = 0.0 if step.shift is None else compute_norm(np.asarray(step.shift))
        return compute_factor_limit(start) + eta * K * shift / (1.0 - step.momentum)
    velocity = moved = 0.0
    for _ in range(K):
        pull = step.clip + step.weight_decay * (start + moved) + step.prox * moved
        velocity = step.momentum * velocity + pull
        moved += eta * (pull + step.momentum * velocity if step.rule.nesterov else velocity)
        if moved == math.inf:
            break
    rounding = K * float(np.finfo(before.dtype).eps) * (start + moved)
    return moved * (1.0 + TOLERANCE) + rounding


def _get_largest_eta(step: Step[Any]) -> float:
    eta: Any = step.eta  # a number, as it travels
    server: Any = step.eta_server
    return float(eta if server is None else max(eta, server))


def _move_adaptively(step: Step[Any], eta: float, K: int, start: float, size: int) -> float:
    """Derive how far K steps of adam, adamw or adagrad can move `size` weights of norm `start`."""
    moved, decay = 0.0, step.weight_decay if step.rule.kind == "adamw" else 0.0
    for k in range(K):
        moved += eta * (compute_reach(step.rule, k + 1) * math.sqrt(size) + decay * (start + moved))
        if moved == math.inf:
            break
    return moved


def compute_reach(rule: UpdateRule, t: int) -> float:
    """Return how far the t-th step of an optimiser moves one weight, divided by eta, at most.

    Adagrad divides g_t by a root that contains g_t^2. Adam's mean is a sum of (1 - beta1) beta1^j g_{t-j}, and its
    mean of squares one of (1 - beta2) beta2^j g_{t-j}^2. The inequality of Cauchy and Schwarz bounds the ratio.
    """
    if rule.kind == "adagrad":
        return 1.0
    ratio = 0.0 if rule.beta1 == 0 else math.inf if rule.beta2 == 0 else rule.beta1**2 / rule.beta2
    if t == 1:
        return 1.0
    if ratio == math.inf:
        return math.inf
    total = float(t) if ratio == 1 else (1 - ratio**t) / (1 - ratio)
    corrections = math.sqrt(1 - rule.beta2**t) / (1 - rule.beta1**t)
    return (1 - rule.beta1) / math.sqrt(1 - rule.beta2) * math.sqrt(total) * corrections


def compute_factor_limit(start: float) -> float:
    """Derive how far weights of this norm may move where nothing clips their gradients."""
    return limits.MOVE_FACTOR * (start + 1.0)


def compute_sealed_limit(spec: Spec, start: float, visits: int, size: int = 0) -> float:
    """Derive how far so many visits can bring the clients' half from x^0, which has `size` weights and norm `start`.

    No honest run leaves the factor's range, so the clipped bound may take all weights to be within it.
    """
    step, farthest = spec.optimiser, compute_factor_limit(start)
    if spec.tau == "epochs":
        return farthest  # the steps depend on how much the other clients hold
    K, eta = spec.largest_K, compute_largest_eta(spec)
    if step.kind != "sgd":
        reach = _move_adaptively(build_step(step), eta, K, start + farthest, size)
        reach *= visits * max(spec.gamma, 1.0)
    elif step.clip is None:
        return farthest
    else:
        pull = step.clip + step.weight_decay * (start + farthest)
        reach = visits * max(spec.gamma, 1.0) * K * eta / (1.0 - step.momentum) * pull
    return min(farthest, reach * (1.0 + TOLERANCE) + 1e-6 * (start + 1.0))


def compute_norm(x: Vector) -> float:
    """Return the Euclidean norm."""
    return math.sqrt(float(np.vdot(x, x)))


def find_largest(x: Vector) -> float:
    """Return the largest absolute value; NaN if x contains one."""
    return max(float(x.max()), -float(x.min())) if x.size else 0.0
