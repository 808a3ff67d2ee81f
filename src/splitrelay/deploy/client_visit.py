"""A client's part of a visit, from the lease to the commit, with the engine that the spec names."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Protocol

from splitrelay.deploy.backend import ClientContext, Vector, build_client_engine, compute_half_size
from splitrelay.deploy.client_usage import UsageTimer
from splitrelay.deploy.deposit_bound import check_sealed_half
from splitrelay.deploy.lease_limits import UsedVisits, check_evaluation
from splitrelay.engine.base import train_client_half
from splitrelay.errors import Diverged
from splitrelay.network import limits, tensor_transfer
from splitrelay.network.background_reader import BackgroundReconnect
from splitrelay.network.client_session import HeldVisit, RemoteServerHalf, Session
from splitrelay.network.codec import BadMessage
from splitrelay.network.grpc_channel import AnswerLost, VisitCancelled
from splitrelay.network.messages import (
    Chunk,
    Commit,
    Deposit,
    EvaluationRequest,
    Fail,
    HalfRequest,
    Lease,
    Message,
    Ready,
    Score,
)
from splitrelay.network.peer_transfer import PeerEndpoint
from splitrelay.security.encryption import TamperedHalf, WrongVisit
from splitrelay.security.sealing_session import Sealer
from splitrelay.structured_text import parse_json

LARGEST_NUMBER = 8  # bytes of a float64
CHECK = '{"check":'  # how the recipe of a request begins that asks whether a half opens


class Evaluator(Protocol):
    """Evaluates the model. It needs torch, so it is imported only where it is needed."""

    def save_model(self, bottom: Vector, top: Vector) -> None:
        """Save the whole model."""
        ...

    def score(self, session: Session, fence: int, bottom: Vector) -> Score:
        """Return loss and accuracy of the client half `bottom`."""
        ...


class VisitRunner:
    """Makes the visits and evaluations of one client."""

    def __init__(
        self,
        context: ClientContext,
        used: UsedVisits,
        seals: Sealer | None = None,
        evaluator: Evaluator | None = None,
        peers: PeerEndpoint | None = None,
        usage: UsageTimer | None = None,
    ) -> None:
        self.spec, self.engine, self.used = context.spec, build_client_engine(context), used
        self.largest_half = compute_half_size(self.spec, self.engine.shape)
        self.seals, self.evaluator, self.peers, self.usage = seals, evaluator, peers, usage
        self.has_model = False  # whether the whole model was kept here

    @cached_property
    def x0(self) -> Vector:
        """The client half before the first visit."""
        return self.engine.compute_x0()

    @property
    def whole(self) -> bool:
        """Whether the client holds the whole model."""
        return self.spec.placement == "whole"

    def visit(self, session: Session, lease: Lease) -> None:
        """Make a visit, from the lease to the commit. Raise ServerBrokeSpec if the spec does not allow it."""
        newest = self.seals.newest if self.seals else None
        try:
            self._make_visit(session, lease)
        except (Diverged, VisitCancelled):
            if self.seals is not None and newest is not None:
                self.seals.go_back(newest)
            raise

    def _make_visit(self, session: Session, lease: Lease) -> None:
        self.used.allowed.check_lease(lease, 2 * self.largest_half)  # SCAFFOLD's shift travels with x
        blob = self._receive_start(session, lease)
        x, shift = (self._unseal(blob, lease), None) if self.seals else self._unpack(blob)
        self.used.begin_visit(lease)  # not before: who cannot open a half yet is asked again and again
        session.holding = HeldVisit(lease.fence)
        session.send(Ready(lease.fence))
        visit = self.used.allowed.make_visit(lease, x, shift)
        if self.whole:
            with BackgroundReconnect(session):
                after, loss = self.engine.train_whole(visit)
            blob, closing = tensor_transfer.pack_vectors(x=after), list[Message]()
        else:
            half, loss = self.engine.begin(visit), 0.0
            remote = RemoteServerHalf(session, lease, half.prepare_next)
            try:
                train_client_half(half, remote, visit.K)
            finally:
                self.used.count_steps(remote.steps)
            blob = self._seal(tensor_transfer.pack_vectors(x=self.engine.get_x(visit)), lease)
            assert remote.closing is not None
            can_hand_over = self.peers is not None and self.spec.route == "peer-to-peer"
            reports = list(self.peers.hand_over(lease, blob) if self.peers and can_hand_over else ())
            if any(not report.why for report in reports):
                self.used.record_commit(lease.r)  # it counts as soon as the visit of the next client is committed
            closing = [remote.closing, *reports]
        closing += [self.usage.build_report()] if self.usage else []
        closing += build_deposit(lease.fence, blob, (loss,) * self.whole, piece=session.limits.piece)
        try:
            answer = session.exchange(closing, session.timeouts.step)
        except AnswerLost:
            self.used.record_commit(lease.r)  # if the server does not ask for the visit again, it was committed
            raise
        assert isinstance(answer, Commit)
        if self.seals is not None:
            self.seals.confirm_own(blob)

    def _receive_start(self, session: Session, lease: Lease) -> bytes:
        """Return the half to start from: from the previous client if it has sent it, else from the server."""
        if lease.direct:
            half = None if self.peers is None else self.peers.take_half(lease)
            if half is not None:
                return half
            session.send(HalfRequest(lease.fence))
        return receive_half(session, lease.bytes, lease.sha256)

    def answer_request(self, session: Session, request: EvaluationRequest) -> None:
        """Evaluate or check the half that follows, or save the model."""
        check_evaluation(self.used.allowed, request, self.largest_half + self.engine.shape.size * LARGEST_NUMBER)
        blob = receive_half(session, request.bytes + request.top_bytes, request.sha256)
        if request.recipe.startswith(CHECK) and self.seals is not None:
            self.used.begin_check()
            session.send(self.check_half(blob, request))
            return
        if self.evaluator is None or self.seals is None:
            session.send(Fail(request.fence, "this client has no test set: it was joined without --test"))
            return
        bottom = self._unseal(blob[: request.bytes], request)
        self.used.begin_evaluation()
        if request.top_bytes:
            size = self.engine.shape.size - self.engine.shape.boundary
            self.evaluator.save_model(
                bottom, tensor_transfer.unpack_vectors(blob[request.bytes :], {"x": size}, self.spec.model.dtype)["x"]
            )
            self.has_model = True
            session.send(Score(request.fence, 0.0, 0.0))
        else:
            session.send(self.evaluator.score(session, request.fence, bottom))

    def _unseal(self, blob: bytes, message: Lease | EvaluationRequest) -> Vector:
        """Return the half that the previous client sealed; before the first visit, x_c^0."""
        assert self.seals is not None
        if isinstance(message, Lease) and message.visit != message.sealed_visit + 1:
            value, limit = message.sealed_visit, f"visit {message.visit - 1}"
            raise WrongVisit("the half is not that of the visit before", value=value, limit=limit)
        if not blob and message.sealed_visit == 0:
            self.seals.begin()
            return self.engine.compute_x0()
        half = self.seals.unseal(blob, visit=message.sealed_visit, fence=message.sealed_fence, committed=False)
        x = self.read_half(half, message.sealed_visit, self.seals.find_writer(message.sealed_visit))
        if isinstance(message, EvaluationRequest) or not message.direct:
            self.seals.confirm(blob)  # only now: a half that is refused must not bind this client
        return x

    def read_half(self, half: bytes, visit: int, writer: int | None) -> Vector:
        """Return the weights of an opened half. Raises RejectedHalf if no honest client can have sent them."""
        try:
            x = self._unpack(half)[0]
        except BadMessage as error:
            raise TamperedHalf(f"the half of visit {visit} is not the clients' half of this model: {error}") from None
        check_sealed_half(x, self.x0, self.spec, visit, writer, has_buffers=self.engine.has_buffers)
        return x

    def check_half(self, blob: bytes, request: EvaluationRequest) -> Score:
        """Open a half that another client could not open, and report whether its list of visits is complete."""
        assert self.seals is not None
        expected = read_check(request.recipe)
        last, half = self.seals.inspect(blob, visit=request.sealed_visit, fence=request.sealed_fence)
        writer = next((m for m, visit in last.items() if visit == request.sealed_visit), None)
        self.read_half(half, request.sealed_visit, writer)
        return Score(request.fence, 0.0, float(is_complete(last, expected)))

    def _seal(self, blob: bytes, lease: Lease) -> bytes:
        """Seal a half for the next client, if the server must not read it."""
        return blob if self.seals is None else self.seals.seal(blob, visit=lease.visit, fence=lease.fence)

    def _unpack(self, blob: bytes) -> tuple[Vector, Vector | None]:
        """Return copies of x and shift from the bytes of a half; arrays from the network are read-only."""
        size = self.engine.shape.size if self.whole else self.engine.shape.boundary
        has_shift = self.used.allowed.has_shift and b'"shift"' in blob[:1000]
        names = ("x", "shift") if has_shift else ("x",)
        found = tensor_transfer.unpack_vectors(blob, dict.fromkeys(names, size), self.spec.model.dtype)
        return found["x"].copy(), found["shift"].copy() if "shift" in found else None


def read_check(recipe: str) -> dict[int, int]:
    """Return the visits that a half must list, from the request to check it. Raises BadMessage where it is no such."""
    try:
        return {int(m): int(visit) for m, visit in parse_json(recipe)["check"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadMessage("the request to check a half cannot be read", value=recipe[:100]) from None


def is_complete(last: Mapping[int, int], expected: Mapping[int, int]) -> bool:
    """Whether a half lists these visits, or later ones of the same clients."""
    return all(last.get(m, 0) >= visit for m, visit in expected.items())


def receive_half(session: Session, length: int, digest: bytes, now: Callable[[], float] = time.monotonic) -> bytes:
    """Return a half that is on its way down. Raises BadMessage where it comes too slowly, in however many pieces."""
    assembly, take_half = tensor_transfer.Assembly(length), 0
    timeouts = session.timeouts
    longest = timeouts.step + length * timeouts.silence / session.limits.piece
    until = now() + longest
    while take_half < length:
        if now() > until:
            raise BadMessage(
                "a half came too slowly", value=f"{take_half} bytes", limit=f"{length} bytes in {longest:g} s"
            )
        chunk = session.receive(timeouts.step)
        if isinstance(chunk, Chunk):
            take_half = assembly.add(chunk)
    return assembly.blob(length, digest) if length else b""


def build_deposit(
    fence: int, blob: bytes, losses: tuple[float, ...] = (), epoch: int = 0, piece: int = limits.PIECE
) -> Iterator[Message]:
    """Yield the messages that send a half to the server."""
    yield from tensor_transfer.split_into_chunks(fence, blob, piece)
    yield Deposit(fence, len(blob), tensor_transfer.compute_sha256(blob), losses, epoch)
