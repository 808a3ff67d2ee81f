"""Run hostile conversations with real servers, one of each kind, and collect what happened."""

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

from splitrelay.deploy.client_options import ClientOptions
from splitrelay.deploy.client_program import ClientProgram
from splitrelay.deploy.handshake import AgreedSpec
from splitrelay.errors import SplitrelayError
from splitrelay.network.protocol import State
from splitrelay.randomness import Purpose, rng
from tests.fuzz.mutations import BEHAVIOURS, SHARES, behave_honestly
from tests.fuzz.scripted_client import ScriptedClient
from tests.fuzz.target_server import (
    CLIENTS,
    SERVER_KINDS,
    TIMEOUT,
    UNCOUNTED,
    ErrorLog,
    TargetServer,
    describe_server,
    run_target_server,
)


@dataclass
class CampaignResult:
    """What happened in some conversations."""

    conversations: int = 0
    honest: float = 0.0  # seconds of an honest visit afterwards; the slowest server
    states: Counter[State] = field(default_factory=Counter)  # in how many conversations each was reached
    verdicts: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)
    run_ends: Counter[str] = field(default_factory=Counter)  # how runs ended
    violations: Counter[str] = field(default_factory=Counter)  # messages that a server tried to send against the table
    wrong: Counter[str] = field(default_factory=Counter)  # errors

    def __add__(self, other: CampaignResult) -> CampaignResult:
        pairs = ((getattr(self, each.name), getattr(other, each.name)) for each in fields(self)[2:])
        honest = max(self.honest, other.honest)
        return CampaignResult(self.conversations + other.conversations, honest, *(one + more for one, more in pairs))


def run_campaign(conversations: int, pieces: int = 1, seed: int = 0) -> Iterator[CampaignResult]:
    """Run hostile conversations with a server of each kind, in pieces; after each piece honest clients make visits."""
    each = conversations // (pieces * len(SERVER_KINDS))
    with ErrorLog() as errors_logged, ExitStack() as stack, ThreadPoolExecutor(len(SERVER_KINDS)) as threads:
        servers = [stack.enter_context(run_target_server(kind)) for kind in SERVER_KINDS]
        list(
            threads.map(time_honest_visit, servers)
        )  # so each server knows this client before hostile clients use its number
        for piece in range(pieces):
            numbers = range(piece * each, (piece + 1) * each)
            whole = sum(threads.map(_attack_server, servers, repeat(numbers), repeat(seed)), CampaignResult())
            whole.wrong.update(errors_logged)
            errors_logged.clear()
            yield whole


def _attack_server(server: TargetServer, numbers: range, seed: int) -> CampaignResult:
    result = CampaignResult(len(numbers))
    _run_hostile_clients(server, result, numbers, seed)
    _check_server(server, result)
    return result


def _run_hostile_clients(server: TargetServer, result: CampaignResult, numbers: range, seed: int) -> None:
    """Run each client in a thread of its own, one conversation after the other."""
    lock, left = threading.Lock(), iter(numbers)

    def run_client(m: int) -> None:
        server_info = describe_server(server)
        while True:
            with lock:
                number = next(left, None)
            if number is None:
                break
            draw = rng(seed, Purpose.INSTANCES, 1, list(SERVER_KINDS).index(server.kind), number)
            client = ScriptedClient(server_info, m, number, draw)
            verdict = client.run(BEHAVIOURS[int(draw.choice(len(BEHAVIOURS), p=SHARES))])
            with lock:
                result.verdicts[verdict] += 1
                result.sent.update(client.counts)
        server_info.channel.close()

    numbers_of_clients = (*SERVER_KINDS[server.kind][2], *range(CLIENTS))
    with ThreadPoolExecutor(len(numbers_of_clients)) as threads:
        list(threads.map(run_client, numbers_of_clients))


def _check_server(server: TargetServer, result: CampaignResult) -> None:
    """Check that all connections ended, count the events, and let an honest client make a visit."""
    until = time.monotonic() + TIMEOUT
    while server.network.connections.by_number and time.monotonic() < until:
        time.sleep(0.01)
    result.wrong["connections that did not end"] = len(server.network.connections.by_number)
    seen, server.seen = server.seen, defaultdict(set)
    result.states.update(state for number, states in seen.items() if number != UNCOUNTED for state in states)
    result.wrong.update(verdict for verdict in result.verdicts.elements() if verdict.startswith("crashed"))
    result.honest = time_honest_visit(server)
    result.wrong["honest visits that failed"] = int(result.honest > TIMEOUT)
    for mine, its in ((result.run_ends, server.run_ends), (result.violations, server.violations)):
        mine.update(its)
        its.clear()
    if server.crash is not None:
        result.wrong[f"the server crashed: {server.crash!r}"] += 1


def time_honest_visit(server: TargetServer) -> float:
    """Return how many seconds an honest client needs for a visit; evaluator and fed server take part if needed."""
    began, done = time.monotonic(), threading.Event()
    helpers = [
        threading.Thread(target=_run_scripted_client, args=(server, m, done)) for m in SERVER_KINDS[server.kind][2]
    ]
    for helper in helpers:
        helper.start()
    if server.sealed:  # a real client would refuse the halves that hostile clients left
        _run_scripted_client(server, CLIENTS, done, enough=True)
    else:
        _run_real_client(server)
    done.set()
    for helper in helpers:
        helper.join()
    return time.monotonic() - began


def _run_scripted_client(server: TargetServer, m: int, done: threading.Event, enough: bool = False) -> None:
    """Run honest conversations of client m until `done` is set, or until a visit is committed if that is enough."""
    server_info, until, draw = describe_server(server), time.monotonic() + TIMEOUT, rng(0, Purpose.INSTANCES, 2)
    while not done.is_set() and time.monotonic() < until:
        if ScriptedClient(server_info, m, UNCOUNTED, draw).run(behave_honestly) == "committed" and enough:
            break
    server_info.channel.close()


def _run_real_client(server: TargetServer) -> None:
    """Run a real client until its first visit is committed."""
    stop = threading.Event()

    def stop_after_commit(text: str) -> None:
        if text.endswith("committed"):
            stop.set()

    watch = threading.Timer(TIMEOUT, stop.set)
    watch.start()
    wish = ClientOptions(
        f"127.0.0.1:{server.port}",
        CLIENTS,
        Path(server.spec.data.name),
        patience=TIMEOUT,
        agreed=AgreedSpec(server.spec),
    )
    with suppress(SplitrelayError):
        ClientProgram(wish, stop_after_commit, stop).run()
    watch.cancel()
