"""`splitrelay serve`: wait for the clients, train with them, keep the run's directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty
from threading import Event
from typing import Any

from splitrelay.data import load
from splitrelay.deploy.hosting import Census, Hosted, agree, journal_of, refuse_undeployable
from splitrelay.deploy.remote import TICK, Policy, Remote
from splitrelay.deploy.tensors import on_wire
from splitrelay.deploy.terms import BUILDING, Shape, disagreement, shape_of, terms_of
from splitrelay.deploy.turns import Tops
from splitrelay.errors import InputError
from splitrelay.experiments.running import Progress
from splitrelay.experiments.spec import Spec
from splitrelay.records import RunDirectory
from splitrelay.wire import halves, limits
from splitrelay.wire.frames import Bounds
from splitrelay.wire.messages import Accept, Hello
from splitrelay.wire.server import Arrived, House, Hub

SEALING = 4096  # bytes that a sealed half may be longer than the half


@dataclass(frozen=True)
class Offer:
    """How a spec is served: where, to whom, with how much patience."""

    spec: Spec
    out: Path
    listen: str = "127.0.0.1:0"
    policy: Policy = field(default_factory=Policy)
    without: tuple[int, ...] = ()  # clients that will not come
    quorum: int | None = None  # clients with whom to begin; all unless said
    credentials: Any = None
    admitted: Callable[[Any, Hello], str | None] = lambda context, hello: None
    heartbeat: float = limits.HEARTBEAT


class Serving:
    """The server, from listening to the last row."""

    def __init__(self, offer: Offer, say: Callable[[str], None], stop: Event | None = None) -> None:
        refuse_undeployable(offer.spec)
        self.offer, self.spec, self.say, self.stop = offer, offer.spec, say, stop or Event()
        self.directory = RunDirectory(offer.out)
        self.data = load(self.spec.data.name)
        with BUILDING:
            self.shape = shape_of(self.spec, self.data.train.shape, len(self.data.train.classes))
        self.port = 0

    def rows(self) -> Iterator[Progress]:
        """Listen, wait for the clients, train: a row for every look."""
        with self.directory.locked():
            agree(self.spec, self.directory)
            if self.directory.finished(self.spec.R):
                yield from (Progress(row, again=True) for row in self.directory.seen())
                return
            self.journal = journal_of(self.directory)
            self.census = Census(self.directory.path / "relay" / "clients.json")
            self.sizes = self.census.read()
            self.hub = Hub(self._house(), self.journal.note)
            self.port = self.hub.start(self.offer.listen, self.offer.credentials)
            self.journal.note("listening", port=self.port)
            self.say(f"listening on port {self.port}, spec {self.spec.hash}")
            why, again = "the server was stopped", True
            try:
                yield from self._trained()
                why, again = "all rounds are done", False
            finally:
                self.journal.note("closing", why=why)
                self.hub.close(why, again=again)

    def _trained(self) -> Iterator[Progress]:
        remote = Remote(self.hub, Tops(self.shape), self.journal, self.offer.policy, self.stop)
        remote.arrived = self._counted
        self._wait()
        with BUILDING:
            hosted = Hosted(self.spec, self.directory, self.data, remote, self.sizes)
        yield from hosted.rows()

    def _wait(self) -> None:
        """Until those have come without whom the run cannot begin; after a restart they are known."""
        wanted = set(range(self.spec.partition.M)) - set(self.offer.without)
        enough = len(wanted) if self.offer.quorum is None else min(self.offer.quorum, len(wanted))
        while len(wanted & set(self.sizes)) < enough:
            if self.stop.is_set():
                raise KeyboardInterrupt
            event = _next(self.hub)
            if isinstance(event, Arrived):
                self._counted(event)
                self.say(f"client {event.m} is here; {enough - len(wanted & set(self.sizes))} to come")
        if enough < len(wanted):
            self._refuse_unsized()
            self.sizes = {m: self.sizes.get(m, 1) for m in wanted}

    def _refuse_unsized(self) -> None:
        if self.spec.weighted or self.spec.tau == "proportional":
            way_out = "Leave --quorum out, or take weighted=false and tau=same."
            raise InputError("weights and steps by size need all clients before the first round", way_out=way_out)

    def _counted(self, event: Arrived) -> None:
        self.journal.note("arrived", client=event.m, samples=event.accept.n, cpu=event.accept.cpu)
        if event.m not in self.census.read():
            self.census.add(event.m, event.accept.n)
            self.sizes[event.m] = event.accept.n

    def _house(self) -> House:
        shape, trial = self.shape, self.shape.trial
        terms = terms_of(self.spec, self.data, self.offer.heartbeat)
        numbers = shape.size if shape.whole else shape.boundary
        bounds = Bounds(
            batch=_largest(shape),
            h=on_wire(shape.h),
            dtype=trial.dtype,
            classes=len(terms.classes),
            norms=shape.norms,
        )

        def agreed(hello: Hello, accept: Accept) -> str | None:
            known = self.census.read().get(hello.client, accept.n)
            if known != accept.n:
                return f"client {hello.client} has {accept.n} samples now and had {known} when the run began"
            return disagreement(terms, accept)

        half = halves.size_of({"x": numbers}, trial.dtype) + SEALING
        return House(terms, bounds, half, self.spec.partition.M, self.offer.admitted, agreed)


def _largest(shape: Shape) -> int:
    return limits.BATCH if shape.trial.batches.draw == "full" else shape.trial.batches.size


def _next(hub: Hub) -> object:
    try:
        return hub.inbox.get(timeout=TICK)
    except Empty:
        return None
