"""How many local steps still help: beyond this K the noise term is below the drift by heterogeneity."""

from __future__ import annotations

import numpy as np

from splitrelay.errors import InputError
from splitrelay.theory.problem import Problem, positive
from splitrelay.theory.results import Algorithm, Case, Constants
from splitrelay.theory.scalar_or_array import Array, Values, plain
from splitrelay.theory.theorem_constants import SC, check_algorithm, statement


def useful_local_steps(
    algorithm: Algorithm,
    case: Case,
    problem: Problem,
    *,
    eta_tilde: Values | None = None,
    constants: Constants = "proved",
) -> Values:
    """The K from which the noise term is no longer the larger one; infinite where zeta = 0, zero where sigma = 0.

    Without a step, by order: (sigma^2 / zeta_*^2) (mu / L) R, as the paper has it (strongly convex, SSL). At a step,
    with the bound's own constants: (4/5) sigma^2 / (L eta_tilde zeta_*^2). FedAvg's are M times smaller.
    """
    check_algorithm(algorithm, case)
    row = statement(algorithm, case, constants)
    q = problem.asked_by(f"the useful K of {algorithm} {case}", case)
    if algorithm not in ("ssl", "fedavg"):
        raise InputError(f"{q.asker} is not defined: the sampling term does not fall with K")
    clients: Array | float = 1.0 if algorithm == "ssl" else q.M
    if eta_tilde is not None:
        scale = row.noise / row.heterogeneity_drift / (q.L * positive("eta_tilde", eta_tilde))
    elif case == SC:
        scale = q.mu / q.L * q.R
    else:
        raise InputError(f"{q.asker} needs eta_tilde", hint="The paper states the order for strongly-convex only.")
    noise, heterogeneity = np.broadcast_arrays(q.sigma2 * scale / clients, q.heterogeneity)
    limit = np.where(noise > 0, np.inf, 0.0)
    return plain(np.divide(noise, heterogeneity, out=limit, where=heterogeneity > 0))
