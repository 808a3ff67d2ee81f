"""A client's part of a visit: from the lease to the commit, with whichever engine the spec names."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Protocol

import numpy as np

from splitrelay.deploy.backend import ClientContext, Labels, Vector, build_client_engine, half_bytes
from splitrelay.deploy.client_usage import UsageTimer
from splitrelay.deploy.deposit_bound import check_sealed_half
from splitrelay.deploy.visit_limits import UsedVisits, check_evaluation
from splitrelay.engine.base import LOWER_ETA, Reply, train_client_half
from splitrelay.errors import Diverged
from splitrelay.network import limits, messages, tensor_transfer
from splitrelay.network.client_session import BackgroundReconnect, HeldVisit, Session, VisitCancelled
from splitrelay.network.codec import BadMessage, is_finite_array
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
    """Scores the model. It needs torch, so it is loaded only where it is needed."""

    def written(self, bottom: Vector, top: Vector) -> None:
        """Keep the whole model."""
        ...

    def score(self, session: Session, fence: int, bottom: Vector) -> Score:
        """Loss and accuracy."""
        ...


class RemoteServerHalf:
    """The server half during one visit, on another host (engine.base.ServerHalf).

    `prepare_next` is called at each step while the reply is on its way.
    """

    def __init__(
        self, session: Session, lease: Lease, used: UsedVisits, prepare_next: Callable[[], None] | None = None
    ) -> None:
        self.session, self.fence, self.lease, self.used = session, lease.fence, lease, used
        self.prepare_next = prepare_next
        self.closing: messages.Finish | None = None

    def step(self, k: int, h: Vector, labels: Labels, norm2: float, /) -> Reply[Vector]:
        """Send the step and wait for the reply, over a new connection if this one is lost."""
        if not is_finite_array(h):  # the server would refuse it, however often it is said
            where = f"the smashed data of client {self.lease.m} overflowed in round {self.lease.r}, step {k}"
            raise Diverged(f"{where}, at eta={self.lease.eta:g}", hint=LOWER_ETA)
        self.used.count_step()
        step = messages.Step(self.fence, k, h, labels.astype(np.int32), norm2)
        reply = self.session.exchange(lambda: iter([step]), self.session.timeouts.step, meanwhile=self.prepare_next)
        assert isinstance(reply, messages.Reply) and reply.k == k  # the table allows nothing else
        if reply.gradient.shape != h.shape or reply.gradient.dtype != h.dtype:
            raise BadMessage("the gradient at the cut", value=reply.gradient.shape, limit=f"{h.dtype} {h.shape}")
        self.session.holding.k = k + 1
        return Reply(reply.gradient, reply.norms, reply.loss)

    def finish(self, norm2: float, /) -> None:
        """Keep the message: it is sent together with the half."""
        self.closing = messages.Finish(self.fence, self.session.holding.k, norm2)


class VisitRunner:
    """One client, ready to train."""

    def __init__(
        self,
        context: ClientContext,
        used: UsedVisits,
        seals: Sealer | None = None,
        judge: Evaluator | None = None,
        post: PeerEndpoint | None = None,
        usage: UsageTimer | None = None,
    ) -> None:
        self.spec, self.engine, self.used = context.spec, build_client_engine(context), used
        self.largest_half = half_bytes(self.spec, self.engine.shape)
        self.seals, self.judge, self.post, self.usage = seals, judge, post, usage
        self.has_model = False  # whether the whole model was kept here

    @cached_property
    def x0(self) -> Vector:
        """The client's half before the first visit."""
        return self.engine.compute_x0()

    @property
    def whole(self) -> bool:
        """Whether the client holds the whole model."""
        return self.spec.placement == "whole"

    def visit(self, session: Session, lease: Lease) -> None:
        """From the lease to the commit, if the spec allows this visit."""
        newest = self.seals.newest if self.seals else None
        try:
            self._make_visit(session, lease)
        except (Diverged, VisitCancelled):
            if self.seals is not None and newest is not None:
                self.seals.go_back(newest)
            raise

    def _make_visit(self, session: Session, lease: Lease) -> None:
        self.used.allowed.check_lease(lease, 2 * self.largest_half)  # SCAFFOLD's shift travels with x
        blob = self.begun(session, lease)
        x, shift = (self.opened(blob, lease), None) if self.seals else self.vectors(blob)
        self.used.begin_visit(lease)  # not before: who cannot open a half yet is asked again and again
        session.holding = HeldVisit(lease.fence)
        session.send(Ready(lease.fence))
        visit = self.used.allowed.make_visit(lease, x, shift)
        if self.whole:
            with BackgroundReconnect(session):
                after, loss = self.engine.train_whole(visit)
            blob, words = tensor_transfer.pack_vectors(x=after), list[Message]()
        else:
            half, loss = self.engine.begin(visit), 0.0
            remote = RemoteServerHalf(session, lease, self.used, half.prepare_next)
            train_client_half(half, remote, visit.K)
            blob = self.closed(tensor_transfer.pack_vectors(x=self.engine.get_x(visit)), lease)
            assert remote.closing is not None
            can_hand_over = self.post is not None and self.spec.route == "peer-to-peer"
            words = [remote.closing, *(self.post.bring(lease, blob) if self.post and can_hand_over else ())]
        words += [self.usage.paid()] if self.usage else []
        words += build_deposit(lease.fence, blob, (loss,) * self.whole, piece=session.limits.piece)
        answer = session.exchange(lambda: iter(words), session.timeouts.step)
        assert isinstance(answer, Commit)
        if self.seals is not None:
            self.seals.confirm_own(blob)

    def begun(self, session: Session, lease: Lease) -> bytes:
        """The half to begin from: it comes after the lease, unless the client before has brought it."""
        if lease.direct:
            brought = None if self.post is None else self.post.come(lease)
            if brought is not None:
                return brought
            session.send(HalfRequest(lease.fence))
        return receive_half(session, lease.bytes, lease.sha256)

    def look(self, session: Session, look: EvaluationRequest) -> None:
        """Score the half that comes, or keep the model."""
        check_evaluation(self.used.allowed, look, self.largest_half + self.engine.shape.size * LARGEST_NUMBER)
        blob = receive_half(session, look.bytes + look.top_bytes, look.sha256)
        if look.recipe.startswith(CHECK) and self.seals is not None:
            self.used.begin_check()
            session.send(self.check_half(blob, look))
            return
        if self.judge is None or self.seals is None:
            session.send(Fail(look.fence, "this client has no test set: it was joined without --test"))
            return
        bottom = self.opened(blob[: look.bytes], look)
        self.used.begin_evaluation()
        if look.top_bytes:
            size = self.engine.shape.size - self.engine.shape.boundary
            self.judge.written(
                bottom, tensor_transfer.unpack_vectors(blob[look.bytes :], {"x": size}, self.spec.model.dtype)["x"]
            )
            self.has_model = True
            session.send(Score(look.fence, 0.0, 0.0))
        else:
            session.send(self.judge.score(session, look.fence, bottom))

    def opened(self, blob: bytes, words: Lease | EvaluationRequest) -> Vector:
        """The half that the client before us sealed; before the first visit, x_c^0."""
        assert self.seals is not None
        if isinstance(words, Lease) and words.visit != words.sealed_visit + 1:
            value, limit = words.sealed_visit, f"visit {words.visit - 1}"
            raise WrongVisit("the half is not that of the visit before", value=value, limit=limit)
        if not blob and words.sealed_visit == 0:
            self.seals.begin()
            return self.engine.compute_x0()
        half = self.seals.unseal(blob, visit=words.sealed_visit, fence=words.sealed_fence, committed=False)
        x = self.read_half(half, words.sealed_visit, self.seals.find_writer(words.sealed_visit))
        if isinstance(words, EvaluationRequest) or not words.direct:
            self.seals.confirm(blob)  # only now: a half that is refused must not bind this client
        return x

    def read_half(self, half: bytes, visit: int, writer: int | None) -> Vector:
        """Return the weights of an opened half. Raises RejectedHalf if no honest client can have sent them."""
        try:
            x = self.vectors(half)[0]
        except BadMessage as error:
            raise TamperedHalf(f"the half of visit {visit} is not the clients' half of this model: {error}") from None
        check_sealed_half(x, self.x0, self.spec, visit, writer, has_buffers=self.engine.has_buffers)
        return x

    def check_half(self, blob: bytes, look: EvaluationRequest) -> Score:
        """Open a half because somebody else could not; answer whether its list of visits is complete, too."""
        assert self.seals is not None
        expected = read_check(look.recipe)
        last, half = self.seals.inspect(blob, visit=look.sealed_visit, fence=look.sealed_fence)
        writer = next((m for m, visit in last.items() if visit == look.sealed_visit), None)
        self.read_half(half, look.sealed_visit, writer)
        return Score(look.fence, 0.0, float(is_complete(last, expected)))

    def closed(self, blob: bytes, lease: Lease) -> bytes:
        """Sealed for the next client, where the server is not to read it."""
        return blob if self.seals is None else self.seals.seal(blob, visit=lease.visit, fence=lease.fence)

    def vectors(self, blob: bytes) -> tuple[Vector, Vector | None]:
        """x and shift, from what came with a lease; copies, as what comes from the wire is read-only."""
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
    assembly, come = tensor_transfer.Assembly(length), 0
    timeouts = session.timeouts
    longest = timeouts.step + length * timeouts.silence / session.limits.piece
    until = now() + longest
    while come < length:
        if now() > until:
            raise BadMessage("a half came too slowly", value=f"{come} bytes", limit=f"{length} bytes in {longest:g} s")
        chunk = session.receive(timeouts.step)
        if isinstance(chunk, Chunk):
            come = assembly.add(chunk)
    return assembly.blob(length, digest) if length else b""


def build_deposit(
    fence: int, blob: bytes, losses: tuple[float, ...] = (), epoch: int = 0, piece: int = limits.PIECE
) -> Iterator[Message]:
    """A half on its way up."""
    yield from tensor_transfer.split_into_chunks(fence, blob, piece)
    yield Deposit(fence, len(blob), tensor_transfer.compute_sha256(blob), losses, epoch)
