"""The local step of a spec: the optimiser and its learning rate.

This module does not import torch. A deployed client derives its steps with it from its own copy of the spec.
"""

from __future__ import annotations

from typing import Any

from splitrelay.algorithms.base import AlgorithmSettings, Cut, LocalSteps, Sizes, Step, UpdateRule
from splitrelay.algorithms.schedules import Schedule
from splitrelay.errors import InputError
from splitrelay.objectives.batches import Batches
from splitrelay.runs.spec import PASSES_ON, OptimiserSpec, Spec
from splitrelay.user_functions import load_user_function

EPSILON = {"adam": 1e-8, "adamw": 1e-8, "adagrad": 1e-10}  # as in torch.optim
ONLY_SGD = ("scaffold", "minibatch-sgd")  # algorithms whose formulas are those of plain steps


def build_step(optimiser: OptimiserSpec) -> Step[Any]:
    """Return the local step of a spec."""
    rule = UpdateRule(
        optimiser.kind,
        optimiser.nesterov,
        optimiser.beta1,
        optimiser.beta2,
        EPSILON.get(optimiser.kind, UpdateRule.epsilon) if optimiser.epsilon is None else optimiser.epsilon,
        optimiser.state,
    )
    return Step(
        optimiser.eta,
        optimiser.weight_decay,
        optimiser.clip,
        optimiser.momentum,
        per_half=optimiser.per_half,
        rule=rule,
        eta_server=optimiser.eta_server,
    )


def build_settings(
    spec: Spec, step: Step[Any], K: LocalSteps, M: int, cut: Cut[Any], sizes: Sizes | None
) -> AlgorithmSettings:
    """Return the values from which the algorithm of a spec is built."""
    return AlgorithmSettings(
        step,
        K,
        M,
        cut,
        spec.gamma,
        sizes,
        spec.G,
        spec.prox,
        spec.server_momentum,
        spec.server_beta2,
        spec.server_epsilon,
    )


def build_schedule(optimiser: OptimiserSpec) -> Schedule:
    """Return the learning rate of each round."""
    name = optimiser.schedule
    function = load_user_function("schedule", name) if ":" in name else None
    return Schedule(name, optimiser.warmup, optimiser.period, optimiser.factor, function)


def compute_largest_eta(spec: Spec) -> float:
    """Return the largest learning rate of all rounds of the client half."""
    schedule = build_schedule(spec.optimiser)
    factor = 1.0 if schedule.function is None else max(map(schedule.compute_factor, range(spec.R)))
    return spec.optimiser.eta * factor


def count_local_steps(spec: Spec, n: int) -> int:
    """Return the steps of a visit of a client with n samples, unless they depend on the samples of all clients."""
    if spec.tau != "epochs":
        return spec.K
    optimiser = spec.optimiser
    return spec.K * Batches(optimiser.batch, optimiser.draw, optimiser.drop_last).count_steps(n)


def check_optimiser(spec: Spec) -> None:
    """Raise InputError for keys of the optimiser that have no effect, or that the algorithm cannot use.

    This is checked when a run is built, not when a spec is read, so that older records can still be read.
    """
    optimiser, kind = spec.optimiser, spec.optimiser.kind
    for key, users in (
        ("momentum", ("sgd",)),
        ("nesterov", ("sgd",)),
        ("beta1", ("adam", "adamw")),
        ("beta2", ("adam", "adamw")),
        ("epsilon", tuple(EPSILON)),
    ):
        if kind not in users and getattr(optimiser, key) != type(optimiser).model_fields[key].default:
            raise InputError(f"{key} has no effect with optimiser={kind}", hint=f"Remove {key}.")
    for key, kinds in (("period", ("step", "cosine")), ("factor", ("step",))):
        is_set = getattr(optimiser, key) != type(optimiser).model_fields[key].default
        if is_set and optimiser.schedule not in kinds:
            raise InputError(f"{key} has no effect with schedule={optimiser.schedule}", hint=f"Remove {key}.")
    if optimiser.nesterov and not optimiser.momentum:
        raise InputError("nesterov has no effect without momentum", hint="Set momentum, or remove nesterov.")
    if optimiser.state != "reset" and not build_step(optimiser).rule.count_vectors(optimiser.momentum):
        raise InputError(f"state={optimiser.state} has no effect: plain SGD has no state", hint="Remove state.")
    if optimiser.state == "handed" and spec.algorithm not in PASSES_ON:
        hint = "Use state=kept, or state=reset."
        what = f"{spec.algorithm} does not hand x from client to client, so it cannot hand on the optimiser's state"
        raise InputError(what, value="state=handed", limit=", ".join(PASSES_ON), hint=hint)
    if spec.algorithm in ONLY_SGD and (kind != "sgd" or optimiser.eta_server is not None):
        value = f"optimiser={kind}" if kind != "sgd" else f"eta_server={optimiser.eta_server:g}"
        what = f"the formulas of {spec.algorithm} hold for SGD with one learning rate only"
        raise InputError(what, value=value, hint="Use optimiser=sgd without eta_server, or another algorithm.")


def find_fast_engine_obstacle(optimiser: OptimiserSpec) -> str | None:
    """Return which setting of the optimiser the fast engine does not have, or None."""
    for key in ("kind", "nesterov", "state", "eta_server"):
        value, name = getattr(optimiser, key), "optimiser" if key == "kind" else key
        if value != type(optimiser).model_fields[key].default:
            return f"the fast engine has SGD with one learning rate only, not {name}={str(value).lower()}"
    return None
