"""What a client promises its operator: before it agrees nothing is sent, and an early end is no success."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splitrelay.deploy import client_visit
from splitrelay.deploy.client_program import EndedEarly
from splitrelay.deploy.lease_limits import (
    LINES,
    UPDATES,
    WIDTH,
    Approval,
    UsedVisits,
    derive_allowed_visits,
    shorten_lines,
)
from splitrelay.deploy.server_visit import Policy
from splitrelay.errors import Diverged, InputError
from splitrelay.network import connection_handler
from splitrelay.network.codec import encode
from splitrelay.network.messages import Accept, Bye, Commit, Lease, Message, Welcome
from splitrelay.participation import WithReplacement
from tests.deploy.test_malicious_server import Lies, offer, quorum
from tests.support.deployment import LocalDeployment, small_spec

TWO = ("M=2", "C=9", "R=2", "K=2")


# The end of a run


@pytest.mark.parametrize("when", [Welcome, Commit])
def test_a_goodbye_before_the_last_round_is_an_error(
    when: type[Message], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = LocalDeployment(small_spec(tmp_path, *TWO), tmp_path, without=(1,))

    def bye(connections: Any, connection: int, *words: Message) -> None:
        send(connections, connection, *words)
        if any(isinstance(word, when) for word in words):
            send(connections, connection, Bye("all rounds are done"))

    send = connection_handler.ConnectionHandler.send
    monkeypatch.setattr(connection_handler.ConnectionHandler, "send", bye)
    if when is Welcome:
        monkeypatch.setattr(
            connection_handler,
            "encode",
            lambda word: encode(Bye("all rounds are done") if isinstance(word, Lease) else word),
        )
    stage.join(0)
    stage.threads.append(_stopping(stage))
    with pytest.raises(KeyboardInterrupt):
        stage.play()
    error = stage.words[0]
    assert isinstance(error, EndedEarly) and error.exit_code != 0
    assert error.limit == "2 rounds" and ("round 0" in str(error.value)) == (when is Commit)


def _stopping(stage: LocalDeployment) -> Any:
    def stop() -> None:
        stage.threads[0].join(300)
        stage.stop.set()

    thread = threading.Thread(target=stop, daemon=True)
    thread.start()
    return thread


def test_a_client_that_is_drawn_in_some_rounds_only_may_end_at_any_time(tmp_path: Path) -> None:
    for words, last, is_complete in (
        (("order=sampled", "S=1"), 0, True),
        (("order=sampled", "S=1"), None, True),
        ((), None, False),
        ((), 0, False),
        ((), 1, True),
    ):
        spec = small_spec(tmp_path, *TWO, *words)
        used = UsedVisits(derive_allowed_visits(spec, 0), None, 0)
        if last is not None:
            used.record_commit(last)
        assert used.is_complete(spec) is is_complete


# Before it agrees


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("classes", [("0", "1"), tuple("0123456789")], ids=["other classes", "its classes"])
def test_a_client_tells_nothing_of_its_data_before_it_agrees(
    check: bool, classes: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator is asked before the data are compared with the terms, and a check alone sends nothing."""
    asked = list[str]()
    stage = quorum(tmp_path)
    lies = Lies(stage, monkeypatch, offer(stage.serving.spec, classes=classes))
    found = lies.join(agreed=None, check=check, approval=Approval(lambda text: bool(asked.append(text))))
    assert not any(isinstance(message, Accept) for message in lies.received) and not lies.sent
    if not check:
        assert len(asked) == 1 and isinstance(found, InputError)


def test_the_prompt_is_short_and_printable() -> None:
    lines = shorten_lines("\n".join(["a" * 10_000, "\x1b[2Jhidden\u202e", "\u0007" * 300] + ["x"] * 1000))
    assert len(lines) == LINES + 1
    assert all(line.isprintable() and len(line) <= WIDTH for line in lines)


def test_the_prompt_says_what_updates_of_a_whole_model_reveal(tmp_path: Path) -> None:
    stage = LocalDeployment(small_spec(tmp_path, *TWO, "placement=whole", "algorithm=fedavg"), tmp_path)
    shown = list[str]()
    for m in stage.partition.clients:
        stage.join(m, agreed=None, approval=Approval(lambda text: bool(shown.append(text)) or True))
    stage.play()
    assert all(UPDATES in text for text in shown) and shown


# Visits


def test_draws_with_replacement_are_limited_over_the_whole_run(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "M=4", "order=replacement", "S=4", "R=1000")
    allowed = derive_allowed_visits(spec, 0)
    assert allowed.occurrences == 4
    for seed in range(5):
        order = WithReplacement(4, 4, seed)
        drawn = sum(list(order(r)).count(0) for r in range(1000))
        assert drawn <= allowed.visits < 4 * 1000 / 3
    assert derive_allowed_visits(small_spec(tmp_path, "M=4", "order=replacement", "S=2", "R=1"), 0).visits == 2


def test_a_visit_that_diverged_is_told_the_operator_with_a_useful_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = client_visit.RemoteServerHalf.step

    def overflow(calls: client_visit.RemoteServerHalf, k: int, h: Any, *words: Any, **more: Any) -> Any:
        return step(calls, k, np.full_like(h, np.inf) if calls.lease.m == 1 else h, *words, **more)

    monkeypatch.setattr(client_visit.RemoteServerHalf, "step", overflow)
    stage = LocalDeployment(small_spec(tmp_path, *TWO), tmp_path, policy=Policy("wait", retries=0))
    for m in stage.partition.clients:
        stage.join(m)
    with pytest.raises(Diverged):
        stage.play()
    (warning,) = [text for text in stage.said if text.startswith("the visit failed")]
    assert "smashed data of client 1 overflowed" in warning and "join --check" in warning and "operator" in warning
