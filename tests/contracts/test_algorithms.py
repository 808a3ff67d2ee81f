"""Every algorithm of the registry keeps the contract, and nothing else passes in its place."""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from splitrelay.algorithms import SSL, FedAvg, Scaffold, ScaffoldState
from splitrelay.errors import ContractBroken, UnknownName
from splitrelay.runs.registry import ALGORITHMS, ENTRIES, Entry, algorithm
from splitrelay.testing import Ingredients, Pair, check_algorithm


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_contract(entry: Entry) -> None:
    check_algorithm(entry.make, entry.goldens)


@pytest.mark.parametrize("entry", [e for e in ENTRIES if e.name != "fedavg"], ids=lambda entry: entry.name)
def test_fedavg_in_its_place_is_caught(entry: Entry) -> None:
    with pytest.raises(ContractBroken, match="golden"):
        check_algorithm(ALGORITHMS["fedavg"].make, entry.goldens)


def test_ssl_in_fedavgs_place_is_caught() -> None:
    with pytest.raises(ContractBroken, match="golden"):
        check_algorithm(ALGORITHMS["ssl"].make, ALGORITHMS["fedavg"].goldens)


class ScaffoldWithoutVariates(Scaffold):
    """The public implementation that never applied its variates."""

    def _shift(self, state: ScaffoldState[Any], m: int) -> Any:
        return state.x - state.x


def test_a_scaffold_that_forgets_its_variates_is_caught() -> None:
    with pytest.raises(ContractBroken, match="golden"):
        check_algorithm(lambda it: ScaffoldWithoutVariates(it.step, it.K, it.M), ALGORITHMS["scaffold"].goldens)


class InPlace(SSL):
    def round(self, r, x, order, clients, /):
        if isinstance(x, np.ndarray):
            x += 1e-9
        return super().round(r, x, order, clients)


class Forgetful(FedAvg):
    """Names every visit as the first of its client."""

    def round(self, r, x, order, clients, /):
        class Renamed:
            def run_all(self, visits):
                return clients.run_all([replace(visit, i=0) for visit in visits])

        return super().round(r, x, order, Renamed())


class Counting(FedAvg):
    """Keeps a counter outside its state."""

    def round(self, r, x, order, clients, /):
        object.__setattr__(self, "rounds", getattr(self, "rounds", 0) + 1)
        return super().round(r, x, order, clients) * (1 + 1e-12 * (self.rounds > 7))


@dataclass(frozen=True)
class Restless(FedAvg):
    """Moves although nobody trained."""

    def round(self, r, x, order, clients, /):
        y = super().round(r, x, order, clients)
        return y * 2 if y is x else y


@pytest.mark.parametrize(
    ("faulty", "like", "words"),
    [
        (InPlace, "ssl", "changed the state"),
        (Forgetful, "fedavg", "share a name"),
        (Counting, "fedavg", "does not end where|two answers"),
        (Restless, "fedavg", "must stay"),
    ],
)
def test_a_broken_promise_is_caught(faulty: type, like: str, words: str) -> None:
    def make(it: Ingredients) -> Any:
        return (
            faulty(it.step, it.K, it.gamma, it.sizes) if issubclass(faulty, FedAvg) else faulty(it.step, it.K, it.gamma)
        )

    with pytest.raises(ContractBroken, match=words):
        check_algorithm(make, ALGORITHMS[like].goldens)


def test_no_golden_run_is_no_algorithm() -> None:
    with pytest.raises(ContractBroken, match="golden"):
        check_algorithm(ALGORITHMS["ssl"].make, [])


def test_unknown_algorithm_gets_a_suggestion() -> None:
    with pytest.raises(UnknownName, match=r"unknown algorithm 'fedagv'\. Did you mean 'fedavg'\?"):
        algorithm("fedagv")


def test_goldens_are_exact() -> None:
    models = [model for entry in ENTRIES for golden in entry.goldens for model in golden.models]
    halves = [(model.bottom, model.top) if isinstance(model, Pair) else (model,) for model in models]
    assert all(isinstance(number, Fraction) for numbers in halves for number in numbers)
