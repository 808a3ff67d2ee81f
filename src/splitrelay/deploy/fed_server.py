"""The fed server: it opens the client halves, combines them as the server asks, and seals the result."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from splitrelay.deploy.backend import Vector, compute_half_size, derive_client_shape
from splitrelay.deploy.backend_torch import build_model_spec, has_buffers, start
from splitrelay.deploy.client_visit import CHECK, build_deposit, receive_half
from splitrelay.deploy.deposit_bound import check_sealed_half
from splitrelay.deploy.lease_limits import check_half_bytes
from splitrelay.deploy.sample_terms import get_model_sizes
from splitrelay.network import tensor_transfer
from splitrelay.network.client_session import Session
from splitrelay.network.codec import BadMessage
from splitrelay.network.messages import Commit, EvaluationRequest, Fail, Score, Terms
from splitrelay.runs.spec import Spec
from splitrelay.security.encryption import TamperedHalf
from splitrelay.security.sealing_session import Sealer
from splitrelay.structured_text import parse_json


class FedServer:
    """One spec's fed server. It sees the clients' halves, and neither smashed data nor labels nor the server's half."""

    def __init__(self, spec: Spec, terms: Terms, keys: Path) -> None:
        torch.set_num_threads(1)  # bits depend on it
        self.spec, self.keys = spec, keys
        self.kind = get_model_sizes(terms)
        shape = derive_client_shape(spec, *self.kind)
        self.size = shape.boundary
        self.most_halves = 2 * (max(spec.partition.M, spec.S or 0) + spec.G + 1)  # an algorithm uses each at most twice
        self.most_bytes = self.most_halves * compute_half_size(spec, shape)
        self.newest = 0
        self.has_buffers = has_buffers(spec, *self.kind)

    def answer_request(self, session: Session, request: EvaluationRequest) -> None:
        """Check a half, or combine the halves that the server relays. Refuse halves of a round that is over."""
        check_half_bytes(request.bytes, self.most_bytes)
        blob = receive_half(session, request.bytes, request.sha256)
        if request.recipe.startswith(CHECK):  # somebody could not open this half
            self._unseal(blob, request.sealed_visit, request.sealed_fence)
            session.send(Score(request.fence, 0.0, 1.0))
            return
        if request.sealed_visit < self.newest:
            what = f"visit {request.sealed_visit} is over: {self.newest} was averaged"
            session.send(Fail(request.fence, what))
            return
        sealer = Sealer(self.keys, self.spec.identity, clients=self.spec.partition.M)
        half = tensor_transfer.pack_vectors(x=self.combine(blob, request.recipe))
        sealed = sealer.seal(half, visit=request.sealed_visit, fence=request.sealed_fence)
        deposit = list(build_deposit(request.fence, sealed))
        answer = session.exchange(deposit, session.timeouts.step, request.fence)
        assert isinstance(answer, Commit)
        self.newest = request.sealed_visit

    def combine(self, blob: bytes, document: str) -> Vector:
        """Combine the halves as the recipe in this document says, on torch's vectors as in a simulation.

        Raises TamperedHalf where the recipe cannot be followed.
        """
        try:
            recipe = parse_json(document)
            if len(recipe["halves"]) > self.most_halves:  # x^0 needs no bytes on the wire, but memory
                raise ValueError("the recipe has too many halves")
            ready = [self._unseal(piece, *label) for piece, label in _split_halves(blob, recipe["halves"])][::-1]
            stack: list[torch.Tensor] = []
            for step in recipe["steps"]:
                _execute_step(step, ready, stack)
            (result,) = stack
            if result.shape != (self.size,) or not bool(torch.isfinite(result).all()):
                raise ValueError("the recipe does not end with one half")
        except (KeyError, ValueError, TypeError, IndexError, ArithmeticError, RuntimeError, RecursionError):
            raise TamperedHalf("the server's recipe cannot be followed", hint="Ask the server's keeper.") from None
        x: Vector = result.numpy()
        return x

    @cached_property
    def x0(self) -> Vector:
        """The client half before the first visit."""
        dtype = getattr(torch, self.spec.model.dtype)
        return start(build_model_spec(self.spec, *self.kind), self.spec.seed, dtype)[: self.size]

    def _unseal(self, piece: bytes, visit: int, fence: int) -> torch.Tensor:
        if not piece and visit == 0:
            return torch.from_numpy(self.x0.copy())
        sealer = Sealer(self.keys, self.spec.identity, clients=self.spec.partition.M)
        half = sealer.unseal(piece, visit=visit, fence=fence)
        try:
            x = tensor_transfer.unpack_vectors(half, {"x": self.size}, self.spec.model.dtype)["x"]
        except BadMessage as error:
            raise TamperedHalf(f"the half of visit {visit} is not the clients' half of this model: {error}") from None
        check_sealed_half(x, self.x0, self.spec, visit, sealer.find_writer(visit), has_buffers=self.has_buffers)
        return torch.from_numpy(x.copy())


def _execute_step(step: Any, ready: list[torch.Tensor], stack: list[torch.Tensor]) -> None:
    """Execute one step of the recipe, with the operations that the algorithm asked for."""
    if step == "half":
        stack.append(ready.pop())
    elif step in ("+", "-"):
        b, a = stack.pop(), stack.pop()
        stack.append(a + b if step == "+" else a - b)
    else:
        operation, number = step
        a = stack.pop()
        stack.append(number * a if {"*": True, "/": False}[operation] else a / number)


def _split_halves(blob: bytes, labels: Any) -> list[tuple[bytes, tuple[int, int]]]:
    """Return the halves, each with its visit and fence."""
    pieces, at = [], 0
    for length, visit, fence in labels:
        if length < 0:
            raise ValueError("a half has a negative length")
        pieces.append((blob[at : at + length], (int(visit), int(fence))))
        at += length
    return pieces
