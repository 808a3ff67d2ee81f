"""Where the convex study meets the theory: the step that a theorem would take, and the bound at every number of rounds.

SCAFFOLD has no theorem in the paper: it takes FedAvg's step, and no bound is claimed for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from splitrelay.paper.convex_records import Constants, Study
from splitrelay.theory import Problem
from splitrelay.theory.bounds import evaluate_bound
from splitrelay.theory.stepsizes import choose_step

CASE = "strongly-convex"
THEOREM = {"ssl": "ssl", "fedavg": "fedavg", "minibatch-sgd": "minibatch-sgd"}


def problem(study: Study, constants: Constants, sigma2: float) -> Problem:
    """The study's constants as the theorems ask for them."""
    return Problem(
        L=constants.L,
        mu=constants.mu,
        sigma2=sigma2,
        zeta2_star=constants.zeta2_star,
        M=study.M,
        K=study.K,
        R=study.R,
        D2=constants.D2,
        A=constants.A,
    )


def theory_step(algorithm: str, study: Study, constants: Constants) -> float:
    """The eta_tilde that minimises the proved bound, from what is known before any run: sigma2 as it holds everywhere.

    Where R < 6 kappa no step is in the range, and the largest that the proofs can bear, 1/(6 L), is taken.
    """
    asked = problem(study, constants, constants.sigma2_everywhere)
    found = choose_step(THEOREM.get(algorithm, "fedavg"), CASE, asked, "best", "proved", "R", "mask")
    step = float(found.eta_tilde)
    return 1 / (6 * constants.L) if math.isnan(step) else step


def bound_after(
    algorithm: str, study: Study, constants: Constants, eta_tilde: float, rounds: Sequence[int], kind: str
) -> list[float | None]:
    """The bound on E F(x-bar) - F* after so many rounds, with the sigma2 seen; None where it does not apply."""
    if algorithm not in THEOREM:
        return [None] * len(rounds)
    asked = replace(problem(study, constants, constants.sigma2_seen), R=np.maximum(rounds, 1))
    total = evaluate_bound(THEOREM[algorithm], CASE, asked, np.asarray(eta_tilde), kind, "R", "mask").total
    shown = np.where(np.asarray(rounds) > 0, total, np.nan)
    return [None if math.isnan(value) else float(value) for value in shown]
