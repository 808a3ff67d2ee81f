"""Sealed halves within the bound from which later visits overflow, or whose epoch nobody has: who gets a strike?"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from splitrelay.deploy.events import list_skipped_visits
from splitrelay.deploy.half_disputes import PENDING, PendingStrikes
from splitrelay.deploy.server_visit import Policy
from splitrelay.errors import InputError, WorkError
from splitrelay.network.client_session import Session
from splitrelay.network.messages import Deposit, Message
from splitrelay.security.encryption import HEADER, WrongEpoch, read_label
from splitrelay.security.sealing_session import Sealer
from tests.deploy.test_diverging_visit import misbehave
from tests.deploy.test_spoiled_deposits import spoil
from tests.deploy.test_unopenable_halves import EVIL, play, play_fed, struck
from tests.support.bare_server import wait_until
from tests.support.clock import Clock
from tests.support.deployment import LocalDeployment, watch_events
from tests.support.sealed_deployments import make_direct_deployment, make_fed_deployment

NET = ("M=4", "C=5", "eta=0.05", "model=lenet-small", "evaluator=3")
LATE = Policy("skip", lease=1000.0, step=1e6)  # only the clock of the test lets a lease run out
LISTEN = pytest.mark.parametrize("listen", ["", "127.0.0.1:0"], ids=["relayed", "direct"])


@LISTEN
def test_the_writer_of_a_half_that_two_clients_overflow_from_is_struck_and_the_run_goes_on(
    listen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make_direct_deployment(tmp_path, *NET, "R=5", policy=Policy("skip"))
    spoil(monkeypatch)
    play(stage, listen)
    assert struck(stage) == {EVIL}
    assert {event["client"] for event in stage.events("rejected")} == {EVIL}
    skips = list_skipped_visits(stage.events("skipped"))
    assert {(r, EVIL, 0) for r in range(stage.spec.R)} <= skips
    assert len(skips - {(r, EVIL, 0) for r in range(stage.spec.R)}) <= 3  # one honest visit for each such half
    assert (tmp_path / "model").exists()


def test_a_strike_that_is_pending_survives_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client gets it after two visits of others: also if the server was restarted before them."""
    words, policy = (*NET, "R=5"), Policy("skip")
    stage = make_direct_deployment(tmp_path, *words, policy=policy)
    spoil(monkeypatch)
    watch_events(stage, lambda event, facts: stage.stop.set() if event == "rejected" else None)
    with pytest.raises(KeyboardInterrupt):
        play(stage)
    assert not stage.events("strike") and len(stage.events("rejected")) == 1
    monkeypatch.undo()
    again = make_direct_deployment(tmp_path, *words, policy=policy)
    play(again)
    assert struck(again) == {EVIL}


@pytest.mark.parametrize("content", ["[]", "{}", '{"sound": 0, "accused": {"x": 1}}', "", "[" * 10**5])
def test_a_damaged_file_of_pending_strikes_is_wrong_input(content: str, tmp_path: Path) -> None:
    (tmp_path / PENDING).write_text(content)
    with pytest.raises(InputError) as found:
        PendingStrikes(tmp_path / PENDING)
    assert PENDING in found.value.what and found.value.hint


@LISTEN
@pytest.mark.parametrize("how", ["fail", "h"])
def test_a_client_that_overflows_alone_is_struck_when_another_client_goes_on_from_the_half(
    how: str, listen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make_direct_deployment(tmp_path, *NET, "R=4", policy=Policy("skip"))
    misbehave(monkeypatch, how)
    play(stage, listen)
    assert struck(stage) == {EVIL} and not stage.events("rejected")
    assert list_skipped_visits(stage.events("skipped")) == {(r, EVIL, 0) for r in range(4)}


def test_an_overflow_that_only_one_client_can_report_strikes_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make_direct_deployment(tmp_path, *NET[1:], "M=2", "R=4", "evaluator=0", policy=Policy("wait", retries=1))
    spoil(monkeypatch)
    with pytest.raises(WorkError) as found:
        play(stage)
    assert not stage.events("strike")
    assert f"client {EVIL}" in str(found.value).lower()


@pytest.mark.parametrize("away", ["wait", "skip"])
@pytest.mark.parametrize("eta", ["2", "30", "1e4"])
def test_nobody_is_put_into_quarantine_when_an_honest_sealed_run_diverges(eta: str, away: str, tmp_path: Path) -> None:
    stage = make_direct_deployment(
        tmp_path, "M=4", "C=5", "R=6", "evaluator=3", f"eta={eta}", policy=Policy(away, retries=1)
    )
    try:
        play(stage)
    except WorkError:
        assert not (tmp_path / "model").exists()
    assert not stage.events("quarantined")


@pytest.mark.parametrize("away", ["wait", "skip"])
def test_a_mean_that_everybody_overflows_from_strikes_nobody(
    away: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("algorithm=fedavg", "R=4", *NET)
    stage = make_fed_deployment(tmp_path, *words, policy=Policy(away, retries=1))
    spoil(monkeypatch)
    with pytest.raises(WorkError):
        play_fed(stage)
    assert not stage.events("strike")


# Epochs that nobody has


def label_epoch(monkeypatch: pytest.MonkeyPatch, m: int = EVIL) -> None:
    """Client EVIL labels its halves with an epoch that does not exist."""
    seal, committed = Sealer.seal, Sealer.confirm_own

    def sealing(sealer: Sealer, half: bytes, **label: int) -> bytes:
        sealed = seal(sealer, half, **label)
        return with_epoch(sealed, 999) if sealer.m == m else sealed

    monkeypatch.setattr(Sealer, "seal", sealing)
    monkeypatch.setattr(Sealer, "confirm_own", lambda one, sealed: None if one.m == m else committed(one, sealed))


def with_epoch(sealed: bytes, epoch: int) -> bytes:
    label = replace(read_label(sealed), epoch=epoch)
    return label.pack() + sealed[HEADER.size :]


def hold_deposit(stage: LocalDeployment, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Client EVIL hands its half to the next client, and deposits it when the lease of that one has run out."""
    send, began, held = Session.send, clock.monotonic(), list[int]()

    def wait_for_check(after: float) -> float:
        """Wait until the timeouts were checked so many seconds after the start, and return when."""
        wait_until(lambda: stage.serving.remote._next_checks - began > after)
        return float(stage.serving.remote._next_checks - began)

    def sending(session: Session, *messages: Message) -> None:
        for message in messages:
            if session.client == EVIL and not held and isinstance(message, Deposit):
                held.append(message.fence)
                wait_for_check(wait_for_check(LATE.lease))  # the first one may have begun before
            send(session, message)

    monkeypatch.setattr(Session, "send", sending)


@LISTEN
@pytest.mark.parametrize("words", ["", "evaluator=1", "order=permutation"])
def test_the_writer_of_a_half_in_an_epoch_that_nobody_has_is_struck_and_nobody_else(
    words: str, listen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make_direct_deployment(tmp_path, "M=4", "C=9", "R=4", "evaluator=3", *words.split(), policy=LATE)
    label_epoch(monkeypatch)
    clock = Clock(monkeypatch)
    clock.expire_inability(stage)
    if listen and not words:  # client 2 follows client EVIL
        hold_deposit(stage, clock, monkeypatch)
    play(stage, listen)
    assert struck(stage) == {EVIL}
    assert list_skipped_visits(stage.events("skipped")) == {(r, EVIL, 0) for r in range(4)}


def test_the_writer_of_a_half_in_an_epoch_that_the_fed_server_has_not_is_struck_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("M=3", "C=9", "R=4", "algorithm=fedavg", "evaluator=2")
    stage = make_fed_deployment(tmp_path, *words, policy=LATE)
    label_epoch(monkeypatch)
    Clock(monkeypatch).expire_inability(stage)
    play_fed(stage)
    assert struck(stage) == {EVIL}


def test_a_client_that_says_not_yet_of_a_half_that_others_open_is_struck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make_direct_deployment(tmp_path, "M=4", "C=9", "R=4", "evaluator=3", policy=LATE)
    unseal = Sealer.unseal

    def unsealing(sealer: Sealer, sealed: bytes, **label: Any) -> bytes:
        if sealer.m == EVIL:
            raise WrongEpoch("not yet")
        return unseal(sealer, sealed, **label)

    monkeypatch.setattr(Sealer, "unseal", unsealing)
    Clock(monkeypatch).expire_inability(stage)
    play(stage)
    assert struck(stage) == {EVIL} and not stage.events("rejected")
