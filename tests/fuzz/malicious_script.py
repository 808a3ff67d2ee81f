"""The script of a malicious server: the honest messages of a conversation, and the ways to leave them."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any

import grpc
import numpy as np

from splitrelay.network import messages as msg
from splitrelay.network import tensor_transfer
from splitrelay.network.codec import encode
from splitrelay.network.messages import Message
from splitrelay.network.server_connection import EVALUATOR_NUMBER, FED_SERVER_NUMBER
from splitrelay.security.sealing_session import Sealer
from tests.fuzz.client_oracle import Connection, Oracle, get_shape
from tests.fuzz.malicious_targets import Target
from tests.fuzz.server_lies import LIES, HangUp, fit_digest

SHORT, LONG = 0.1, 3.0  # seconds that the server waits for a message


class Over(Exception):
    """This stream is over."""


class Line:
    """One stream from a client: what it sends is checked and queued."""

    def __init__(self, oracle: Oracle, requests: Iterator[bytes]) -> None:
        self.oracle, self.requests, self.connection = oracle, requests, Connection()
        self.queue: SimpleQueue[Message | None] = SimpleQueue()
        threading.Thread(target=self._read, name="fuzz line", daemon=True).start()

    def _read(self) -> None:
        with suppress(grpc.RpcError, Exception if sys.is_finalizing() else grpc.RpcError):
            for frame in self.requests:
                message = self.oracle.observe(self.connection, frame)
                if message is not None:
                    self.queue.put(message)
        self.queue.put(None)

    def expect(self, patience: float, *kinds: type[Message]) -> Any:
        """Return the next message of these kinds. Raise Over where none comes, or the client leaves."""
        until = time.monotonic() + patience
        while True:
            try:
                message = self.queue.get(timeout=max(until - time.monotonic(), 0.001))
            except Empty:
                raise Over from None
            if message is None or isinstance(message, msg.Leave):
                raise Over
            if isinstance(message, kinds):
                return message


class Script:
    """A malicious server in one conversation."""

    def __init__(self, target: Target, draw: np.random.Generator, way: Way | None = None) -> None:
        self.target, self.expected, self.draw = target, target.expected, draw
        self.oracle, self.half = Oracle(target.expected), target.half
        self.shape = get_shape(target.expected.spec, target.expected.terms)
        self.terms = target.expected.terms
        self.way: Way = way or WAYS[int(draw.choice(len(WAYS), p=SHARES))]
        self.fence = self.k = self.visit = self.sealed_fence = 0
        self.round = 0
        self.held: msg.Lease | None = None
        self.connection_count, self.most_connections = 0, 1 + self.below(8)
        self.frames, self.most_frames = 0, 20 + self.below(400)
        self.lies = Counter[str]()
        self.sent: list[bytes] = []
        self.over = threading.Event()
        self.lock = threading.Lock()

    def below(self, limit: int) -> int:
        """Return a whole number from 0 on."""
        return int(self.draw.integers(limit))

    def pause(self, seconds: float) -> None:
        """Wait, unless the conversation is over."""
        self.over.wait(seconds)

    def serve(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """Talk to the client on one stream."""
        self.connection_count += 1
        if self.over.is_set() or self.connection_count > self.most_connections:
            self.over.set()
            context.abort(grpc.StatusCode.UNAVAILABLE, "the server has gone")
        line = Line(self.oracle, requests)
        try:
            for frame in self.way(self, line):
                self.frames += 1
                if self.frames > self.most_frames or self.oracle.wrong or self.over.is_set():
                    self.over.set()
                    break
                self.oracle.observe_offer(line.connection, frame)
                self.sent = [*self.sent[-20:], frame]
                yield frame
        except Over:
            pass
        except HangUp as end:
            if end.is_abort:
                context.abort(grpc.StatusCode.UNAVAILABLE, "the server has gone")
        if self.over.is_set():
            context.abort(grpc.StatusCode.UNAVAILABLE, "the server has gone")

    # What an honest server would send

    def talk(self, line: Line, patience: Callable[[], float]) -> Iterator[Message]:
        """Yield the honest messages of one stream, in order, while the client sends what it should."""
        line.expect(LONG, msg.Hello)
        yield self.terms
        accept = line.expect(LONG, msg.Accept)
        held = self.held
        if held is not None and accept.fence == held.fence:
            yield msg.Resume(held.fence)
            yield from self._steps(line, held, patience)
        else:
            yield msg.Welcome()
        while True:
            if self.expected.m >= EVALUATOR_NUMBER:
                yield from self._evaluate(line, patience)
            else:
                yield from self._visit(line, patience)

    def _visit(self, line: Line, patience: Callable[[], float]) -> Iterator[Message]:
        lease = self.make_lease()
        self.held, self.k = lease, 0
        yield lease
        yield from tensor_transfer.split_into_chunks(lease.fence, self.half)
        line.expect(patience(), msg.Ready)
        yield from self._steps(line, lease, patience)

    def make_lease(self) -> msg.Lease:
        """Return the next visit, as the spec has it."""
        allowed = self.expected.allowed
        step: Any = allowed.step
        self.fence += 1
        return msg.Lease(
            self.fence,
            self.visit + 1,
            self.round % allowed.R,
            0,
            self.expected.m,
            allowed.K,
            eta=step.eta,
            weight_decay=step.weight_decay,
            clip=step.clip or 0.0,
            momentum=step.momentum,
            prox=step.prox,
            per_half=step.per_half,
            bytes=len(self.half),
            sha256=tensor_transfer.compute_sha256(self.half) if self.half else b"",
            sealed_visit=self.visit,
            sealed_fence=self.sealed_fence,
        )

    def _steps(self, line: Line, lease: msg.Lease, patience: Callable[[], float]) -> Iterator[Message]:
        chunks: list[bytes] = []
        while True:
            message = line.expect(patience(), msg.Step, msg.Chunk, msg.Finish, msg.Deposit)
            if isinstance(message, msg.Step):
                self.k = message.k
                norms = (0.5,) * self.shape.norms if self.expected.spec.optimiser.clip else ()
                gradient: Any = (0.01 * self.draw.standard_normal(message.h.shape)).astype(message.h.dtype)
                yield msg.Reply(lease.fence, message.k, gradient, norms, 1.0)
            elif isinstance(message, msg.Chunk):
                chunks.append(message.data)
            elif isinstance(message, msg.Deposit):
                break
        self.held = None
        yield msg.Commit(lease.fence)
        if self.target.keys is not None:
            self.half, self.visit, self.sealed_fence = b"".join(chunks), lease.visit, lease.fence
        self.round += 1

    def _evaluate(self, line: Line, patience: Callable[[], float]) -> Iterator[Message]:
        """Ask the evaluator for a score, or the fed server for an average, of a half that a client has sealed."""
        self.fence += 1
        look = msg.EvaluationRequest(
            self.fence,
            self.round % 3,
            len(self.half),
            tensor_transfer.compute_sha256(self.half) if self.half else b"",
            self.visit,
            self.sealed_fence,
        )
        if self.expected.m == FED_SERVER_NUMBER:
            recipe = json.dumps({"halves": [[len(self.half), self.visit, self.sealed_fence]], "steps": ["half"]})
            look = replace(look, recipe=recipe, sealed_visit=self.visit + 1, sealed_fence=self.fence)
        yield look
        yield from tensor_transfer.split_into_chunks(look.fence, self.half)
        while True:
            message = line.expect(patience(), msg.Predict, msg.Score, msg.Deposit, msg.Fail)
            if isinstance(message, msg.Predict):
                self.k = message.k
                out: Any = self.draw.standard_normal((len(message.h), len(self.expected.terms.classes)))
                yield msg.Output(look.fence, message.k, out.astype(message.h.dtype))
            else:
                break
        if isinstance(message, msg.Deposit):
            yield msg.Commit(look.fence)
        self.round += 1
        self._seal_next()

    def _seal_next(self) -> None:
        """Make the half of another visit, as another client would have sealed it."""
        keys, spec = self.target.folder / "client-0", self.expected.spec
        x = (0.05 * self.draw.standard_normal(self.shape.boundary)).astype(np.float32)
        self.visit, self.sealed_fence = self.visit + 1, self.fence
        sealer = Sealer(keys, spec.identity, 0, chain=spec.route == "peer-to-peer")
        self.half = sealer.seal(tensor_transfer.pack_vectors(x=x), visit=self.visit, fence=self.fence)


# Ways to talk


def talk_honestly(script: Script, line: Line) -> Iterator[bytes]:
    """Keep to the protocol, with any gradients."""
    for message in script.talk(line, lambda: LONG):
        yield encode(message)


def talk_astray(script: Script, line: Line) -> Iterator[bytes]:
    """Keep to the protocol up to a point, lie there, and so on."""
    honest = script.below(12)

    def patience() -> float:
        return LONG if honest > 0 and script.below(4) else SHORT

    for message in script.talk(line, patience):
        honest -= 1
        if honest >= 0:
            yield encode(message)
        else:
            honest = script.below(10)
            lie = LIES[script.below(len(LIES))]
            script.lies[lie.__name__] += 1
            yield from lie(script, message)


def talk_at_random(script: Script, line: Line) -> Iterator[bytes]:
    """Send lies in the place of any message, and listen to nothing."""
    for _ in range(1 + script.below(6)):
        messages: tuple[Message, ...] = (script.terms, msg.Welcome(), script.make_lease(), msg.Commit(script.fence))
        if script.below(2):
            yield encode(messages[script.below(len(messages))])
        else:
            lie = LIES[script.below(len(LIES))]
            script.lies[lie.__name__] += 1
            yield from lie(script, messages[script.below(len(messages))])
    script.pause(0.05)


def take_all(script: Script, line: Line) -> Iterator[bytes]:
    """Keep to the form and ask for as many visits as the client makes; commit few of them, and change the terms."""
    script.most_connections, script.most_frames = 300, 600 if script.expected.m == FED_SERVER_NUMBER else 5000
    if script.below(2):
        mean = tuple(number + 1e-3 * script.below(1000) for number in script.expected.terms.mean)
        script.terms = fit_digest(replace(script.expected.terms, mean=mean))
    for message in script.talk(line, lambda: LONG):
        way = script.below(30)
        if isinstance(message, msg.Commit) and way > 8:
            yield encode(msg.Cancel(message.fence, "again"))
        elif isinstance(message, msg.Lease | msg.Reply | msg.Commit) and way == 0:
            raise HangUp(is_abort=False)
        elif isinstance(message, msg.Reply) and way == 1:
            yield encode(msg.Cancel(message.fence, "again"))
        else:
            yield encode(message)
        if isinstance(message, msg.Commit) and way == 2:
            yield encode(msg.Bye("again", again=True))


Way = Callable[[Script, Line], Iterator[bytes]]
WAYS: tuple[Way, ...] = (talk_at_random, talk_astray, take_all, talk_honestly)
SHARES = (0.17, 0.68, 0.1, 0.05)
