"""Whatever happens to links, clients and server: no step counts twice, every event is kept, the bits are the same."""

from pathlib import Path
from typing import Any

import pytest

from splitrelay.algorithms.base import Visit
from splitrelay.chaos.proxies import TcpProxy
from splitrelay.data import load
from splitrelay.deploy.server_visit import Policy
from splitrelay.engine import Flaky
from splitrelay.errors import Diverged, WorkError
from splitrelay.runs.trainer import Trainer
from tests.support.deployment import Stage, remove_times, simulated, small_spec


def behind_proxy(stage: Stage, proxies: list[TcpProxy]) -> Any:
    def address() -> str:
        proxies.append(TcpProxy(stage.serving.port))
        proxies[-1].cut_at = 9000  # in the middle of a visit
        return f"127.0.0.1:{proxies[-1].port}"

    return address


@pytest.mark.parametrize("words", ["K=20", "K=20 algorithm=fedavg", "placement=whole algorithm=fedavg"])
def test_a_lost_link_within_the_lease_changes_nothing(words: str, tmp_path: Path) -> None:
    spec = small_spec(tmp_path, *words.split())
    expected = simulated(spec, tmp_path / "simulated")
    stage, proxies = Stage(spec, tmp_path), list[TcpProxy]()
    for m in stage.partition.clients:
        stage.join(m, address=behind_proxy(stage, proxies))
    rows = stage.play()
    assert sum(proxy.cuts for proxy in proxies) >= len(stage.partition.clients)
    assert stage.events("lost")
    assert stage.serving.directory.model.read_bytes() == expected.model.read_bytes()
    assert remove_times(rows) == remove_times(expected.read_rows())


def test_a_visit_goes_on_at_the_step_where_the_link_was_lost(tmp_path: Path) -> None:
    stage, proxies = Stage(small_spec(tmp_path, "K=20", "R=1"), tmp_path), list[TcpProxy]()
    for m in stage.partition.clients:
        stage.join(m, address=behind_proxy(stage, proxies))
    stage.play()
    assert any(event["step"] > 0 for event in stage.events("resumed"))
    assert len(stage.events("committed")) == len(stage.partition.clients)


@pytest.mark.parametrize("words", ["", "algorithm=fedavg"])
def test_a_restarted_server_goes_on_from_the_last_committed_visit(words: str, tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "R=3", *words.split())
    expected = simulated(spec, tmp_path / "simulated")
    first = Stage(spec, tmp_path)
    stopped_after(first, 6)
    for m in first.partition.clients:
        first.join(m, patience=0.5)
    with pytest.raises(KeyboardInterrupt):
        first.play()
    second = Stage(spec, tmp_path)
    for m in second.partition.clients:
        second.join(m)
    rows = second.play()
    committed = [(event["round"], event["client"]) for event in second.events("committed")]
    assert len(set(committed)) == len(committed) == 3 * len(second.partition.clients)
    fences = [event["fence"] for event in second.events("leased")]
    assert fences == sorted(set(fences))
    assert remove_times(rows) == remove_times(expected.read_rows())
    assert second.serving.directory.model.read_bytes() == expected.model.read_bytes()


def stopped_after(stage: Stage, number: int) -> None:
    """The server is told to stop when its record shows so many commits."""

    def watch(port: int) -> None:
        stage.listening.set()
        note = stage.serving.journal.note

        def counted(event: str, **facts: Any) -> None:
            note(event, **facts)
            if len(stage.events("committed")) >= number:
                stage.stop.set()

        stage.serving.journal.note = counted  # type: ignore[method-assign]

    stage.serving.listening = watch


def skipping(spec: Any, stage: Stage, skipped: set[tuple[int, int]]) -> bytes:
    """The simulation that leaves the recorded visits out."""
    learning = Trainer(spec, load(spec.data.name), stage.partition)

    def fails(visit: Visit[Any]) -> bool:
        return (visit.r, visit.m) in skipped

    learning.clients.clients = Flaky(learning.clients.clients, fails)
    *_, (_, state) = learning.run(spec.R, overlap=False)
    return bytes(learning.algorithm.model(state).numpy().tobytes())


@pytest.mark.parametrize("words", ["", "algorithm=fedavg"])
def test_a_client_that_stays_away_is_skipped_and_recorded(words: str, tmp_path: Path) -> None:
    spec = small_spec(tmp_path, *words.split())
    stage = Stage(spec, tmp_path, policy=Policy("skip", lease=0.2), quorum=3)
    for m in stage.partition.clients[:3]:
        stage.join(m)
    stage.play()
    skipped = {(event["round"], event["client"]) for event in stage.events("skipped")}
    assert skipped == {(0, 3), (1, 3)}
    found = stage.serving.directory.checkpoints.load_newest(load_x(stage), at_most=spec.R)
    assert found is not None and found[1].numpy().tobytes() == skipping(spec, stage, skipped)


def load_x(stage: Stage) -> Any:
    return Trainer(stage.spec, load(stage.spec.data.name), stage.partition).x0()


def test_after_some_leases_without_the_client_the_run_stops(tmp_path: Path) -> None:
    stage = Stage(small_spec(tmp_path), tmp_path, policy=Policy("retry", lease=0.1, retries=2), quorum=3)
    for m in stage.partition.clients[:3]:
        stage.join(m, patience=0.5)
    with pytest.raises(WorkError, match="client 3 stays away"):
        stage.play()


def test_numbers_that_overflow_stop_the_run_with_round_and_client(tmp_path: Path) -> None:
    stage = Stage(small_spec(tmp_path, "eta=1e30"), tmp_path)
    for m in stage.partition.clients:
        stage.join(m, patience=0.5)
    with pytest.raises(Diverged, match=r"client \d.* in round 0"):
        stage.play()
