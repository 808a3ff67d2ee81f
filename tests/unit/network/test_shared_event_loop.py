"""Is the server's loop turned by one thread at a time, by the right one, and never by none for long?"""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from queue import Empty, SimpleQueue

import pytest

from splitrelay.network.shared_event_loop import ClientDisconnected, EventQueue, SharedLoop


@pytest.fixture
def loop() -> Iterator[SharedLoop]:
    made = SharedLoop()
    made.start()
    yield made
    made.stop()


def asked(loop: SharedLoop) -> "Future[str]":
    """Which thread turns the loop next, as soon as one does."""
    found: Future[str] = Future()
    loop._loop.call_soon_threadsafe(lambda: found.set_result(threading.current_thread().name))
    return found


def soon(inbox: EventQueue) -> object:
    """The next event, which must not need all the time that there is."""
    found: SimpleQueue[object] = SimpleQueue()
    threading.Thread(target=lambda: found.put(inbox.get(timeout=3600)), name="trains", daemon=True).start()
    return found.get(timeout=300)


def test_a_stand_in_turns_it_while_nobody_waits(loop: SharedLoop) -> None:
    assert asked(loop).result(300) == "wire"


def test_a_stand_in_turns_it_again_when_who_waited_computes(loop: SharedLoop) -> None:
    with pytest.raises(Empty):
        EventQueue(loop).get(timeout=0.0)
    assert asked(loop).result(300) == "wire"


def test_who_waits_for_a_word_turns_it_and_is_rung(loop: SharedLoop) -> None:
    inbox = EventQueue(loop)
    with loop:  # so that nobody is at it before we wait
        found = asked(loop)
        loop._loop.call_soon_threadsafe(inbox.put, ClientDisconnected(1, 1, "away"))
    assert soon(inbox) == ClientDisconnected(1, 1, "away")
    assert found.result(0) == "trains"


def test_what_is_to_be_done_is_done_at_once_where_nobody_turns_it(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, done = SharedLoop(), list[str]()
    woken = loop._loop.create_future()
    woken.add_done_callback(lambda _: done.append("what it woke"))
    loop.call(lambda: (done.append("itself"), woken.set_result(None)))  # type: ignore[arg-type, func-returns-value]
    assert done == ["itself", "what it woke"]
    loop.stop()


def test_words_that_are_there_do_not_keep_the_loop_from_turning(loop: SharedLoop) -> None:
    """A busy server goes on listening to everybody."""
    inbox, turns = EventQueue(loop), list[int]()
    with loop:
        for number in range(3):
            inbox.put(ClientDisconnected(0, number, ""))
        loop._loop.call_soon(turns.append, 1)
    soon(inbox)
    assert turns == [1]


def test_two_threads_never_turn_it_at_once() -> None:
    # The background thread runs the loop whenever it can.
    loop, at_it, clashes = SharedLoop(standstill=0.0), list[int](), list[int]()
    loop.start()

    def alone() -> None:
        at_it.append(threading.get_ident())
        clashes.extend(at_it[1:])
        at_it.pop()

    for _ in range(300):
        loop.call(alone)
        with pytest.raises(Empty):
            EventQueue(loop).get(timeout=0.0)
    loop.stop()
    assert clashes == []


def test_it_comes_to_an_end_whoever_turns_it() -> None:
    for _ in range(50):
        loop = SharedLoop(standstill=0.0)
        loop.start()
        loop.stop()
        assert not loop.is_running
