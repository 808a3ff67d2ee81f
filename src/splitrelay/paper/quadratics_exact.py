"""Beside each simulated value the exact one: FedAvg's point, SSL's law over all orders; with noise, their RMS."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from splitrelay.objectives.exact_distributions import MOST_CLIENTS as MOST_CLIENTS_OF_LAW
from splitrelay.objectives.exact_distributions import fedavg_point, ssl_law
from splitrelay.objectives.exact_moments import MOST_CLIENTS, Round, fedavg_round, ssl_round, trajectory
from splitrelay.objectives.quadratic import ScalarQuadratics
from splitrelay.paper.quadratics import Row


@dataclass(frozen=True)
class Exact:
    """Of the last error at the best rates. Noise or more dimensions leave only the two RMS; many clients nothing."""

    fedavg_rms: float | None = None
    ssl_rms: float | None = None
    fedavg_fixed_point: float | None = None
    fedavg_log10_error: float | None = None
    ssl_mean: float | None = None
    ssl_mean_absolute: float | None = None
    ssl_smallest: float | None = None
    ssl_largest: float | None = None


def exact(row: Row) -> Exact:
    """All that is known exactly about one group."""
    problem = row.group.problem
    if problem.M > MOST_CLIENTS:
        return Exact()
    if problem.d > 1 or problem.sigma2 > 0 or problem.M > MOST_CLIENTS_OF_LAW:
        fedavg = _rms(row, fedavg_round(problem, row.fedavg.eta, row.study.K))
        return Exact(fedavg, _rms(row, ssl_round(problem, row.ssl.eta, row.study.K)))
    return _law(row)


def _rms(row: Row, round_: Round) -> float:
    """The root of E ||x^R - x*||^2 over all orders and the noise."""
    problem = row.group.problem
    moments = trajectory(problem, round_, np.full(problem.d, row.study.x0), row.study.R)
    return math.sqrt(float(moments.r2[-1]))


def _law(row: Row) -> Exact:
    clients, study = ScalarQuadratics.beside([row.group.problem]), row.study
    point = fedavg_point(clients, row.fedavg.eta, study.K, study.R, study.x0)
    law = ssl_law(clients, row.ssl.eta, study.K, study.R, study.x0)
    values = (
        *(point.error, law.rms, point.fixed_point, point.log10_error),
        *(law.mean, law.mean_absolute, law.smallest, law.largest),
    )
    return Exact(*(float(value.item()) for value in values))
