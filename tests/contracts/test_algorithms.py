"""Check the contract of all registered algorithms, and that a wrong algorithm violates it."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from splitrelay.algorithms import SSL, FedAvg, Scaffold, ScaffoldState, Step
from splitrelay.errors import ContractBroken, UnknownName
from splitrelay.runs.registry import ALGORITHMS, ENTRIES, Entry, algorithm
from splitrelay.testing import (
    AlgorithmSettings,
    ArrayCut,
    Pair,
    check_algorithm,
    check_golden,
    check_pure,
    check_resumable,
    check_skipping,
    check_visits,
)

SETTINGS = AlgorithmSettings(Step(0.1), K=1, M=2, cut=ArrayCut(1))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_registered_algorithm_satisfies_the_contract(entry: Entry) -> None:
    check_algorithm(entry.make, entry.goldens)


@pytest.mark.parametrize("entry", [e for e in ENTRIES if e.name != "fedavg"], ids=lambda entry: entry.name)
def test_fedavg_violates_the_golden_runs_of_all_other_algorithms(entry: Entry) -> None:
    with pytest.raises(ContractBroken):
        for golden in entry.goldens:
            check_golden(ALGORITHMS["fedavg"].make, golden)


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedavgm", "fedadam"])
def test_no_other_algorithm_passes_the_golden_runs_of_fedavg_and_its_variants(name: str) -> None:
    for entry in ENTRIES:
        if entry.name != name and "cut" not in inspect.signature(type(entry.make(SETTINGS))).parameters:
            with pytest.raises(ContractBroken):
                for golden in ALGORITHMS[name].goldens:
                    check_golden(entry.make, golden)


def test_ssl_violates_the_golden_runs_of_fedavg() -> None:
    with pytest.raises(ContractBroken):
        check_golden(ALGORITHMS["ssl"].make, ALGORITHMS["fedavg"].goldens[0])


class ScaffoldWithoutVariates(Scaffold):
    """The public implementation that never applied its variates."""

    def _shift(self, state: ScaffoldState[Any], m: int) -> Any:
        return state.x - state.x


def test_scaffold_without_variates_violates_its_golden_run() -> None:
    with pytest.raises(ContractBroken):
        check_golden(lambda it: ScaffoldWithoutVariates(it.step, it.K, it.M), ALGORITHMS["scaffold"].goldens[0])


class InPlace(SSL):
    def round(self, r, x, order, clients, /):
        if isinstance(x, np.ndarray):
            x += 1e-9
        return super().round(r, x, order, clients)


class SameOccurrence(FedAvg):
    """Gives every visit of a client the occurrence 0."""

    def round(self, r, x, order, clients, /):
        class Renamed:
            def run_all(self, visits):
                return clients.run_all([replace(visit, i=0) for visit in visits])

        return super().round(r, x, order, Renamed())


class HiddenCounter(FedAvg):
    """Has a counter outside its state."""

    def round(self, r, x, order, clients, /):
        object.__setattr__(self, "rounds", getattr(self, "rounds", 0) + 1)
        return super().round(r, x, order, clients) * (1 + 1e-12 * (self.rounds > 7))


@dataclass(frozen=True)
class ChangesWithoutClients(FedAvg):
    """Changes the model although no client trained."""

    def round(self, r, x, order, clients, /):
        y = super().round(r, x, order, clients)
        return y * 2 if y is x else y


@pytest.mark.parametrize(
    ("faulty", "like", "check"),
    [
        (InPlace, "ssl", check_pure),
        (SameOccurrence, "fedavg", check_visits),
        (HiddenCounter, "fedavg", check_resumable),
        (ChangesWithoutClients, "fedavg", check_skipping),
    ],
)
def test_faulty_algorithm_violates_the_contract(faulty: type, like: str, check: Callable[[Any], None]) -> None:
    def make(it: AlgorithmSettings) -> Any:
        return (
            faulty(it.step, it.K, it.gamma, it.sizes) if issubclass(faulty, FedAvg) else faulty(it.step, it.K, it.gamma)
        )

    with pytest.raises(ContractBroken):
        check(make(AlgorithmSettings(Step(eta=0.05), K=3, M=4, cut=ArrayCut(1))))
    with pytest.raises(ContractBroken):
        check_algorithm(make, ALGORITHMS[like].goldens)


def test_algorithm_without_golden_run_is_rejected() -> None:
    with pytest.raises(ContractBroken):
        check_algorithm(ALGORITHMS["ssl"].make, [])


def test_unknown_algorithm_gets_a_suggestion() -> None:
    with pytest.raises(UnknownName) as error:
        algorithm("fedagv")
    assert error.value.name == "fedagv" and "fedavg" in str(error.value.hint)


def test_golden_models_are_fractions() -> None:
    models = [model for entry in ENTRIES for golden in entry.goldens for model in golden.models]
    halves = [(model.bottom, model.top) if isinstance(model, Pair) else (model,) for model in models]
    assert all(isinstance(number, Fraction) for numbers in halves for number in numbers)
