"""A module of a user with an algorithm, an order, a partition, data and a metric of its own."""

import importlib
import sys
from pathlib import Path

MODULE = '''
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from splitrelay.algorithms import Done, Step, Visit
from splitrelay.vectors import mean


@dataclass(frozen=True)
class State:
    x: Any
    rounds: int


@dataclass(frozen=True)
class Pulled:
    """FedAvg whose result is pulled back to x^r by a quarter, with a proximal term, and a counter in its state."""

    step: Step
    K: int
    pull: float = 0.25

    def init(self, x0):
        return State(x0, 0)

    def round(self, r, state, order, clients):
        step = replace(self.step, prox=0.5)
        visits = [Visit(r, 0, m, state.x, step, self.K) for m in order]
        done = [outcome.x for outcome in clients.run_all(visits) if isinstance(outcome, Done)]
        if not done:
            return state
        return State(state.x + (1 - self.pull) * (mean(done) - state.x), state.rounds + 1)

    def model(self, state):
        return state.x


@dataclass(frozen=True)
class Snake:
    """All clients, forwards in even rounds and backwards in odd ones."""

    M: int

    def __call__(self, r):
        return range(self.M) if r % 2 == 0 else range(self.M - 1, -1, -1)


def deal(labels, M, seed):
    """Give sample j to client j modulo M, from another start for each seed."""
    return (np.arange(len(labels)) + seed) % M


def load():
    generator = np.random.default_rng(3)
    x = generator.normal(size=(120, 6)).astype("float32")
    return x, (x[:, 0] > 0).astype(int)


def halve(r):
    return 0.5**r
'''


def write_user_module(folder: Path, name: str) -> Path:
    """Write the module. Another module of the same name that was imported before does not count any more."""
    file = folder / f"{name}.py"
    file.write_text(MODULE)
    sys.modules.pop(name, None)
    importlib.invalidate_caches()
    return file
