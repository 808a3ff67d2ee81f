"""Peer to peer: does a client end the run that says it handed its half on, and then gives its visit up?"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from splitrelay.deploy.rehearsal import simulate
from splitrelay.deploy.server_visit import Policy
from splitrelay.network.client_session import Session
from splitrelay.network.grpc_channel import VisitCancelled
from splitrelay.network.messages import Chunk, Deposit, Fail, HandoverReport, Message
from splitrelay.network.peer_transfer import PeerEndpoint
from splitrelay.network.tensor_transfer import compute_sha256
from splitrelay.runs.run_directory import RunDirectory
from tests.support.deployment import LocalDeployment, list_skips
from tests.support.sealed_deployments import join_directly, make_direct_deployment

BAD = 1


def lie(stage: LocalDeployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Client BAD says that it handed its half on, brings it to nobody, and never deposits it."""
    bring, exchange = PeerEndpoint.hand_over, Session.exchange

    def is_bad(session: Session) -> bool:
        return stage.clients[BAD].session is session

    def claimed(post: PeerEndpoint, lease: Any, half: bytes) -> Any:
        if lease.m == BAD and lease.heir:
            return iter([HandoverReport(lease.fence, len(half), compute_sha256(half))])
        return bring(post, lease, half)

    def withheld(session: Session, words: Sequence[Message], *given: Any, **more: Any) -> Message:
        if not is_bad(session) or not any(isinstance(word, Deposit) for word in words):
            return exchange(session, words, *given, **more)
        session.send(*(word for word in words if not isinstance(word, Chunk | Deposit)))
        session.send(Fail(session.holding.fence, "I keep it"))
        raise VisitCancelled("given up")

    monkeypatch.setattr(PeerEndpoint, "hand_over", claimed)
    monkeypatch.setattr(Session, "exchange", withheld)


def test_a_half_that_is_kept_back_costs_the_visit_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make_direct_deployment(tmp_path, "M=3", "C=5", "R=3", policy=Policy("skip", strikes=0))
    lie(stage, monkeypatch)
    for m in stage.partition.clients:
        join_directly(stage, m, patience=5.0)
    stage.play()
    assert set(list_skips(stage)) == {(r, BAD) for r in range(3)}
    skipped = frozenset((r, m, 0) for r, m in list_skips(stage))
    expected = simulate(stage.spec, RunDirectory(tmp_path / "simulated"), skipped)
    assert (tmp_path / "model").read_bytes() == expected.model.read_bytes()
