"""Are millions of settings, worked out piece by piece, what each of them is alone?"""

import numpy as np
import pytest

from splitrelay.theory import Problem
from splitrelay.theory.results import CHUNK_SIZE, MIN_PER_THREAD, map_chunks
from tests.support.paper_statements import compare
from tests.support.theory_problems import ALL_CASES

R = np.unique(np.geomspace(12, 1e6, CHUNK_SIZE + 500).astype(int))  # more than one piece for each K
KNOWN = {"L": 2, "mu": 1, "sigma2": 1, "zeta2": 4, "B2": 0.5, "M": 10, "S": 5, "D2": 1, "A": 1.5}
CHOSEN = [(0, 0), (CHUNK_SIZE // 2, 1), (-1, 1)]


@pytest.mark.parametrize("case", ALL_CASES)
def test_each_setting_of_many_is_what_it_is_alone(case: str) -> None:
    many = compare(case, Problem(**KNOWN, R=R[:, np.newaxis], K=np.array([1, 50])))
    for i, j in CHOSEN:
        one = compare(case, Problem(**KNOWN, R=int(R[i]), K=[1, 50][j]))
        for name, side in one.equal_rounds.items():
            found = many.equal_rounds[name]
            assert found.bound.total[i, j] == pytest.approx(side.bound.total, rel=1e-14, nan_ok=True)
            assert found.bound.eta[i, j] == pytest.approx(side.bound.eta, rel=1e-14, nan_ok=True)
            assert found.step.branch[i, j] == side.step.branch
            terms = {term: values[i, j] for term, values in found.bound.terms.items()}
            assert terms == pytest.approx(side.bound.terms, rel=1e-14, nan_ok=True)
        assert {label: winners[i, j] if winners.shape else winners for label, winners in _winners(many)} == one.smaller


def _winners(found):
    return [(label, np.asarray(winners)) for label, winners in found.smaller.items()]


@pytest.mark.parametrize("case", ALL_CASES)
def test_the_terms_sum_to_the_total(case: str) -> None:
    bound = compare(case, Problem(**KNOWN, R=R, K=5)).equal_rounds["ssl"].bound
    assert sum(bound.terms.values()) == pytest.approx(bound.total, rel=1e-14, nan_ok=True)


def test_pieces_broadcast_and_keep_the_shape() -> None:
    rows, columns = np.arange(300.0)[:, np.newaxis], np.arange(200.0)
    total, larger = map_chunks(lambda a, b: (a + b, a > b), (rows, columns), (np.float64, np.bool_))
    assert (total == rows + columns).all() and (larger == (rows > columns)).all()
    (nothing,) = map_chunks(lambda a: (a,), (np.zeros((0, 3)),), (np.float64,))
    assert nothing.shape == (0, 3)


def test_threads_give_what_one_pass_gives() -> None:
    x, y = np.linspace(-1, 1, 2 * MIN_PER_THREAD + 7), np.array(0.5)
    with np.errstate(invalid="ignore"):  # settings of the caller hold in every thread
        (found,) = map_chunks(lambda x, y: (np.sqrt(x) * y,), (x, y), (np.float64,))
        assert np.array_equal(found, np.sqrt(x) * y, equal_nan=True)
