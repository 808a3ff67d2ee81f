"""The training loop over the rounds r. There is no other."""

from __future__ import annotations

from collections.abc import Iterator

from splitrelay.algorithms.base import Algorithm, Clients, State
from splitrelay.participation import Order
from splitrelay.vectors import X


def train(
    algorithm: Algorithm[X, State], x0: X, order: Order, clients: Clients[X], *, R: int
) -> Iterator[tuple[int, State]]:
    """Yield (r, state) for r = 0, ..., R: the initial state, then the state after each round.

    The caller evaluates the state in the body of its loop.

    Args:
        algorithm: What happens in a round.
        x0: The initial model.
        order: Returns the clients of round r in training order.
        clients: Run the visits.
        R: The number of rounds.

    Example:
        >>> from splitrelay import algorithms, engine, participation
        >>> from splitrelay.objectives.quadratic import ScalarQuadratics
        >>> ssl = algorithms.SSL(algorithms.Step(eta=0.5), K=2)
        >>> clients = engine.InProcess(ScalarQuadratics(h=(1.0, 1.0), a=(1.0, -1.0)))
        >>> [x for r, x in train(ssl, 2.0, participation.Fixed((0, 1)), clients, R=1)]
        [2.0, 0.6875]
    """
    yield from resume(algorithm, 0, algorithm.init(x0), order, clients, R=R)


def resume(
    algorithm: Algorithm[X, State], r: int, state: State, order: Order, clients: Clients[X], *, R: int
) -> Iterator[tuple[int, State]]:
    """Continue the training from the state after r rounds.

    The result equals that of an uninterrupted run, because the name of all randomness contains the round.
    """
    yield r, state
    while r < R:
        state = algorithm.round(r, state, order(r), clients)
        r += 1
        yield r, state
