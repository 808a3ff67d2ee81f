"""Beside each simulated value the exact one: FedAvg's point, SSL's law over all orders."""

from __future__ import annotations

from dataclasses import dataclass

from splitrelay.experiments.quadratics import Row
from splitrelay.objectives.orders_law import MOST_CLIENTS, fedavg_point, ssl_law
from splitrelay.objectives.quadratic import ScalarQuadratics


@dataclass(frozen=True)
class Exact:
    """At the best rates: where FedAvg ends, and the law of SSL's last error over all orders."""

    fedavg_fixed_point: float
    fedavg_error: float
    fedavg_log10_error: float
    ssl_mean: float
    ssl_rms: float
    ssl_mean_absolute: float
    ssl_smallest: float
    ssl_largest: float


def exact(row: Row) -> Exact | None:
    """None where no exact law is known: noise, more than one dimension, many clients."""
    problem, study = row.group.problem, row.study
    if problem.d > 1 or problem.sigma2 > 0 or problem.M > MOST_CLIENTS:
        return None
    clients = ScalarQuadratics.beside([problem])
    point = fedavg_point(clients, row.fedavg.eta, study.K, study.R, study.x0)
    law = ssl_law(clients, row.ssl.eta, study.K, study.R, study.x0)
    values = (
        *(point.fixed_point, point.error, point.log10_error),
        *(law.mean, law.rms, law.mean_absolute, law.smallest, law.largest),
    )
    return Exact(*(float(value.item()) for value in values))
