"""x where the server cannot read the client half: the half passes the server sealed, with a readable label."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch

from splitrelay.algorithms.base import Visit
from splitrelay.deploy.server_visit import ServerVisits, build_lease
from splitrelay.errors import InputError
from splitrelay.network import tensor_transfer
from splitrelay.network.codec import BadMessage
from splitrelay.network.messages import Lease
from splitrelay.runs.spec import Spec
from splitrelay.security.encryption import TamperedHalf, compute_spec_digest, read_label
from splitrelay.security.sealing_session import list_sealed_sizes

WAY_OUT = "Use route=centralized, or an algorithm that only passes x on, such as ssl."


@dataclass(eq=False)
class SealedState:
    """x as the server has it: a client half that it cannot read, and its own half.

    The journal stores the fields by their names. With a direct handover the sealed half may reach the server after the
    visit that starts from it.
    """

    blob: torch.Tensor  # bytes; empty: the first client draws x_c^0, or another client has the half
    top: torch.Tensor
    visit: int = 0  # the half was sealed after this visit,
    fence: int = 0  # under this fence

    def _refuse(self, _: Any) -> Any:
        what = "peer to peer the server does not hold the clients' halves, and cannot average them"
        raise InputError(what, hint=WAY_OUT)

    __add__ = __sub__ = __rmul__ = __truediv__ = _refuse

    def bytes(self) -> bytes:
        """Return the sealed half as it travels."""
        return self.blob.numpy().tobytes()

    def fill(self, other: SealedState) -> None:
        """Take over the sealed half of `other`, perhaps under a later fence. The server half stays."""
        self.blob, self.visit, self.fence = other.blob, other.visit, other.fence


State = TypeVar("State", bound=SealedState)


def make_first_state(top: torch.Tensor, kind: type[SealedState] = SealedState) -> SealedState:
    """Return x^0. The first client draws the client half from the same named randomness."""
    return kind(torch.zeros(0, dtype=torch.uint8), top)


def read_sealed_half(half: bytes, visit: int, fence: int, top: torch.Tensor, kind: type[State], spec: Spec) -> State:
    """Return the state with a sealed half. Raise BadMessage if its label names another visit, fence or spec."""
    try:
        label = read_label(half)
    except TamperedHalf as error:
        raise BadMessage(error.what) from None
    if (label.visit, label.fence) != (visit, fence):
        raise BadMessage("a half was sealed for another visit", value=(label.visit, label.fence))
    if label.spec_digest != compute_spec_digest(spec.identity):
        raise BadMessage("a half was sealed for another spec")
    return kind(torch.from_numpy(np.frombuffer(half, np.uint8).copy()), top, visit, fence)


class SealedHalf:
    """A client half that travels sealed (see server_visit.TransferredHalf)."""

    def __init__(self, server_visits: ServerVisits, visit: Visit[Any]) -> None:
        self.server_visits, self.visit = server_visits, visit
        self.x: SealedState = visit.x
        # Bytes are counted as in a simulation, where the half is not sealed: from a tensor of its size without memory.
        size, dtype = server_visits.shape.boundary, visit.x.top.dtype
        self.client_part = replace(visit, x=torch.empty(size, dtype=dtype, device="meta"))
        self.server_part: Visit[torch.Tensor] = replace(visit, x=visit.x.top)

    def build_lease(self, fence: int, number: int) -> tuple[Lease, bytes]:
        """Return the message that grants the visit, with the label of the sealed half, and the half itself."""
        blob = self.x.bytes()
        grant = build_lease(self.visit, fence, self.x.visit + 1, blob)
        return replace(grant, sealed_visit=self.x.visit, sealed_fence=self.x.fence), blob

    def read_deposit(self, half: bytes, fence: int, top: torch.Tensor) -> SealedState:
        """Return x after the visit. Raise BadMessage if the label, the length or the key epoch of the half is wrong."""
        spec, shape = self.server_visits.spec, self.server_visits.shape
        after: SealedState = read_sealed_half(half, self.x.visit + 1, fence, top, type(self.x), spec)
        if len(half) not in list_sealed_sizes(
            tensor_transfer.compute_packed_size({"x": shape.boundary}, spec.model.dtype)
        ):
            raise BadMessage("a sealed half has another length than the clients' half", value=len(half))
        before = read_label(self.x.bytes()).epoch if len(self.x.blob) else 0
        if read_label(half).epoch < before:
            raise BadMessage("a half was sealed in an epoch that is over", value=read_label(half).epoch, limit=before)
        return after
