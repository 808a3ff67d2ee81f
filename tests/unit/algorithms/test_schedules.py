"""Learning rates by round: by hand, from functions of the user, and derived by a client."""

from dataclasses import replace
from fractions import Fraction as Q
from pathlib import Path
from typing import Any

import pytest

from splitrelay.algorithms import SSL, Step
from splitrelay.algorithms.schedules import Schedule, Scheduled
from splitrelay.deploy.deposit_bound import compute_sealed_limit
from splitrelay.deploy.lease_limits import ServerBrokeSpec, derive_allowed_visits
from splitrelay.engine import InProcess
from splitrelay.errors import InputError, UnknownName
from splitrelay.network.messages import Lease
from splitrelay.objectives.batches import Batches
from splitrelay.objectives.quadratic import ScalarQuadratics
from splitrelay.participation import Fixed
from splitrelay.runs.local_steps import build_schedule
from splitrelay.runs.spec import make_spec
from splitrelay.training import train
from tests.support.error_fields import expect_error


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        (Schedule(), [1, 1, 1, 1]),
        (Schedule("step", period=2, factor=0.1), [1, 1, 0.1, 0.1, 0.01]),
        (Schedule("cosine", period=4), [1, 0.8535533906, 0.5, 0.1464466094, 0.1464466094]),
        (Schedule("inverse-sqrt"), [1, 0.7071067812, 0.5773502692, 0.5]),
        (Schedule(warmup=4), [0.25, 0.5, 0.75, 1, 1]),
        (Schedule("step", warmup=2, period=1, factor=0.5), [0.5, 1, 1, 0.5, 0.25]),
        (Schedule("mine:rate", function=lambda r: 1 / (1 + r)), [1, 0.5, 1 / 3]),
    ],
)
def test_factors_by_hand(schedule: Schedule, factors: list[float]) -> None:
    assert [schedule.compute_factor(r) for r in range(len(factors))] == pytest.approx(factors, rel=1e-9)


def test_two_rounds_by_hand() -> None:
    clients = InProcess(ScalarQuadratics(h=(1, 1), a=(1, -1)))
    halving = Schedule("step", period=1, factor=0.5)
    algorithm: Any = Scheduled(lambda step: SSL(step, K=1), Step(0.5), halving)
    models = [x for _, x in train(algorithm, Q(2), Fixed((0, 1)), clients, R=2)]
    assert models == [2, 3 / 4, 31 / 64]


@pytest.mark.parametrize("factor", [0, -1, float("nan"), float("inf"), "0.1", None])
def test_a_function_that_returns_no_rate_is_refused(factor: Any) -> None:
    with expect_error(InputError, what="mine:rate", limit=True):
        Schedule("mine:rate", function=lambda r: factor).compute_factor(3)


def test_unknown_schedules_are_refused() -> None:
    with pytest.raises(UnknownName):
        Schedule("linear")


def test_a_client_derives_the_rate_of_each_round_from_its_own_spec() -> None:
    spec = make_spec(schedule="step", period=2, factor=0.5, eta=0.4, R=6, K=3)
    allowed = derive_allowed_visits(spec, 0)
    assert [allowed.get_step(r).eta for r in range(6)] == [0.4, 0.4, 0.2, 0.2, 0.1, 0.1]
    lease = Lease(1, 1, 2, 0, 0, 3, eta=0.2, weight_decay=spec.optimiser.weight_decay)
    allowed.check_lease(lease, 10**9)
    with expect_error(ServerBrokeSpec, value="0.2"):
        allowed.check_lease(replace(lease, r=4), 10**9)
    assert allowed.make_visit(replace(lease, r=4), None, None).step.eta == 0.1


def test_epochs_count_the_batches_of_a_client() -> None:
    assert [Batches(20).count_steps(n) for n in (1, 20, 21, 60)] == [1, 1, 2, 3]
    assert [Batches(20, drop_last=True).count_steps(n) for n in (7, 20, 39, 60)] == [1, 1, 1, 3]
    assert Batches(20, "full").count_steps(500) == 1
    spec = make_spec(tau="epochs", K=2, batch=20)
    assert derive_allowed_visits(spec, 0, n=50).K == 6 and derive_allowed_visits(spec, 0, n=50).has_fixed_K


def test_a_function_of_the_user_scales_the_bound_of_sealed_halves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rates_of_a_test.py").write_text("def rise(r):\n    return 1 + r\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    given = {"clip": 1.0, "weight_decay": 0.0, "eta": 0.01, "R": 4}
    rising = make_spec(schedule="rates_of_a_test:rise", **given)
    assert build_schedule(rising.optimiser).compute_factor(3) == 4
    assert compute_sealed_limit(rising, 0.0, 1) == pytest.approx(
        4 * compute_sealed_limit(make_spec(**given), 0.0, 1), rel=1e-3
    )
