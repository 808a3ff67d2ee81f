"""On softmax regression too, with constants measured on the data: the bound holds wherever it applies."""

import math
from dataclasses import replace

import numpy as np
import pytest

from splitrelay.algorithms import SSL, Step
from splitrelay.data import DataSet, ImageSet, draw_partition
from splitrelay.engine import InProcess
from splitrelay.objectives.softmax_regression import Softmax, feature_rows, mean_image
from splitrelay.paper.convex import build_problem, choose_theory_step, compute_bounds, run_study
from splitrelay.paper.convex_records import Record, Study, mean
from splitrelay.participation import Permutation
from splitrelay.randomness import Purpose, rng
from splitrelay.theory import weights
from splitrelay.training import train
from tests.support.paper_statements import bound, stepsize

STUDY = Study(data="tiny", Cs=(1, 3), M=4, K=2, R=120, mu=0.05, batch=3, etas=(0.3,), seeds=(1, 2), points=15)


def images(n: int) -> ImageSet:
    y = np.arange(n) % 3
    x = rng(5, Purpose.INSTANCES, 0).integers(120, size=(n, 1, 2, 3))
    x[np.arange(n), 0, 0, y] += 120
    return ImageSet(x.astype(np.uint8), y.astype(np.int64), ("a", "b", "c"), (0.5,), (0.5,))


@pytest.fixture(scope="module")
def record() -> Record:
    return run_study(STUDY, DataSet("tiny", images(90), images(30)))


@pytest.mark.parametrize("constants", ["proved", "tight"])
@pytest.mark.parametrize("algorithm", ["ssl", "fedavg", "minibatch-sgd"])
def test_the_bound_is_above_the_gap_wherever_it_applies(record: Record, algorithm: str, constants: str) -> None:
    for cell in record.cells:
        (side,) = (side for side in cell.sides if side.algorithm == algorithm)
        bounds = np.array(getattr(side.theory, constants), dtype=float)
        applies = np.isfinite(bounds)
        assert applies.any()
        assert (mean(side.theory.gap_bar)[applies] <= bounds[applies]).all()


def test_the_averaged_output_has_the_theorems_weights(record: Record) -> None:
    """One run of SSL alone at theory's step, all its models kept, weighed by w_r / W_R in the end."""
    theory, train_set = record.cells[0].sides[0].theory, images(90)
    division = draw_partition("exdir", train_set.y, M=4, C=1, alpha=10.0, seed=1)
    features = feature_rows(train_set.x, mean_image(train_set.x))
    objective = Softmax(features, train_set.y, division.indices, STUDY.mu, 3, STUDY.batch)
    step: Step[np.ndarray] = Step(theory.eta)
    states = train(SSL(step, STUDY.K), objective.x0, Permutation(4, 2), InProcess(objective, 2), R=STUDY.R)
    models = np.stack([x for _, x in states])
    x_bar = np.tensordot(weights(STUDY.mu, theory.eta_tilde, STUDY.R).share, models, axes=1)
    gap = float(objective.F(x_bar)) - record.cells[0].constants.F_star
    assert theory.gap_bar[1][-1] == pytest.approx(gap, rel=1e-8)


def test_it_applies_from_6_kappa_on(record: Record) -> None:
    for cell in record.cells:
        needed = cell.constants.rounds_needed
        for side in cell.sides[:3]:
            step = side.theory.eta_tilde
            expected = [r >= max(needed, 1 / (STUDY.mu * step)) for r in record.rounds]
            assert [value is not None for value in side.theory.proved] == expected


def test_scaffold_has_no_bound_and_takes_fedavgs_step(record: Record) -> None:
    for cell in record.cells:
        fedavg, scaffold = cell.sides[1], cell.sides[3]
        assert scaffold.theory.eta == fedavg.theory.eta
        assert not scaffold.theory.applies
        assert set(scaffold.theory.proved) == {None}


def test_the_step_is_the_calculators(record: Record) -> None:
    constants = record.cells[0].constants
    asked = build_problem(STUDY, constants, constants.sigma2_everywhere)
    assert choose_theory_step("ssl", STUDY, constants) == stepsize("ssl", "strongly-convex", asked).eta_tilde


def test_the_bound_is_the_calculators(record: Record) -> None:
    constants, theory = record.cells[0].constants, record.cells[0].sides[0].theory
    asked = replace(build_problem(STUDY, constants, constants.sigma2_seen), R=STUDY.R)
    expected = bound("ssl", "strongly-convex", asked, eta_tilde=theory.eta_tilde, constants="tight").total
    assert theory.tight[-1] == pytest.approx(expected, rel=1e-14)


def test_with_too_few_rounds_the_step_is_the_largest_and_there_is_no_bound(record: Record) -> None:
    constants, short = record.cells[0].constants, STUDY.model_copy(update={"R": 5})
    step = choose_theory_step("fedavg", short, constants)
    assert math.isclose(step, 1 / (6 * constants.L))
    assert compute_bounds("fedavg", short, constants, step, [1, 5], "proved") == [None, None]
