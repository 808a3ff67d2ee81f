"""What the kernels draw under a name is what numpy draws under it."""

import numpy as np
import pytest

from splitrelay import kernels, participation
from splitrelay.algorithms import Visit
from splitrelay.errors import InputError
from splitrelay.kernels import library
from splitrelay.kernels.batches import draw_images, make_draw
from splitrelay.kernels.seeded_draws import Root, draw_uniform
from splitrelay.objectives.batches import Batches
from splitrelay.randomness import Purpose, rng
from tests.support.error_fields import expect_error

SEEDS = [0, 1, 1234, 2**31, 2**32 - 1, 2**32, 2**64 + 5, 2**128 - 1, 2**200 + 3]


def visit(r: int, m: int, i: int, K: int = 3) -> Visit:
    return Visit(r, i, m, None, None, K)


def numpys(batches: Batches, held: np.ndarray, asked: Visit, seed: int) -> list[np.ndarray]:
    steps = batches.positions(len(held), asked.K, rng(seed, Purpose.BATCHES, asked.r, asked.m, asked.i))
    return [held[step] for step in steps]


def assert_same(batches: Batches, held: np.ndarray, asked: Visit, seed: int) -> None:
    at, sizes = draw_images(batches, held, asked, seed)
    expected = numpys(batches, held, asked, seed)
    assert sizes == [len(step) for step in expected]
    assert at.tolist() == np.concatenate(expected).tolist()


@pytest.mark.parametrize("way", ["passes", "replacement", "full"])
def test_batches_of_a_thousand_names(way: str) -> None:
    g = rng(1, Purpose.INSTANCES)
    for number in range(1000):
        n, K, size = (int(v) for v in g.integers(1, (40, 9, 25)))
        held = g.permutation(1000)[:n]
        assert_same(Batches(size, way), held, visit(number, int(g.integers(500)), number % 3, K), SEEDS[number % 9])


@pytest.mark.parametrize("seed", SEEDS)
def test_numbers_of_more_than_one_word(seed: int) -> None:
    for name in ((0, 0, 0), (2**32, 1, 0), (1, 2**40 + 1, 2), (2**32 - 1, 0, 2**33)):
        assert_same(Batches(7), np.arange(30), visit(*name), seed)
        mask = rng(seed, Purpose.DROPOUT, *name, 3, 2).random(50, dtype=np.float32)
        assert draw_uniform(library.load_library(), Root(seed).name(*name), (3, 2), 50).tolist() == mask.tolist()


def test_a_large_client_and_a_single_sample() -> None:
    for n in (1, 2, 60_000):
        assert_same(Batches(20), np.arange(n)[::-1], visit(5, 6, 7, 4), 3)
        assert_same(Batches(20, "replacement"), np.arange(n), visit(5, 6, 7, 4), 3)


@pytest.mark.parametrize("M", [0, 1, 2, 3, 64, 65, 500, 65_537])
def test_orders_of_as_many_clients(M: int) -> None:
    for number, seed in enumerate(SEEDS):
        assert kernels.draw_clients(M, seed, number, 0, M) == participation.draw_permutation(M, seed, number, 0, M)


@pytest.mark.parametrize("kind", [participation.Sampled, participation.Consumed])
def test_orders_of_a_part_of_the_clients(kind: type[participation.Sampled | participation.Consumed]) -> None:
    own, numpys = kind(7, 3, 5, kernels.draw_clients), kind(7, 3, 5)
    assert [own(r) for r in range(20)] == [numpys(r) for r in range(20)]


def test_a_client_without_samples_is_refused_as_everywhere() -> None:
    with expect_error(InputError, hint="order"):
        make_draw([np.arange(0)], Batches(), None, 1)(visit(0, 0, 0))
    with expect_error(InputError, what="seed", value=-1):
        draw_images(Batches(), np.arange(3), visit(0, 0, 0), -1)


def test_a_numpy_that_draws_otherwise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("splitrelay.kernels.seeded_draws.rng", lambda seed, *name: rng(seed + 1, *name))
    library.load_library.cache_clear()
    assert library.find_obstacle() == f"numpy {np.__version__} draws other numbers than the fast engine"
    library.load_library.cache_clear()
