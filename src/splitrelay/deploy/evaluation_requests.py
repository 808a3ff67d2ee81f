"""Requests to the evaluator, the fed server or a witness: sent again on each new connection, and after a failure."""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import Empty

from splitrelay.deploy.client_options import get_client_name
from splitrelay.deploy.remote_clients import RemoteClients
from splitrelay.deploy.server_visit import has_grown
from splitrelay.deploy.stalls import Wait, describe_absence, describe_inability
from splitrelay.errors import WorkError
from splitrelay.network import limits
from splitrelay.network.messages import Cancel, EvaluationRequest, Fail, Message, Predict
from splitrelay.network.shared_event_loop import ClientConnected, ClientDisconnected, MessageReceived
from splitrelay.network.tensor_transfer import compute_sha256
from splitrelay.runs.client_records import make_printable

STEPS = 10  # an answer may take as long as a visit with this number of steps


def send_request(
    clients: RemoteClients,
    connection: int,
    half: bytes,
    visit: int,
    fence: int,
    *,
    r: int = 0,
    top: bytes = b"",
    recipe: str = "",
) -> int:
    """Send an EvaluationRequest with the halves that it announces. Return its fence, which is new.

    Args:
        visit: The visit after which the client half was sealed, with `fence`.
        top: The server half, for an evaluator that saves both.
        recipe: What the fed server or a witness does with the half.
    """
    number, both = clients.journal.fences.next(), half + top
    digest, size = compute_sha256(both), len(half)
    request = EvaluationRequest(number, r, size, digest, visit, fence, top_bytes=len(top), recipe=recipe)
    clients.connections.send_half(connection, request, both)
    return number


class PartyRequest:
    """One request to party m, until it is answered. `ask` sends it on a connection and returns its fence."""

    def __init__(self, remote: RemoteClients, m: int, ask: Callable[[int], int]) -> None:
        self.remote, self.m, self.ask = remote, m, ask
        self.connection: int | None = None  # connection of the request
        self.fence = 0
        self.since = time.monotonic()  # of the last progress
        self.answered_at = self.since  # time of the last message or of the last growth of a transfer
        self.available_at = self.since  # last time at which the party was connected and able to answer
        self.transferred, self.k = (0, 0), -1  # bytes of halves in transfer; the highest slice of the test set
        self.began: float | None = None  # first request, or first since the last failure
        self.connection_count = 0  # connections since the last progress
        self.unable = False  # it reports that it cannot answer yet
        self.failures, self.why = 0, ""  # number of failures, reason of the last one
        self.refusal: Fail | None = None  # the party's message that it cannot answer
        self.half = b""  # deposited with the last message
        self.retry_at = 0.0  # earliest time of the next request

    def next(self) -> Message | None:
        """Return the next message of the answer, or None if none came in time."""
        if self.remote.stop.is_set():
            raise KeyboardInterrupt
        self._send_request()
        event = self._get_event()
        if isinstance(event, ClientDisconnected) and event.connection == self.connection:
            self.connection = None
        elif (
            isinstance(event, MessageReceived)
            and event.connection == self.connection
            and event.message.fence == self.fence
        ):
            self.half = event.half
            return self._handle_answer(event.message)
        now = time.monotonic()
        self._check_timeouts(now)
        self.remote.run_periodic_checks(now)
        return None

    def wait(self, now: float) -> Wait | None:
        """Return what the request waits for, or None if the party is answering."""
        remote, m = self.remote, self.m
        if m not in remote.connections.get_clients():
            return describe_absence(m, self.available_at, m in remote.scheduler.seen, remote.policy)
        if self.unable:
            return describe_inability(m, self.available_at, self.why)
        if self.connection is None and self.failures:
            why = f"it failed {self.failures} times ({make_printable(self.why, limits.TEXT)}) and is asked again"
            return Wait(m, "failed", self.since, why, "Read its log and repair it.")
        since = self.answered_at if self.connection_count <= 1 else self.since  # a new connection is not an answer
        if now - since < remote.policy.stalled_after:
            return None
        return Wait(m, "no-answer", since, "it is connected but does not answer", "Read its log and repair it.")

    def cancel(self, why: str) -> None:
        """Cancel the request, because the answer is wrong or is not needed any more."""
        if self.connection is not None:
            self.send(Cancel(self.fence, why[: limits.TEXT]))
            self._record_failure(why, later=False)

    def reject(self, why: str) -> None:
        """Count a wrong answer as a failure. The request is sent again."""
        self._record_failure(why, later=False)

    def send(self, *messages: Message) -> None:
        """Send messages on the connection of the request."""
        if self.connection is not None:
            self.remote.connections.send(self.connection, *messages)

    def check_failures(self) -> None:
        """Raise WorkError after too many failures, or if the party was away or could not answer for too long.

        With `--away wait` the run waits, and reports it. With `--away skip` it waits for a party that is away, but not
        for one that is connected and answers "not yet" for ever: the caller skips what it can do without.
        """
        policy, who = self.remote.policy, get_client_name(self.m)
        hint = "Repair it; the same command continues from here."
        if self.failures > policy.retries:
            raise WorkError(f"{who} failed {self.failures} times", value=self.why.rstrip("."), hint=hint)
        is_limited = policy.away == "retry" or (policy.away == "skip" and self.unable)
        if is_limited and time.monotonic() - self.available_at > policy.lease * (policy.retries + 1):
            raise WorkError(f"{who} does not answer", value=self.why.rstrip(".") or "it is away", hint=hint)

    def _send_request(self) -> None:
        here, now = self.remote.connections.get_announced_clients().get(self.m), time.monotonic()
        if here is not None and here != self.connection and now >= self.retry_at and not self.remote.is_busy(self.m):
            self.connection_count += 1
            most = self.remote.connections.limits.connections_without_progress
            if self.connection_count > most:
                self._record_failure(f"no answer on {most} connections", later=False)
                return
            self.connection, self.fence = here, self.ask(here)
            self.answered_at, self.transferred = now, (0, 0)
            self.began = now if self.began is None else self.began
        if self.connection is not None and not self.unable:
            self.available_at = now

    def _handle_answer(self, message: Message) -> Message | None:
        self.answered_at = time.monotonic()
        if isinstance(message, Fail):
            self.refusal = None if message.later else message
            self._record_failure(message.why, message.later)
            return None
        k = message.k if isinstance(message, Predict) else self.k + 1
        if k > self.k:  # a repeated slice is not progress
            self.since, self.k, self.unable, self.connection_count = self.answered_at, k, False, 0
        return message

    def _check_timeouts(self, now: float) -> None:
        if self.connection is None:
            return
        transferred, timeout = self.remote.connections.get_transferred(self.connection), self.remote.policy.step
        if has_grown(self.transferred, transferred, self.remote.connections.limits.piece):
            self.transferred, self.answered_at = transferred, now
        longest = self.remote.policy.deadline(STEPS)
        if now - self.answered_at > timeout:
            self.cancel(f"no answer for {timeout:g} seconds")
        elif self.began is not None and now - self.began > longest:  # even if messages keep coming
            self.cancel(f"the answer took more than {longest:g} seconds")

    def _record_failure(self, why: str, later: bool) -> None:
        if why != self.why or not later:
            event = "unable" if later else "failed"
            self.remote.journal.note(event, client=self.m, fence=self.fence, why=why[: limits.TEXT])
        self.failures += not later
        self.unable, self.connection_count, self.began = later, 0, None
        self.why, self.connection, self.fence = why, None, 0
        self.retry_at = time.monotonic() + self.remote.connections.timeouts.compute_pause(
            max(self.failures, int(time.monotonic() - self.since), 1)
        )

    def _get_event(self) -> ClientConnected | ClientDisconnected | MessageReceived | None:
        try:
            event = self.remote.connections.inbox.get(timeout=self.remote.connections.timeouts.server_tick)
        except Empty:
            return None
        self.remote.handle_event(event)
        return event
