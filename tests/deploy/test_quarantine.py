"""Does a client that misbehaves cost the others a bounded number of visits, and who releases it?"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splitrelay.algorithms.base import Step, Visit
from splitrelay.cli.main import run
from splitrelay.deploy import client_visit, evaluation_requests, remote_clients, remote_evaluator, visit_scheduler
from splitrelay.deploy.quarantine import RECORD, Quarantine, read_record, request_lift
from splitrelay.deploy.server_visit import Policy, VisitLease, get_stage
from splitrelay.errors import InputError, WorkError
from splitrelay.network import messages
from splitrelay.network.grpc_channel import VisitCancelled
from tests.support.bare_server import make_remote_clients, run_bare_server, step, wait_until
from tests.support.clock import Clock
from tests.support.deployment import (
    LocalDeployment,
    list_skips,
    read_final_weights,
    remove_times,
    simulate_run,
    simulate_with_skips,
    small_spec,
    watch_events,
)
from tests.support.sealed_deployments import make_peer_deployment

THREE = ("M=3", "C=5")
BAD = 1  # the client that misbehaves
LONG = (1000.0, 1000.0)  # seconds of quarantine: longer than the test


def misbehave(
    stage: LocalDeployment, monkeypatch: pytest.MonkeyPatch, how: str, times: float = float("inf")
) -> list[int]:
    """Client BAD misbehaves in its first visits; return the fences of those."""
    honest, fences = client_visit.RemoteServerHalf.step, list[int]()
    clock = Clock(monkeypatch, remote_clients, visit_scheduler)

    def be_silent(calls: client_visit.RemoteServerHalf) -> None:
        """Stay connected and make no step until the visit is taken back. Its time passes when the others are done."""
        pending = stage.serving.remote.scheduler.leases
        wait_until(lambda: set(pending) == {BAD} and pending[BAD].stage == get_stage(messages.Ready(0), 1))
        clock.advance(stage.offer.policy.step + 1)
        while True:
            message = calls.session.receive(300)
            if isinstance(message, messages.Cancel):
                raise VisitCancelled(message.why)

    def acting(calls: client_visit.RemoteServerHalf, k: int, h: Any, *words: Any, **more: Any) -> messages.Reply:
        if calls.lease.m == BAD and len({*fences, calls.fence}) <= times:
            fences.append(calls.fence)
            kind = how if how != "random" else ("silent", "fail", "huge")[len(set(fences)) % 3]
            if kind == "silent":
                be_silent(calls)
            if kind == "fail":
                raise client_visit.Diverged("my numbers overflowed")
            h = np.full_like(h, 3e38)
        return honest(calls, k, h, *words, **more)

    monkeypatch.setattr(client_visit.RemoteServerHalf, "step", acting)
    return fences


def play(stage: LocalDeployment) -> list[dict[str, Any]]:
    for m in stage.partition.clients:
        stage.join(m)
    return stage.play()


def rounds(stage: LocalDeployment, event: str, m: int = BAD) -> list[int]:
    return [found["round"] for found in stage.events(event) if found["client"] == m]


# A visit may be skipped


@pytest.mark.parametrize(("how", "words"), [("silent", ""), ("random", ""), ("silent", "algorithm=fedavg")])
def test_a_client_that_misbehaves_for_ever_gets_a_bounded_number_of_leases(
    how: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without quarantine it got one in each of the ten rounds, and each cost the patience."""
    spec = small_spec(tmp_path, *THREE, "R=10", *words.split())
    stage = LocalDeployment(spec, tmp_path, policy=Policy("skip", step=1000.0, strikes=2, probation=LONG))
    misbehave(stage, monkeypatch, how)
    play(stage)
    assert rounds(stage, "leased") == rounds(stage, "strike") == rounds(stage, "failed") == [0, 1]
    assert rounds(stage, "skipped") == list(range(10))
    assert [event["client"] for event in stage.events("quarantined")] == [BAD]
    for m in (0, 2):
        assert rounds(stage, "committed", m) == list(range(10))
    assert read_final_weights(stage) == simulate_with_skips(spec, stage, set(list_skips(stage)))


def test_zero_strikes_mean_no_quarantine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = LocalDeployment(
        small_spec(tmp_path, *THREE, "R=5"), tmp_path, policy=Policy("skip", strikes=0, probation=LONG)
    )
    misbehave(stage, monkeypatch, "fail")
    play(stage)
    assert rounds(stage, "leased") == list(range(5)) and not stage.events("strike")


def test_a_committed_visit_on_probation_ends_the_quarantine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = LocalDeployment(
        small_spec(tmp_path, *THREE, "R=5"), tmp_path, policy=Policy("skip", strikes=2, probation=(0.0, 0.0))
    )
    misbehave(stage, monkeypatch, "fail", times=3)
    play(stage)
    assert rounds(stage, "committed") == [3, 4]
    assert [event["by"] for event in stage.events("released")] == ["probation"]
    assert [event["strikes"] for event in stage.events("quarantined")] == [2, 3]
    assert read_final_weights(stage) == simulate_with_skips(stage.spec, stage, {(0, BAD), (1, BAD), (2, BAD)})


def test_where_nobody_else_is_here_a_client_in_quarantine_is_waited_for(tmp_path: Path) -> None:
    with run_bare_server() as here:
        policy = Policy("skip", strikes=1, probation=LONG)
        remote = make_remote_clients(here, policy)
        remote.scheduler.quarantine.strike(BAD, "it did nothing")
        here.joined(BAD)
        assert remote.scheduler.get_quarantine_reason(BAD) is None
        here.joined(0)
        assert remote.scheduler.get_quarantine_reason(BAD) is not None
        remote.scheduler.quarantine.strike(0, "it did nothing either")
        assert remote.scheduler.get_quarantine_reason(BAD) is None and remote.scheduler.get_quarantine_reason(0) is None


def test_a_client_that_is_never_here_when_it_is_asked_is_put_into_quarantine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes back after every lease that was waited out, which would cost a lease in every round."""
    policy = Policy("skip", lease=1000.0, strikes=2, probation=LONG)
    stage = LocalDeployment(small_spec(tmp_path, *THREE, "R=6"), tmp_path, policy=policy, quorum=2)
    Clock(monkeypatch, remote_clients, visit_scheduler).expire_lease(stage, BAD, times=2)

    def happened(event: str, facts: dict[str, Any]) -> None:
        if event == "skipped" and facts["client"] == BAD:
            stage.serving.remote.scheduler.absent.clear()  # as if it had come and gone

    watch_events(stage, happened)
    for m in (0, 2):
        stage.join(m)
    stage.play()
    assert rounds(stage, "strike") == [0, 1] and rounds(stage, "skipped") == list(range(6))
    assert len(stage.events("quarantined")) == 1


def test_an_evaluator_that_never_answers_is_asked_a_bounded_number_of_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, asked = client_visit.VisitRunner.answer_request, list[int]()
    clock = Clock(monkeypatch, remote_evaluator, evaluation_requests)

    def silent(visitor: client_visit.VisitRunner, session: Any, word: messages.EvaluationRequest) -> None:
        if word.top_bytes:  # the model at the end
            look(visitor, session, word)
            return
        asked.append(word.fence)
        client_visit.receive_half(session, word.bytes, word.sha256)
        clock.advance(1001.0)
        while True:
            if isinstance(session.receive(300), messages.Cancel):
                raise VisitCancelled("enough")

    monkeypatch.setattr(client_visit.VisitRunner, "answer_request", silent)
    stage = make_peer_deployment(
        tmp_path,
        *THREE,
        "R=6",
        "evaluator=1",
        policy=Policy("skip", lease=1000.0, step=10_000.0, strikes=2, probation=LONG),
    )
    stage.play()
    assert len(asked) == 2 == len(stage.events("strike"))
    assert len(stage.events("unseen")) == 7  # one for each round, and one before the first


# No visit may be skipped


def lifting(stage: LocalDeployment) -> None:
    """The operator releases client BAD when it is reported that the run waits for it."""

    def happened(event: str, facts: dict[str, Any]) -> None:
        if event == "stalled" and facts["kind"] == "quarantined" and facts["client"] == BAD:
            assert leave("quarantine", str(stage.offer.out), "--lift", str(BAD)) == 0

    watch_events(stage, happened)


def leave(*words: str) -> int:
    with pytest.raises(SystemExit) as leaving:
        run(words)
    assert isinstance(leaving.value.code, int)
    return leaving.value.code


def test_with_wait_the_run_waits_for_the_operator_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = small_spec(tmp_path, *THREE)
    expected = simulate_run(spec, tmp_path / "simulated")
    stage = LocalDeployment(spec, tmp_path, policy=Policy("wait", strikes=1, probation=LONG, stalled=0.0))
    lifting(stage)
    misbehave(stage, monkeypatch, "fail", times=1)
    rows = play(stage)
    assert any("--lift 1" in text for text in stage.said)
    assert [event["by"] for event in stage.events("released")] == ["operator"]
    assert not stage.events("skipped")
    assert stage.serving.directory.model.read_bytes() == expected.model.read_bytes()
    assert remove_times(rows) == remove_times(expected.read_rows())


def test_with_retry_the_run_stops_until_the_operator_has_released_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = small_spec(tmp_path, *THREE)
    expected = simulate_run(spec, tmp_path / "simulated")
    policy = Policy("retry", strikes=1, probation=LONG)
    for number in range(2):  # also after a restart
        stage = LocalDeployment(spec, tmp_path, policy=policy)
        if number == 0:
            misbehave(stage, monkeypatch, "fail", times=1)
        with pytest.raises(WorkError) as stopped:
            for m in stage.partition.clients:
                stage.join(m)
            stage.play()
        assert stopped.value.hint is not None and "--lift 1" in stopped.value.hint
        assert stopped.value.exit_code == 1 and len(stage.events("quarantined")) == 1
    assert leave("quarantine", str(tmp_path / "run"), "--lift", str(BAD)) == 0
    last = LocalDeployment(spec, tmp_path, policy=policy)
    play(last)
    assert last.serving.directory.model.read_bytes() == expected.model.read_bytes()
    assert not list((tmp_path / "run" / "relay").glob("lift-*"))


# The rules, without a clock


def nothing(*_: Any, **__: Any) -> None:
    pass


def test_each_quarantine_in_a_row_is_twice_as_long() -> None:
    found = list[float]()

    def note(event: str, **facts: Any) -> None:
        if event == "quarantined":
            found.append(facts["probation_in"])

    quarantine = Quarantine(Policy("skip", strikes=2, probation=(60.0, 200.0)), note)
    for _ in range(5):
        quarantine.strike(BAD, "no")
    assert found == [60.0, 120.0, 200.0, 200.0]
    quarantine.commit(BAD)
    assert not quarantine.is_confined(BAD) and quarantine.clients[BAD].strikes == 1
    quarantine.strike(BAD, "no")
    assert found[4:] == [200.0] and quarantine.is_held(BAD)


def test_committed_visits_in_a_row_forgive_a_strike() -> None:
    quarantine = Quarantine(Policy(strikes=3, forgive=2), nothing)

    def play(moves: str) -> int:
        for move in moves:
            quarantine.strike(BAD, "no") if move == "f" else quarantine.commit(BAD)
        return quarantine.clients[BAD].strikes if BAD in quarantine.clients else 0

    assert play("fc") == 1
    assert play("fc") == 2  # every second visit fails: nothing is forgiven
    assert play("c") == 1
    assert play("cc") == 0


def test_a_damaged_file_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    quarantine = Quarantine(Policy(strikes=1), nothing, folder=tmp_path)
    quarantine.strike(BAD, "no \x1b[31m")
    assert read_record(tmp_path) == quarantine.clients and "\x1b" not in read_record(tmp_path)[BAD].why
    for text in ("{", "[]", '{"1": {}}', '{"1": 3}'):
        (tmp_path / RECORD).write_text(text)
        with pytest.raises(InputError) as damaged:
            read_record(tmp_path)
        assert damaged.value.hint


def test_the_operators_files_are_read_once_a_second(tmp_path: Path) -> None:
    quarantine = Quarantine(Policy(strikes=1), nothing, folder=tmp_path)
    quarantine.strike(BAD, "no")
    quarantine.check_lifts(10.0)
    request_lift(tmp_path, BAD)
    quarantine.check_lifts(10.5)
    assert quarantine.is_held(BAD)
    quarantine.check_lifts(11.0)
    assert not quarantine.is_held(BAD) and read_record(tmp_path) == {}


def test_the_command_lists_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert leave("quarantine", str(tmp_path)) == 2  # no run
    (tmp_path / "relay").mkdir()
    Quarantine(Policy(strikes=1), nothing, folder=tmp_path / "relay").strike(BAD, "no")
    assert leave("quarantine", str(tmp_path), "--lift", "0") == 2
    capsys.readouterr()
    assert leave("quarantine", str(tmp_path), "--format", "json") == 0
    (row,) = json.loads(capsys.readouterr().out)["clients"]
    assert (row["client"], row["strikes"], row["in_quarantine"]) == (BAD, 1, "yes")


# The deadline of a visit


class Quiet:
    """A journal that nobody reads, and layers that nobody uses."""

    whole = False

    def __getattr__(self, name: str) -> Callable[..., None]:
        return nothing


@pytest.mark.parametrize(("visit", "deadline"), [(20.0, 20.0), (None, 7 * 10.0)])
def test_a_visit_that_always_makes_some_progress_ends_at_its_deadline(visit: float | None, deadline: float) -> None:
    with run_bare_server() as here:
        quiet: Any = Quiet()
        remote = make_remote_clients(here, Policy("skip", step=10.0, visit=visit), server_visits=quiet)
        remote.scheduler.leases[0] = pending = VisitLease(0, Visit(0, 0, 0, 0.0, Step(0.1), 5), 0.0)
        pending.start(quiet, 1, 1, 0.0)
        for k, now in enumerate(np.linspace(1.0, deadline, 5)):
            pending.record_message(step(1, k), float(now))
            pending.progress_at = float(now)
            remote.scheduler.check_timeouts(float(now))
            assert 0 in remote.scheduler.leases
        remote.scheduler.check_timeouts(deadline + 1.0)
        assert 0 not in remote.scheduler.leases
        assert remote.scheduler.quarantine.clients[0].strikes == 1
