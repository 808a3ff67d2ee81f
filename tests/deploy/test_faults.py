"""Faults of connections, clients and server: no step counts twice, events are kept, the bits do not change."""

from pathlib import Path
from typing import Any

import pytest

from splitrelay.chaos.proxies import TcpProxy
from splitrelay.deploy.server_visit import Policy
from splitrelay.errors import Diverged, WorkError
from tests.support.deployment import (
    LocalDeployment,
    draw_x0,
    remove_times,
    simulate_run,
    simulate_with_skips,
    small_spec,
    stop_after_commits,
)
from tests.support.error_fields import expect_error


def behind_proxy(stage: LocalDeployment, proxies: list[TcpProxy]) -> Any:
    def address() -> str:
        proxies.append(TcpProxy(stage.serving.port))
        proxies[-1].cut_at = 9000  # in the middle of a visit
        return f"127.0.0.1:{proxies[-1].port}"

    return address


@pytest.mark.parametrize("words", ["K=20", "K=20 algorithm=fedavg", "placement=whole algorithm=fedavg"])
def test_a_lost_link_within_the_lease_changes_nothing(words: str, tmp_path: Path) -> None:
    spec = small_spec(tmp_path, *words.split())
    expected = simulate_run(spec, tmp_path / "simulated")
    stage, proxies = LocalDeployment(spec, tmp_path), list[TcpProxy]()
    for m in stage.partition.clients:
        stage.join(m, address=behind_proxy(stage, proxies))
    rows = stage.play()
    assert sum(proxy.cuts for proxy in proxies) >= len(stage.partition.clients)
    assert stage.events("lost")
    assert stage.serving.directory.model.read_bytes() == expected.model.read_bytes()
    assert remove_times(rows) == remove_times(expected.read_rows())


def test_a_visit_goes_on_at_the_step_where_the_link_was_lost(tmp_path: Path) -> None:
    stage, proxies = LocalDeployment(small_spec(tmp_path, "K=20", "R=1"), tmp_path), list[TcpProxy]()
    for m in stage.partition.clients:
        stage.join(m, address=behind_proxy(stage, proxies))
    stage.play()
    assert any(event["step"] > 0 for event in stage.events("resumed"))
    assert len(stage.events("committed")) == len(stage.partition.clients)


@pytest.mark.parametrize("words", ["", "algorithm=fedavg"])
def test_a_restarted_server_goes_on_from_the_last_committed_visit(words: str, tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "R=3", *words.split())
    expected = simulate_run(spec, tmp_path / "simulated")
    first = LocalDeployment(spec, tmp_path)
    stop_after_commits(first, 6)
    for m in first.partition.clients:
        first.join(m)
    with pytest.raises(KeyboardInterrupt):
        first.play()
    second = LocalDeployment(spec, tmp_path)
    for m in second.partition.clients:
        second.join(m)
    rows = second.play()
    committed = [(event["round"], event["client"]) for event in second.events("committed")]
    assert len(set(committed)) == len(committed) == 3 * len(second.partition.clients)
    fences = [event["fence"] for event in second.events("leased")]
    assert fences == sorted(set(fences))
    assert remove_times(rows) == remove_times(expected.read_rows())
    assert second.serving.directory.model.read_bytes() == expected.model.read_bytes()


@pytest.mark.parametrize("words", ["", "algorithm=fedavg"])
def test_a_client_that_stays_away_is_skipped_and_recorded(words: str, tmp_path: Path) -> None:
    spec = small_spec(tmp_path, *words.split())
    stage = LocalDeployment(spec, tmp_path, policy=Policy("skip", lease=0.2), quorum=3)
    for m in stage.partition.clients[:3]:
        stage.join(m)
    stage.play()
    skipped = {(event["round"], event["client"]) for event in stage.events("skipped")}
    assert skipped == {(0, 3), (1, 3)}
    found = stage.serving.directory.checkpoints.load_newest(draw_x0(stage), at_most=spec.R)
    assert found is not None and found[1].numpy().tobytes() == simulate_with_skips(spec, stage, skipped)


def test_after_some_leases_without_the_client_the_run_stops(tmp_path: Path) -> None:
    stage = LocalDeployment(small_spec(tmp_path), tmp_path, policy=Policy("retry", lease=0.1, retries=2), quorum=3)
    for m in stage.partition.clients[:3]:
        stage.join(m)
    with expect_error(WorkError, what=("client 3", "round 0"), hint=True):
        stage.play()


def test_numbers_that_overflow_stop_the_run_with_round_and_client(tmp_path: Path) -> None:
    stage = LocalDeployment(small_spec(tmp_path, "eta=1e30"), tmp_path)
    for m in stage.partition.clients:
        stage.join(m)
    with expect_error(Diverged, what=("round 0", "client 2"), value="eta=1e+30"):
        stage.play()
