"""Hostile conversations by the hundred with real servers, one of each house, and what became of them."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, fields
from itertools import repeat
from pathlib import Path

from splitrelay.deploy.client_options import Wish
from splitrelay.deploy.client_program import Joined
from splitrelay.deploy.handshake import AgreedSpec
from splitrelay.errors import SplitrelayError
from splitrelay.network.protocol import State
from splitrelay.randomness import Purpose, rng
from tests.fuzz.mutations import SHARES, WAYS, honestly
from tests.fuzz.scripted_client import Talk
from tests.fuzz.target_server import GUESTS, HOUSES, NONE, PATIENCE, Alarm, Besieged, besieged, place_of


@dataclass
class Tale:
    """What became of some conversations."""

    conversations: int = 0
    honest: float = 0.0  # seconds until an honest client, afterwards, had made its visit; of the slowest house
    states: Counter[State] = field(default_factory=Counter)  # in how many conversations each was reached
    verdicts: Counter[str] = field(default_factory=Counter)
    said: Counter[str] = field(default_factory=Counter)
    stops: Counter[str] = field(default_factory=Counter)  # how runs ended
    slips: Counter[str] = field(default_factory=Counter)  # words of a server against its own table: the link ends of it
    wrong: Counter[str] = field(default_factory=Counter)  # what must not be

    def __add__(self, other: Tale) -> Tale:
        pairs = ((getattr(self, each.name), getattr(other, each.name)) for each in fields(self)[2:])
        honest = max(self.honest, other.honest)
        return Tale(self.conversations + other.conversations, honest, *(one + more for one, more in pairs))


def siege(conversations: int, pieces: int = 1, seed: int = 0) -> Iterator[Tale]:
    """So many hostile conversations, in pieces, with a server of each house; after each, honest clients."""
    each = conversations // (pieces * len(HOUSES))
    with Alarm() as alarms, ExitStack() as stack, ThreadPoolExecutor(len(HOUSES)) as threads:
        servers = [stack.enter_context(besieged(house)) for house in HOUSES]
        list(threads.map(honest_visit, servers))  # so each knows how much this client holds, before others say so
        for piece in range(pieces):
            numbers = range(piece * each, (piece + 1) * each)
            whole = sum(threads.map(_besiege, servers, repeat(numbers), repeat(seed)), Tale())
            whole.wrong.update(alarms)
            alarms.clear()
            yield whole


def _besiege(server: Besieged, numbers: range, seed: int) -> Tale:
    tale = Tale(len(numbers))
    _hostile(server, tale, numbers, seed)
    _aftermath(server, tale)
    return tale


def _hostile(server: Besieged, tale: Tale, numbers: range, seed: int) -> None:
    """Every client in a thread of its own, one conversation after the other."""
    lock, left = threading.Lock(), iter(numbers)

    def guest(m: int) -> None:
        place = place_of(server)
        while True:
            with lock:
                number = next(left, None)
            if number is None:
                break
            draw = rng(seed, Purpose.INSTANCES, 1, list(HOUSES).index(server.house), number)
            talk = Talk(place, m, number, draw)
            verdict = talk.verdict(WAYS[int(draw.choice(len(WAYS), p=SHARES))])
            with lock:
                tale.verdicts[verdict] += 1
                tale.said.update(talk.said)
        place.channel.close()

    guests = (*HOUSES[server.house][2], *range(GUESTS))
    with ThreadPoolExecutor(len(guests)) as threads:
        list(threads.map(guest, guests))


def _aftermath(server: Besieged, tale: Tale) -> None:
    """Who has hung up is gone, what has happened is counted, and an honest client makes its visit."""
    until = time.monotonic() + PATIENCE
    while server.hub.reception.all and time.monotonic() < until:
        time.sleep(0.01)
    tale.wrong["links that did not end"] = len(server.hub.reception.all)
    seen, server.seen = server.seen, defaultdict(set)
    tale.states.update(state for number, states in seen.items() if number != NONE for state in states)
    tale.wrong.update(verdict for verdict in tale.verdicts.elements() if verdict.startswith("crashed"))
    tale.honest = honest_visit(server)
    tale.wrong["honest visits that did not come through"] = int(tale.honest > PATIENCE)
    for mine, its in ((tale.stops, server.stops), (tale.slips, server.slips)):
        mine.update(its)
        its.clear()
    if server.fallen is not None:
        tale.wrong[f"the server fell: {server.fallen!r}"] += 1


def honest_visit(server: Besieged) -> float:
    """How many seconds it takes a client that does no harm, among others of whom the server needs some."""
    began, done = time.monotonic(), threading.Event()
    helpers = [threading.Thread(target=_scripted, args=(server, m, done)) for m in HOUSES[server.house][2]]
    for helper in helpers:
        helper.start()
    if server.sealed:  # a real client would not take over what the hostile ones have left
        _scripted(server, GUESTS, done, enough=True)
    else:
        _joined(server)
    done.set()
    for helper in helpers:
        helper.join()
    return time.monotonic() - began


def _scripted(server: Besieged, m: int, done: threading.Event, enough: bool = False) -> None:
    """Honest conversations of client m, one after the other; if one is enough, until a visit counts."""
    place, until, draw = place_of(server), time.monotonic() + PATIENCE, rng(0, Purpose.INSTANCES, 2)
    while not done.is_set() and time.monotonic() < until:
        if Talk(place, m, NONE, draw).verdict(honestly) == "committed" and enough:
            break
    place.channel.close()


def _joined(server: Besieged) -> None:
    """A real client, until its first visit counts."""
    stop = threading.Event()

    def told(text: str) -> None:
        if text.endswith("committed"):
            stop.set()

    watch = threading.Timer(PATIENCE, stop.set)
    watch.start()
    wish = Wish(
        f"127.0.0.1:{server.port}",
        GUESTS,
        Path(server.spec.data.name),
        patience=PATIENCE,
        agreed=AgreedSpec(server.spec),
    )
    with suppress(SplitrelayError):
        Joined(wish, told, stop).run()
    watch.cancel()
