"""What the evaluator or the fed server is asked: over every new link again, and again when it could not answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import Empty

from splitrelay.deploy.client_options import get_client_name
from splitrelay.deploy.quarantine import printable
from splitrelay.deploy.remote_clients import RemoteClients
from splitrelay.deploy.server_visit import has_grown
from splitrelay.deploy.stalls import Wait, absence, inability
from splitrelay.errors import WorkError
from splitrelay.network import limits
from splitrelay.network.messages import Cancel, Fail, Message, Predict, get_fence
from splitrelay.network.shared_event_loop import ClientConnected, ClientDisconnected, MessageReceived

STEPS = 10  # an answer may take as long as a visit of so many steps


class PartyRequest:
    """One question to client m, until somebody has the answer; `ask` says it on a link, and under which fence."""

    def __init__(self, remote: RemoteClients, m: int, ask: Callable[[int], int]) -> None:
        self.remote, self.m, self.ask = remote, m, ask
        self.link: int | None = None  # on which it was asked
        self.fence = 0
        self.since = self.heard = self.missed = time.monotonic()  # when it got further, when anything came, see below
        self.moved, self.k = (0, 0), -1  # bytes of halves on the way, and the highest slice that was asked for
        self.began: float | None = None  # when it was first asked, or first after it failed
        self.links = 0  # on which it was asked since it last got further
        self.unable = False  # it has said that it cannot answer yet
        self.failures, self.why = 0, ""  # how often it failed, and how the last time
        self.refusal: Fail | None = None  # the party's own last word, if it said that it cannot answer
        self.half = b""  # that came with the last word
        self.after = 0.0  # not to be asked again before

    def next(self) -> Message | None:
        """The next word of the answer; None where none came for a moment."""
        if self.remote.stop.is_set():
            raise KeyboardInterrupt
        self._send_request()
        event = self._get_event()
        if isinstance(event, ClientDisconnected) and event.link == self.link:
            self.link = None
        elif isinstance(event, MessageReceived) and event.link == self.link and get_fence(event.message) == self.fence:
            self.half = event.half
            return self._handle_answer(event.message)
        now = time.monotonic()
        self._check_timeouts(now)
        self.remote.run_periodic_checks(now)
        return None

    def wait(self, now: float) -> Wait | None:
        """Return what the question waits for; None where it is being answered."""
        remote, m = self.remote, self.m
        if m not in remote.hub.get_clients():
            return absence(m, self.missed, m in remote.seen, remote.policy)
        if self.unable:
            return inability(m, self.missed, self.why)
        if self.link is None and self.failures:
            why = f"it failed {self.failures} times ({printable(self.why)}) and is asked again"
            return Wait(m, "failed", self.since, why, "Read its log and repair it.")
        heard = self.heard if self.links <= 1 else self.since  # a new connection is no answer
        if now - heard < remote.policy.stalled_after:
            return None
        return Wait(m, "no-answer", heard, "it is connected but does not answer", "Read its log and repair it.")

    def cancel(self, why: str) -> None:
        """It is not answered as it should be, or nobody waits for it any longer."""
        if self.link is not None:
            self.send(Cancel(self.fence, why[: limits.TEXT]))
            self._record_failure(why, later=False)

    def reject(self, why: str) -> None:
        """Count an answer that is there, and wrong, as a failure; it is asked again."""
        self._record_failure(why, later=False)

    def send(self, *words: Message) -> None:
        """On the link on which it was asked."""
        if self.link is not None:
            self.remote.hub.send(self.link, *words)

    def check_failures(self) -> None:
        """After so many failures the run stops; who can not answer yet has as long as a client that is away."""
        policy, who = self.remote.policy, get_client_name(self.m)
        hint = "Mend it; the same command goes on from here."
        if self.failures > policy.retries:
            raise WorkError(f"{who} failed {self.failures} times", value=self.why.rstrip("."), hint=hint)
        if policy.away == "retry" and time.monotonic() - self.missed > policy.lease * (policy.retries + 1):
            raise WorkError(f"{who} does not answer", value=self.why.rstrip(".") or "it is away", hint=hint)

    def _send_request(self) -> None:
        here, now = self.remote.hub.get_announced_clients().get(self.m), time.monotonic()
        if here is not None and here != self.link and now >= self.after and not self.remote.is_busy(self.m):
            self.links += 1
            most = self.remote.hub.limits.connections_without_progress
            if self.links > most:
                self._record_failure(f"no answer on {most} connections", later=False)
                return
            self.link, self.fence, self.heard, self.moved = here, self.ask(here), now, (0, 0)
            self.began = now if self.began is None else self.began
        if self.link is not None and not self.unable:
            self.missed = now  # since then it is away, or cannot

    def _handle_answer(self, message: Message) -> Message | None:
        self.heard = time.monotonic()
        if isinstance(message, Fail):
            self.refusal = None if message.later else message
            self._record_failure(message.why, message.later)
            return None
        k = message.k if isinstance(message, Predict) else self.k + 1
        if k > self.k:  # what was asked before, on another link, is no progress
            self.since, self.k, self.unable, self.links = self.heard, k, False, 0
        return message

    def _check_timeouts(self, now: float) -> None:
        if self.link is None:
            return
        carried, patience = self.remote.hub.get_transferred(self.link), self.remote.policy.step
        if has_grown(self.moved, carried, self.remote.hub.limits.piece):
            self.moved, self.heard = carried, now
        longest = self.remote.policy.deadline(STEPS)
        if now - self.heard > patience:
            self.cancel(f"no answer for {patience:g} seconds")
        elif self.began is not None and now - self.began > longest:  # however much it says meanwhile
            self.cancel(f"the answer took more than {longest:g} seconds")

    def _record_failure(self, why: str, later: bool) -> None:
        if why != self.why or not later:
            event = "unable" if later else "failed"
            self.remote.journal.note(event, client=self.m, fence=self.fence, why=why[: limits.TEXT])
        self.failures += not later
        self.unable, self.links, self.began = later, 0, None
        self.why, self.link, self.fence = why, None, 0
        self.after = time.monotonic() + self.remote.hub.timeouts.compute_pause(
            max(self.failures, int(time.monotonic() - self.since), 1)
        )

    def _get_event(self) -> ClientConnected | ClientDisconnected | MessageReceived | None:
        try:
            event = self.remote.hub.inbox.get(timeout=self.remote.hub.timeouts.server_tick)
        except Empty:
            return None
        self.remote.handle_event(event)
        return event
