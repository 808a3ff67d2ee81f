"""Trouble by plan: who is killed, which link is cut, slowed or silenced, after how many committed visits."""

from __future__ import annotations

import json
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from splitrelay.data.partition import Partition
from splitrelay.deploy.processes import POLL, Program, port_in
from splitrelay.deploy.proxy import Proxy
from splitrelay.deploy.rehearsal import Rehearsal
from splitrelay.deploy.strangers import pester
from splitrelay.errors import InputError, UnknownName, WorkError
from splitrelay.randomness import Purpose, rng

KINDS = ("kill-server", "stop-server", "kill-client", "cut", "delay", "silence", "stranger")
SILENT = 3.0  # seconds that a silenced link carries nothing, before it is cut
SLOW = 0.02  # seconds that every piece of a slowed link is late


@dataclass(frozen=True)
class Fault:
    """What happens, after how many committed visits, to which client."""

    kind: str
    after: int
    client: int = 0


def plan_in(file: Path) -> list[Fault]:
    """A plan from a TOML file: [[fault]] kind, after, client."""
    try:
        entries = tomllib.loads(file.read_text(encoding="utf-8"))["fault"]
        faults = [Fault(str(entry["kind"]), int(entry["after"]), int(entry.get("client", 0))) for entry in entries]
    except (OSError, ValueError, KeyError, TypeError) as error:
        way_out = "Each fault is a [[fault]] with kind, after and client."
        raise InputError(f"cannot read the plan {file}", value=str(error), way_out=way_out) from None
    for fault in faults:
        if fault.kind not in KINDS:
            raise UnknownName("fault", fault.kind, KINDS)
    return sorted(faults, key=lambda fault: fault.after)


def random_plan(seed: int, visits: int, clients: Sequence[int]) -> list[Fault]:
    """One to five faults, at any moment of the run, by name."""
    draw = rng(seed, Purpose.INSTANCES)
    faults = [
        Fault(
            str(KINDS[int(draw.integers(len(KINDS)))]),
            int(draw.integers(visits)),
            int(clients[int(draw.integers(len(clients)))]),
        )
        for _ in range(int(draw.integers(1, 6)))
    ]
    return sorted(faults, key=lambda fault: fault.after)


class Troubled(Rehearsal):
    """A rehearsal in which a plan of faults is carried out; every client has a proxy of its own before the server."""

    def __init__(self, plan: Any, say: Callable[[str], None], faults: Sequence[Fault]) -> None:
        super().__init__(plan, say)
        self.faults, self.done = list(faults), list[Fault]()
        self.proxies: dict[int, Proxy] = {}
        self.silenced: list[tuple[float, Proxy]] = []

    def raise_curtain(self, partition: Partition) -> None:
        """As always, with a proxy in between."""
        self.partition = partition
        self.server = Program(self._server_words(partition), self.place / "logs" / "server.log").start()
        self.port = port_in(self.place / "port", self.server)
        self.proxies = {m: Proxy(self.port) for m in partition.clients}
        self.clients = [self._client(m, [m]).start() for m in partition.clients]
        self.say(f"server on port {self.port}; {len(self.clients)} clients behind proxies; {len(self.faults)} faults")

    def wait(self, until: float) -> None:
        """Carry the plan out; whoever was killed is started again."""
        assert self.server is not None
        while self.server.running or self.server.code() != 0:
            if time.monotonic() > until:
                raise WorkError("the rehearsal hangs", limit=f"{self.plan.patience:g} seconds", way_out=self._logs())
            while self.faults and self.commits() >= self.faults[0].after:
                self._happen(self.faults.pop(0))
            self._end_silences()
            self._refuse_fallen()
            if not self.server.running and self.server.code() != 0:
                raise WorkError("the server fell", value=self.server.last_words(), way_out=self._logs())
            time.sleep(POLL)

    def clear(self) -> None:
        """Nobody stays behind, and no proxy either."""
        super().clear()
        for proxy in self.proxies.values():
            proxy.close()

    def events(self) -> list[dict[str, Any]]:
        """The server's record; a last line that is being written does not count."""
        found: list[dict[str, Any]] = []
        with suppress(OSError, ValueError):
            for line in (self.plan.out / "relay" / "events.jsonl").read_text(encoding="utf-8").splitlines():
                found.append(json.loads(line))
        return found

    def commits(self) -> int:
        """Committed visits so far."""
        return sum(event["event"] == "committed" for event in self.events())

    def twice(self) -> int:
        """Visits that were committed more than once: none may be."""
        seen = Counter(
            (event["round"], event["client"], event["occurrence"])
            for event in self.events()
            if event["event"] == "committed"
        )
        return sum(number > 1 for number in seen.values())

    def _happen(self, fault: Fault) -> None:
        self.say(f"after {fault.after} visits: {fault.kind} {fault.client}")
        self.done.append(fault)
        proxy = self.proxies[fault.client]
        if fault.kind in ("kill-server", "stop-server"):
            self._restart_server(gently=fault.kind == "stop-server")
        elif fault.kind == "kill-client":
            program = self.clients[list(self.partition.clients).index(fault.client)]
            program.kill()
            program.start()
        elif fault.kind == "cut":
            proxy.cut()
        elif fault.kind == "delay":
            proxy.delay = SLOW
        elif fault.kind == "silence":
            proxy.silent = True
            self.silenced.append((time.monotonic() + SILENT, proxy))
        elif fault.kind == "stranger":
            pester(self.port, fault.after)

    def _restart_server(self, gently: bool) -> None:
        assert self.server is not None
        if gently:
            self.server.stop()
        else:
            self.server.kill()
        (self.place / "port").unlink(missing_ok=True)
        self.server.start()
        self.port = port_in(self.place / "port", self.server)
        for proxy in self.proxies.values():
            proxy.target = self.port

    def _end_silences(self) -> None:
        for when, proxy in list(self.silenced):
            if time.monotonic() > when:
                self.silenced.remove((when, proxy))
                proxy.silent = False
                proxy.cut()  # what vanished cannot be made up for on the same connection

    def _client(self, number: int, clients: Sequence[int]) -> Program:
        program = super()._client(number, clients)
        program.words[1] = f"127.0.0.1:{self.proxies[clients[0]].port}"
        return program
