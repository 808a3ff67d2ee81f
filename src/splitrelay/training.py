"""The loop over r. It exists here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator

from splitrelay.algorithms.base import Algorithm, Clients, State
from splitrelay.participation import Order
from splitrelay.vectors import X


def train(
    algorithm: Algorithm[X, State], x0: X, order: Order, clients: Clients[X], *, R: int
) -> Iterator[tuple[int, State]]:
    """Yield (r, state) for r = 0, ..., R: the start, then after every round. Evaluating is the caller's loop body."""
    yield from resume(algorithm, 0, algorithm.init(x0), order, clients, R=R)


def resume(
    algorithm: Algorithm[X, State], r: int, state: State, order: Order, clients: Clients[X], *, R: int
) -> Iterator[tuple[int, State]]:
    """The same from any round on: state is a value, and all randomness is named by its round."""
    yield r, state
    while r < R:
        state = algorithm.round(r, state, order(r), clients)
        r += 1
        yield r, state
