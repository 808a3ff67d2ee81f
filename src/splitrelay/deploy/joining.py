"""`splitrelay join`: a client with its own data, from the first handshake to the server's goodbye."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from splitrelay import __version__
from splitrelay.data.images import ImageSet
from splitrelay.deploy.own_data import own_images
from splitrelay.deploy.terms import BUILDING, cpu_level, engine_of, spec_in
from splitrelay.deploy.visiting import Visitor
from splitrelay.errors import Diverged, InputError, SplitrelayError
from splitrelay.experiments.spec import Spec
from splitrelay.wire import limits
from splitrelay.wire.client import Ended, Holding, LinkLost, Refused, Session, TakenBack, channel
from splitrelay.wire.control import BadMessage
from splitrelay.wire.messages import Accept, Fail, Lease, Leave, Terms

Say = Callable[[str], None]


@dataclass(frozen=True)
class Wish:
    """What a client wants: which server, who it is, its data; the spec it insists on, if any."""

    address: str
    client: int
    data: Path
    spec: Spec | None = None
    check: bool = False
    patience: float = 0.0  # seconds without a server after which it gives up; 0: never


class Joined:
    """A client that takes part until the server says goodbye."""

    def __init__(self, wish: Wish, credentials: Any, say: Say, stop: Event | None = None) -> None:
        self.wish, self.credentials, self.say = wish, credentials, say
        self.stop = stop or Event()
        self.visitor: Visitor | None = None
        self.images: ImageSet | None = None
        self.terms: Terms | None = None
        self.visits = 0
        self.session = Session(
            wish.client, self._dial, self._agree, software=f"splitrelay {__version__}", patience=wish.patience
        )
        self.session.note = say

    def run(self) -> str:
        """Take part; the server's last words."""
        try:
            self.session.connect()
            if self.wish.check:
                self.session.say(Leave("it was a check"))
                return "all is well: the server would take this client"
            self.say(f"joined as client {self.wish.client} with {len(self.images or ())} images")
            return self._taking_part()
        except Ended as error:
            return str(error)
        finally:
            self.session.hang_up()

    def _taking_part(self) -> str:
        while not self.stop.is_set():
            try:
                self._turn()
            except TakenBack as error:
                self.say(f"visit taken back: {error}")
                self.session.holding = Holding()
            except (LinkLost, Ended, Refused, BadMessage) as error:
                if (isinstance(error, Ended) and not error.again) or (isinstance(error, Refused) and error.final):
                    raise
                self.say(f"{error}; connecting again")
                self.session.holding = Holding()
                self.session.connect()
        if self.session.link is not None:
            self.session.say(Leave("the client was told to stop"))
        return "left"

    def _turn(self) -> None:
        """Wait for a lease, and make the visit."""
        lease = self._next_lease()
        if lease is None:
            return
        assert self.visitor is not None
        try:
            self.visitor.visit(self.session, lease)
            self.visits += 1
            self.say(f"round {lease.r}: {lease.K} steps, committed")
        except Diverged as error:
            self.session.say(Fail(lease.fence, str(error)[: limits.TEXT], diverged=True))
        finally:
            self.session.holding = Holding()

    def _next_lease(self) -> Lease | None:
        link = self.session.link
        assert link is not None
        while not self.stop.is_set():
            if link.waits(1.0):
                word = self.session.hear()
                if isinstance(word, Lease):
                    return word
        return None

    def _dial(self) -> Any:
        return channel(self.wish.address, self.credentials)

    def _agree(self, terms: Terms) -> Accept:
        """Everything is checked before the first turn; what does not fit is an error here, not at the server."""
        if self.terms is None or terms.spec_hash != self.terms.spec_hash:
            self._prepare(terms)
        spec = spec_in(terms)
        return Accept(spec.hash, engine_of(spec), cpu_level(), len(self.images or ()), check=self.wish.check)

    def _prepare(self, terms: Terms) -> None:
        spec = spec_in(terms)
        if self.wish.spec is not None and self.wish.spec.hash != spec.hash:
            way_out = "Ask the server's keeper, or leave --spec out to take what is offered."
            raise InputError(
                "the server runs another spec", value=spec.hash, limit=self.wish.spec.hash, way_out=way_out
            )
        if self.wish.spec is None and any(":" in name for name in (spec.model.name, spec.model.loss)):
            way_out = "Give --spec with your own copy of the spec, so that you say which code is run."
            raise InputError("the server's spec names code of its own", value=spec.model.name, way_out=way_out)
        self.images = own_images(self.wish.data, terms)
        with BUILDING:
            self.visitor = Visitor(self.wish.client, terms, self.images)
        self.terms = terms


__all__ = ["Joined", "SplitrelayError", "Wish"]
