"""Where visits may be skipped: is anybody waited for twice in vain, and does who comes back take part again?"""

from pathlib import Path
from typing import Any

import pytest

from splitrelay.deploy import remote_clients, visit_scheduler
from splitrelay.deploy.authorization import Authorizer
from splitrelay.deploy.server_visit import Policy
from splitrelay.network.messages import Accept
from splitrelay.network.shared_event_loop import ClientConnected
from tests.support.bare_server import make_remote_clients, run_bare_server, wait_until
from tests.support.clock import Clock
from tests.support.deployment import (
    LocalDeployment,
    list_skips,
    read_final_weights,
    simulate_with_skips,
    small_spec,
    watch_events,
)

FOREVER = 1000.0  # seconds: a client that is waited for so long fails the test


@pytest.mark.parametrize("words", ["", "algorithm=fedavg"])
def test_who_was_waited_for_in_vain_is_not_waited_for_again(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = LocalDeployment(
        small_spec(tmp_path, "R=3", *words.split()), tmp_path, policy=Policy("skip", lease=FOREVER), quorum=3
    )
    Clock(monkeypatch, remote_clients, visit_scheduler).expire_lease(stage, 3)
    for m in stage.partition.clients[:3]:
        stage.join(m)
    stage.play()
    again = "client 3 has not come back"
    assert list_skips(stage) == {(0, 3): f"client 3 was away for {FOREVER:g} seconds", (1, 3): again, (2, 3): again}
    assert read_final_weights(stage) == simulate_with_skips(stage.spec, stage, set(list_skips(stage)))


def test_who_comes_after_all_takes_part_from_then_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = LocalDeployment(small_spec(tmp_path, "R=4"), tmp_path, policy=Policy("skip", lease=FOREVER), quorum=3)
    Clock(monkeypatch, remote_clients, visit_scheduler).expire_lease(stage, 3)

    def happened(event: str, facts: dict[str, Any]) -> None:
        if event == "skipped" and facts["round"] == 1:
            stage.join(3)
            wait_until(lambda: 3 in stage.serving.network.connections.get_clients())

    watch_events(stage, happened)
    for m in stage.partition.clients[:3]:
        stage.join(m)
    stage.play()
    assert set(list_skips(stage)) == {(0, 3), (1, 3)}
    assert {event["round"] for event in stage.events("committed") if event["client"] == 3} == {2, 3}
    assert read_final_weights(stage) == simulate_with_skips(stage.spec, stage, {(0, 3), (1, 3)})


def test_who_is_revoked_is_skipped_at_once(tmp_path: Path) -> None:
    revoked = set[int]()
    authorizer = Authorizer(
        lambda _, hello: "revoked" if hello.client in revoked else None, lambda _: None, lambda _: None
    )
    stage = LocalDeployment(
        small_spec(tmp_path, "R=3"), tmp_path, policy=Policy("skip", lease=FOREVER), admit=authorizer
    )

    def happened(event: str, facts: dict[str, Any]) -> None:
        if event == "committed" and facts["client"] == 2:
            revoked.add(2)

    watch_events(stage, happened)
    for m in stage.partition.clients:
        stage.join(m)
    stage.play()
    assert list_skips(stage) == {(1, 2): "revoked", (2, 2): "revoked"}
    assert read_final_weights(stage) == simulate_with_skips(stage.spec, stage, set(list_skips(stage)))


def test_a_server_that_no_client_reaches_skips_nobody_at_once() -> None:
    """Else a cable that was pulled at the server would be the end of all rounds."""
    with run_bare_server() as here:
        remote = make_remote_clients(here, Policy("skip"))
        remote.scheduler.absent[3] = "away"
        assert remote.scheduler.get_absence_reason(3) is None
        here.joined(0)
        assert remote.scheduler.get_absence_reason(3) == "away"
        here.joined(3)
        assert remote.scheduler.get_absence_reason(3) is None


def test_who_came_back_and_leaves_again_is_waited_for_once_more() -> None:
    with run_bare_server() as here:
        remote = make_remote_clients(here, Policy("skip"))
        remote.scheduler.absent[3] = "away"
        here.joined(0)
        remote.handle_event(ClientConnected(3, 2, Accept("h", "fast", "cpu", 5), resumed=False))
        assert remote.scheduler.get_absence_reason(3) is None


@pytest.mark.parametrize("away", ["wait", "retry"])
def test_without_leave_to_skip_everybody_is_waited_for(away: str) -> None:
    with run_bare_server() as here:
        remote = make_remote_clients(here, Policy(away))
        remote.scheduler.absent[3] = "away"
        here.joined(0)
        assert remote.scheduler.get_absence_reason(3) is None
