"""Numbers that clients and the evaluator report: out of range, they are failures of their sender only."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from splitrelay.algorithms.base import Cost, Done, Step, Visit
from splitrelay.deploy import client_program, client_visit
from splitrelay.deploy.backend import ClientContext
from splitrelay.deploy.events import list_skipped_visits
from splitrelay.deploy.journal import Journal
from splitrelay.deploy.rehearsal import read_untimed_rows
from splitrelay.deploy.remote_evaluator import EvaluatorClient, find_score_error
from splitrelay.deploy.server_visit import Policy
from splitrelay.errors import InputError, WorkError
from splitrelay.network.messages import Score
from tests.support.deployment import LocalDeployment, small_spec
from tests.support.sealed_deployments import join_directly, make_direct_deployment, simulate_deployment

EVIL = 1  # the client that reports what it likes
HUGE = 1.7e308  # finite, but twice as much is not


@pytest.mark.parametrize("loss", [HUGE, -HUGE, 1e39])
def test_a_loss_out_of_range_fails_the_visit_of_its_client(
    loss: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = small_spec(tmp_path, "M=3", "C=5", "R=3", "placement=whole", "algorithm=fedavg", "every=3")
    stage = LocalDeployment(spec, tmp_path, policy=Policy("skip"))
    build = client_visit.build_client_engine

    def engine_of(outfit: ClientContext) -> Any:
        engine = build(outfit)
        whole = engine.train_whole
        if outfit.m == EVIL:
            engine.train_whole = lambda visit: (whole(visit)[0], loss)  # type: ignore[method-assign]
        return engine

    monkeypatch.setattr(client_visit, "build_client_engine", engine_of)
    for m in stage.partition.clients:
        stage.join(m)
    rows = stage.play()
    assert list_skipped_visits(stage.events("skipped")) == {(r, EVIL, 0) for r in range(spec.R)}
    assert {event["client"] for event in stage.events("strike")} == {EVIL}
    assert all(math.isfinite(row["train_loss"]) for row in rows[1:])
    json.dumps(rows, allow_nan=False)


@pytest.mark.parametrize("words", ["clip=1", "clip=1 engine=reference", "clip=1 momentum=0.5"])
def test_a_huge_norm_does_not_end_the_server(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = LocalDeployment(small_spec(tmp_path, "M=3", "C=5", "R=3", *words.split()), tmp_path, policy=Policy("skip"))

    class Loud(client_program.Session):
        def exchange(self, messages: Any, *how: Any, **more: Any) -> Any:
            is_evil = self.client == EVIL
            changed = [
                replace(message, norm2=HUGE) if is_evil and hasattr(message, "norm2") else message
                for message in messages
            ]
            return super().exchange(changed, *how, **more)

    monkeypatch.setattr(client_program, "Session", Loud)
    for m in stage.partition.clients:
        stage.join(m)
    rows = stage.play()
    assert {event["client"] for event in stage.events("failed")} <= {EVIL}
    json.dumps(rows, allow_nan=False)


WRONG = [
    Score(0, HUGE, 0.5),
    Score(0, math.nan, 0.5),
    Score(0, -1.0, 0.5),
    Score(0, 1.0, 7.0),
    Score(0, 1.0, -0.1),
    Score(0, 1.0, math.nan),
    Score(0, 1.0, 0.5, (2.0,) * 10),
    Score(0, 1.0, 0.5, (0.5,) * 3),
]


@pytest.mark.parametrize("score", WRONG)
def test_a_score_out_of_range_is_an_error(score: Score) -> None:
    assert find_score_error(score, 10, can_be_negative=False)


def test_scores_within_their_ranges_are_none() -> None:
    for score in (Score(0, 0.0, 0.0), Score(0, 2.3, 1.0, (math.nan, *(0.5,) * 9))):
        assert find_score_error(score, 10, can_be_negative=False) is None
    assert find_score_error(Score(0, -1.0, 0.5), 10, can_be_negative=True) is None


def report(monkeypatch: pytest.MonkeyPatch, wrong: Score, times: float) -> None:
    """The evaluator reports so many times a wrong score."""
    score, said = EvaluatorClient.score, list[int]()

    def acting(judge: EvaluatorClient, session: Any, fence: int, bottom: Any) -> Score:
        found = score(judge, session, fence, bottom)
        said.append(fence)
        return replace(wrong, fence=fence) if len(said) <= times else found

    monkeypatch.setattr(EvaluatorClient, "score", acting)


def play(stage: LocalDeployment) -> list[dict[str, Any]]:
    for m in stage.partition.clients:
        join_directly(stage, m)
    return stage.play()


def test_the_evaluator_is_asked_again_after_a_wrong_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = make_direct_deployment(tmp_path, "M=3", "C=5")
    simulation = simulate_deployment(stage)
    report(monkeypatch, WRONG[0], times=1)
    play(stage)
    assert read_untimed_rows(stage.serving.directory) == read_untimed_rows(simulation)
    assert [event["client"] for event in stage.events("failed")] == [stage.spec.evaluator]


def test_an_evaluator_that_reports_only_wrong_scores_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make_direct_deployment(tmp_path, "M=3", "C=5", policy=Policy("wait", retries=1))
    report(monkeypatch, WRONG[3], times=math.inf)
    with pytest.raises(WorkError):
        play(stage)


def test_a_journal_of_an_earlier_version_with_a_huge_loss_is_an_error_with_a_hint(tmp_path: Path) -> None:
    journal, visit = Journal(tmp_path), Visit(0, 0, 0, torch.zeros(3), Step(0.1), 1)
    journal.commit(visit, 1, Done(torch.ones(3), Cost(1, 1, HUGE)))
    with pytest.raises(InputError) as found:
        journal.find(visit)
    assert found.value.hint
