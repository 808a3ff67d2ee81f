"""A pool of engines: answers in order, errors at their place, and nothing begun that nobody will read."""

from threading import Barrier, get_ident

import pytest

from splitrelay.algorithms import Done, Step, Visit
from splitrelay.engine.thread_pool import OrderedParallelMap, Pool


def visits(number: int) -> list[Visit[float]]:
    return [Visit(0, 0, m, float(m), Step(0.1), 1) for m in range(number)]


class ClientFailed(Exception):
    """Carries the number of the client."""


class Engine:
    """Answers with the client's number, and notes on which thread."""

    def __init__(self, threads: dict[int, int], fails: tuple[int, ...] = (), meet: Barrier | None = None) -> None:
        self.threads, self.fails, self.meet = threads, fails, meet

    def run(self, visit: Visit[float]) -> Done[float]:
        self.threads[visit.m] = get_ident()
        if self.meet:
            self.meet.wait(timeout=300)
        if visit.m in self.fails:
            raise ClientFailed(visit.m)
        return Done(visit.x)


@pytest.mark.parametrize("engines", [1, 2, 3])
def test_answers_come_in_the_order_of_the_visits(engines: int) -> None:
    pool = Pool([Engine({}) for _ in range(engines)])
    for number in (0, 1, 20):
        assert [done.x for done in pool.run_all(iter(visits(number)))] == list(range(number))


def test_as_many_at_once_as_there_are_engines_and_the_callers_thread_is_one_of_them() -> None:
    threads: dict[int, int] = {}
    meet = Barrier(3)
    pool = Pool([Engine(threads, meet=meet) for _ in range(3)])
    assert [done.x for done in pool.run_all(visits(6))] == list(range(6))
    assert len(set(threads.values())) == 3 and get_ident() in threads.values()


@pytest.mark.parametrize("engines", [1, 2])
def test_an_error_is_told_at_its_place(engines: int) -> None:
    seen: list[float] = []
    pool = Pool([Engine({}, fails=(3,)) for _ in range(engines)])
    with pytest.raises(ClientFailed) as failed:
        seen.extend(done.x for done in pool.run_all(visits(6)))
    assert seen == [0, 1, 2] and failed.value.args == (3,)
    assert [done.x for done in pool.run_all(visits(3))] == [0, 1, 2]


def test_what_nobody_reads_is_not_begun() -> None:
    threads: dict[int, int] = {}
    parallel = OrderedParallelMap(Engine(threads).run, visits(6))
    answers = parallel.iterate_results()
    assert next(answers).x == 0
    answers.close()
    parallel.run_remaining()
    assert list(threads) == [0]


def test_ctrl_c_does_not_wait_for_its_turn() -> None:
    begun: list[int] = []

    def run(visit: Visit[float]) -> Done[float]:
        begun.append(visit.m)
        if visit.m == 2:
            raise KeyboardInterrupt
        if visit.m == 5:
            late.set_result(Done(1.0))
        return Done(visit.x)

    parallel = OrderedParallelMap(run, visits(6))
    assert parallel.run_next()  # as a helper would: client 0
    _, late = parallel.waiting.get_nowait()  # a helper is at client 1, for as long as all others take
    answers = parallel.iterate_results()
    assert next(answers).x == 0
    with pytest.raises(KeyboardInterrupt):
        next(answers)
    assert begun == [0, 2] and not parallel.run_next()
