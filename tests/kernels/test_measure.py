"""The benchmark's rule: the best of turns, more of them where they are unsteady, no conclusion where they stay so."""

import importlib
from collections.abc import Iterable, Iterator
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any

import pytest

BUDGET = 10.0


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    return importlib.import_module("benchmarks.measure")


class Time:
    """A clock that goes on only where a work says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def passes(self, seconds: Iterable[float]) -> Any:
        """A work that takes as long as is written there, from one time to the next."""
        script: Iterator[float] = iter(seconds)

        def work() -> None:
            self.now += next(script)

        return work

    def clock(self, work: Any) -> float:
        start = self.now
        work()
        return self.now - start


def turns(measure: Any, *scripts: Iterable[float]) -> list[list[float]]:
    time = Time()
    return measure.in_turn(*map(time.passes, scripts), budget=BUDGET, clock=time.clock)


def test_steady_turns_end_with_the_budget(measure: Any) -> None:
    ours, theirs = turns(measure, repeat(0.25), repeat(0.75))
    assert len(ours) == len(theirs) == BUDGET
    assert measure.verdict(ours=ours, baseline=theirs) == ""


def test_a_slow_start_is_waited_out(measure: Any) -> None:
    ours, theirs = turns(measure, repeat(0.25), chain([1.0] * 8, repeat(0.75)))
    assert BUDGET < sum(map(sum, (ours, theirs))) < measure.PATIENCE * BUDGET
    assert measure.verdict(ours=ours, baseline=theirs) == ""


@pytest.mark.parametrize("names", [("ours", "baseline"), ("baseline", "ours")])
def test_what_stays_unsteady_has_no_conclusion(measure: Any, names: tuple[str, str]) -> None:
    found = turns(measure, repeat(0.5), (0.5 * 1.05**j for j in count()))
    assert sum(map(sum, found)) >= measure.PATIENCE * BUDGET
    assert f"; NO CONCLUSION, runs of {names[1]} differ by " in measure.verdict(**dict(zip(names, found, strict=True)))


def test_few_long_turns_are_not_too_few(measure: Any) -> None:
    (ours,) = turns(measure, repeat(2 * BUDGET))
    assert len(ours) == measure.LEAST


def test_a_tenth_is_the_limit(measure: Any) -> None:
    assert measure.verdict(ours=[1.0, 2.0, 1.09, 3.0]) == ""
    assert measure.verdict(ours=[1.0, 2.0, 1.11, 3.0]) == "; NO CONCLUSION, runs of ours differ by 11%"


def test_a_figure_below_nothing_has_no_conclusion(measure: Any) -> None:
    assert "NO CONCLUSION" in measure.verdict(ours=(-1.0, -1.0))


def test_what_is_made_of_the_turns_may_be_judged_instead(measure: Any) -> None:
    time = Time()
    works = time.passes(repeat(1.0)), time.passes(repeat(1.0))
    found = measure.in_turn(*works, budget=BUDGET, judged=lambda times: [(1.0, 2.0)], clock=time.clock)
    assert sum(map(sum, found)) == measure.PATIENCE * BUDGET


def test_both_have_turns_of_the_same_length_and_count_by_their_own_work(measure: Any) -> None:
    time = Time()
    slow, quick = time.passes(repeat(measure.TURN / 2)), time.passes(repeat(measure.TURN / 40))
    row = measure.beside("ten of them", slow, quick, "one by one", scale=10, budget=0.1, clock=time.clock)
    assert row.ours == pytest.approx(measure.TURN / 20) and row.baseline == pytest.approx(measure.TURN / 40)
    assert time.now == pytest.approx((4 + 2 * 9) * measure.TURN / 2 + (4 + 40 * 9) * measure.TURN / 40)
