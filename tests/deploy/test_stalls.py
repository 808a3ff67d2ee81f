"""Does a run that waits say for whom, since when, why, and what to do?"""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from splitrelay.cli.main import run
from splitrelay.cli.status import STALLED, build_table
from splitrelay.deploy import client_visit
from splitrelay.deploy.evaluation_requests import PartyRequest
from splitrelay.deploy.fed_server import FedServer
from splitrelay.deploy.server_visit import Policy
from splitrelay.deploy.stalls import MANY, StallReporter, Wait
from splitrelay.deploy.status_client import ask_status
from splitrelay.errors import WorkError
from splitrelay.network import messages
from splitrelay.network.server_connection import EVALUATOR_NUMBER, FED_SERVER_NUMBER
from splitrelay.security.encryption import SecretUnavailable
from tests.support.bare_server import make_remote_clients, run_bare_server, wait_until
from tests.support.clock import Clock
from tests.support.deployment import LocalDeployment, small_spec, watch_events
from tests.support.sealed_deployments import join_all, make_fed_deployment, make_peer_deployment

LAST = 2  # the client, of three, for whom the run waits
THREE = ("M=3", "C=5", "order=fixed")
AT_ONCE = Policy(stalled=0.0)
LATER = Policy(stalled=1000.0)


class Seen:
    """What `status` says when the run is first reported to wait for client m in this way; then `act` happens."""

    def __init__(self, stage: LocalDeployment, m: int, kind: str, act: Callable[[], object]) -> None:
        self.stage, self.m, self.kind, self.act = stage, m, kind, act
        self.report: dict[str, Any] = {}
        self.code: object = None
        self.reported = threading.Event()
        watch_events(stage, self.happened)

    def happened(self, event: str, facts: dict[str, Any]) -> None:
        if event != "stalled" or (facts["client"], facts["kind"]) != (self.m, self.kind) or self.report:
            return
        self.report = ask_status(f"127.0.0.1:{self.stage.serving.port}", None, insecure=True)
        with pytest.raises(SystemExit) as leaving:
            run(["status", f"127.0.0.1:{self.stage.serving.port}", "--insecure"])
        self.code = leaving.value.code
        self.reported.set()
        self.act()

    def check(self) -> dict[str, Any]:
        """Return what `status` said; log, events, table and exit code agree with it."""
        assert self.report["stalled"] and self.code == STALLED
        (wait,) = [one for one in self.report["waiting_for"] if (one["client"], one["kind"]) == (self.m, self.kind)]
        assert wait["stalled"] and wait["since"] >= 0 and wait["why"] and wait["remedy"]
        assert any(wait["who"] in note and wait["remedy"] in note for note in build_table(self.report).notes)
        events = [(one["kind"], one["who"], one["why"], one["hint"]) for one in self.stage.events("stalled")]
        assert (self.kind, wait["who"], wait["why"], wait["remedy"]) in events
        assert any(wait["who"] in text and wait["remedy"] in text for text in self.stage.said)
        assert json.loads(self.stage.serving.report())["waiting_for"] == []  # at the end
        return wait


def test_a_client_that_has_not_joined_before_the_first_round(tmp_path: Path) -> None:
    stage = LocalDeployment(small_spec(tmp_path, *THREE), tmp_path, policy=AT_ONCE)
    seen = Seen(stage, LAST, "never-joined", lambda: stage.join(LAST))
    for m in (0, 1):
        stage.join(m)
    stage.play()
    assert "--without 2" in seen.check()["remedy"]
    assert (LAST, "never-joined") in [(one["client"], one["kind"]) for one in stage.events("stall-over")]


def test_a_client_that_is_away_when_it_is_asked(tmp_path: Path) -> None:
    stage = LocalDeployment(small_spec(tmp_path, *THREE), tmp_path, policy=AT_ONCE)
    seen = Seen(stage, LAST, "away", lambda: stage.join(LAST))
    watch = seen.happened

    def leave(event: str, facts: dict[str, Any]) -> None:
        if event == "committed" and (facts["round"], facts["client"]) == (0, LAST):
            stage.clients[LAST].stop.set()
            wait_until(lambda: LAST not in stage.serving.network.connections.get_clients())
        watch(event, facts)

    watch_events(stage, leave)
    for m in stage.partition.clients:
        stage.join(m)
    stage.play()
    assert "--away skip" in seen.check()["remedy"]


def test_a_client_that_joins_after_the_first_round_has_begun(tmp_path: Path) -> None:
    stage = LocalDeployment(small_spec(tmp_path, *THREE), tmp_path, policy=AT_ONCE, quorum=2)
    seen = Seen(stage, LAST, "never-joined", lambda: None)
    watch = seen.happened

    def late(event: str, facts: dict[str, Any]) -> None:
        if stage.serving.phase == "training":
            watch(event, facts)
            if seen.report and LAST not in stage.clients:
                stage.join(LAST)
                wait_until(lambda: LAST in stage.clients)

    watch_events(stage, late)
    for m in (0, 1):
        stage.join(m)
    stage.play()
    assert seen.check()["who"] == "client 2"


def test_a_client_that_is_connected_and_makes_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = LocalDeployment(small_spec(tmp_path, *THREE, "R=1"), tmp_path, policy=AT_ONCE)
    seen, honest = Seen(stage, LAST, "no-step", lambda: None), client_visit.RemoteServerHalf.step

    def waiting(calls: client_visit.RemoteServerHalf, *given: Any, **more: Any) -> messages.Reply:
        assert calls.lease.m != LAST or seen.reported.wait(300)
        return honest(calls, *given, **more)

    monkeypatch.setattr(client_visit.RemoteServerHalf, "step", waiting)
    for m in stage.partition.clients:
        stage.join(m)
    stage.play()
    seen.check()


def test_a_client_that_cannot_open_the_half_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = LocalDeployment(small_spec(tmp_path, *THREE, "R=1"), tmp_path, policy=AT_ONCE)
    seen, honest = Seen(stage, LAST, "unable", lambda: None), client_visit.VisitRunner.visit

    def lacking(visitor: client_visit.VisitRunner, session: Any, lease: messages.Lease) -> None:
        if lease.m == LAST and not seen.reported.is_set():
            client_visit.receive_half(session, lease.bytes, lease.sha256)
            raise SecretUnavailable("no secret of epoch 2 here")
        honest(visitor, session, lease)

    monkeypatch.setattr(client_visit.VisitRunner, "visit", lacking)
    for m in stage.partition.clients:
        stage.join(m)
    stage.play()
    assert "no secret of epoch 2" in seen.check()["why"]


class Unasked(Seen):
    """As Seen; `status` is not asked over the wire, where it would need keys."""

    def happened(self, event: str, facts: dict[str, Any]) -> None:
        if event == "stalled" and (facts["client"], facts["kind"]) == (self.m, self.kind) and not self.report:
            self.report, self.code = json.loads(self.stage.serving.report()), STALLED
            self.reported.set()
            self.act()


def test_an_evaluator_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = make_peer_deployment(tmp_path, *THREE, "R=1", f"evaluator={LAST}", policy=AT_ONCE)
    seen, look = Unasked(stage, LAST, "no-answer", lambda: None), client_visit.VisitRunner.answer_request

    def waiting(*given: Any) -> None:
        assert seen.reported.wait(300)
        look(*given)

    monkeypatch.setattr(client_visit.VisitRunner, "answer_request", waiting)
    stage.play()
    seen.check()


def test_a_fed_server_that_is_not_here(tmp_path: Path) -> None:
    stage = make_fed_deployment(tmp_path, *THREE, "algorithm=fedavg", "R=1", policy=AT_ONCE)
    join, missing = stage.join, list[Callable[[], None]]()
    stage.join = lambda m, **wish: (
        missing.append(lambda: join(m, **wish)) if m == FED_SERVER_NUMBER else join(m, **wish)
    )  # type: ignore[method-assign]
    seen = Unasked(stage, FED_SERVER_NUMBER, "never-joined", lambda: missing[0]())
    join_all(stage)
    stage.play()
    assert seen.check()["who"] == "the fed server"


def test_a_fed_server_that_cannot_average_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = make_fed_deployment(tmp_path, *THREE, "algorithm=fedavg", "R=1", policy=AT_ONCE)
    seen, honest = Unasked(stage, FED_SERVER_NUMBER, "unable", lambda: None), FedServer.combine

    def lacking(fed: FedServer, *given: Any) -> Any:
        if not seen.reported.is_set():
            raise SecretUnavailable("no secret of epoch 2 here")
        return honest(fed, *given)

    monkeypatch.setattr(FedServer, "combine", lacking)
    join_all(stage)
    stage.play()
    wait = seen.check()
    assert wait["who"] == "the fed server" and "no secret of epoch 2" in wait["why"]


@pytest.mark.parametrize("away", ["skip", "retry"])
def test_a_fed_server_that_never_can_stops_the_run(away: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run cannot go on without it. Before, a run that may skip visits waited for ever."""
    policy = Policy(away, lease=1000.0, step=1e6, retries=1, stalled=0.0)
    stage = make_fed_deployment(tmp_path, *THREE, "algorithm=fedavg", "R=1", policy=policy)

    def lacking(fed: FedServer, *_: Any) -> Any:
        raise SecretUnavailable("no secret of epoch 2 here")

    monkeypatch.setattr(FedServer, "combine", lacking)
    Clock(monkeypatch).expire_inability(stage, times=policy.retries + 1)
    join_all(stage)
    with pytest.raises(WorkError) as found:
        stage.play()
    assert "the fed server" in found.value.what and "no secret of epoch 2" in str(found.value.value)
    assert not stage.events("strike")


def test_a_run_that_goes_on_is_not_stalled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stage, codes = LocalDeployment(small_spec(tmp_path, *THREE), tmp_path, policy=LATER), list[object]()

    def happened(event: str, facts: dict[str, Any]) -> None:
        if event == "committed":
            with pytest.raises(SystemExit) as leaving:
                run(["status", f"127.0.0.1:{stage.serving.port}", "--insecure", "--format", "json"])
            codes.append(leaving.value.code)

    watch_events(stage, happened)
    for m in stage.partition.clients:
        stage.join(m)
    stage.play()
    assert codes == [0] * 6 and not stage.events("stalled")


# The rules, without a clock


def test_a_question_says_what_it_waits_for() -> None:
    with run_bare_server(has_evaluator=True) as here:
        remote = make_remote_clients(here, AT_ONCE)
        question = PartyRequest(remote, EVALUATOR_NUMBER, lambda connection: 1)

        def kind() -> str:
            wait = question.wait(question.answered_at + 1.0)
            assert wait is not None and wait.who == "the evaluator"
            return wait.kind

        assert kind() == "never-joined"
        remote.scheduler.seen.add(EVALUATOR_NUMBER)
        assert kind() == "away"
        here.joined(EVALUATOR_NUMBER)
        assert kind() == "no-answer"
        question.unable, question.why = True, "no secret"
        assert kind() == "unable"
        question.unable, question.failures = False, 1
        assert kind() == "failed"


def test_a_wait_is_reported_again_when_it_has_lasted_twice_as_long() -> None:
    noted, found = list[str](), [Wait(1, "away", 0.0, "it is away", "Bring it back.")]
    reporter = StallReporter(lambda event, **facts: noted.append(event), noted.append, after=10.0)
    times = list[float]()
    for now in range(100):
        before = noted.count("stalled")
        reporter.check(float(now), lambda now: found)
        times += [float(now)] * (noted.count("stalled") - before)
    assert times == [10.0, 20.0, 40.0, 80.0]
    reporter.check(101.0, lambda now: [])
    assert noted[-1] == "stall-over" and noted.count("stall-over") == 1


def test_thousands_of_waits_do_not_fill_the_record() -> None:
    noted = list[dict[str, Any]]()
    waits = [Wait(m, "away", 0.0, "it is away", "Bring it back.") for m in range(5000)]
    reporter = StallReporter(lambda event, **facts: noted.append(facts), lambda text: None, after=10.0)
    reporter.check(11.0, lambda now: waits)
    assert len(noted) == MANY and {facts["more"] for facts in noted} == {5000 - MANY}
