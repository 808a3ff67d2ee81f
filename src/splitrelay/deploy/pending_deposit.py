"""What one client has given the next, and still owes the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from splitrelay.algorithms.base import Done
from splitrelay.deploy.sealed_state import SealedState
from splitrelay.deploy.server_visit import VisitLease
from splitrelay.errors import WorkError
from splitrelay.network.messages import HandoverReport


class LostHalf(WorkError):
    """The half of a visit is lost; the visit is made again."""


@dataclass
class PendingDeposit:
    """A visit whose half the next client has, and the server not yet."""

    lease: VisitLease
    done: Done[Any]  # as the algorithm was given it, without the half
    word: HandoverReport
    lost: bool = False  # the client that made it has it no more


@dataclass(frozen=True)
class DeliveredHalf:
    """The half that was sealed under this fence is at client m."""

    m: int
    word: HandoverReport


def missing(x: SealedState) -> bool:
    """Whether the server does not have the half."""
    return x.visit > 0 and not len(x.blob)
