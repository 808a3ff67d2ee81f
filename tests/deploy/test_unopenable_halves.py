"""SealedState halves that nobody can open: the client that wrote one is struck, nobody else, and the run goes on."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splitrelay.deploy.backend import compute_half_size
from splitrelay.deploy.client_visit import VisitRunner
from splitrelay.deploy.events import list_skipped_visits
from splitrelay.deploy.fed_server import FedServer
from splitrelay.deploy.rehearsal import simulate
from splitrelay.deploy.server_visit import Policy
from splitrelay.errors import WorkError
from splitrelay.network import tensor_transfer
from splitrelay.runs.run_directory import RunDirectory
from splitrelay.security.encryption import HEADER, TamperedHalf
from splitrelay.security.sealing_session import ENTRY, Sealer, list_sealed_sizes
from tests.support.deployment import LocalDeployment
from tests.support.sealed_deployments import join_all, join_directly, make_direct_deployment, make_fed_deployment

EVIL = 1  # the client that deposits or claims what it likes
FOUR = ("M=4", "C=9", "evaluator=2")
Change = Callable[[bytes], bytes]


def pack(change: Callable[[Any], Any]) -> Change:
    """Change the weights of a half before it is sealed."""

    def changed(half: bytes) -> bytes:
        size = len(np.frombuffer(half[8 + int.from_bytes(half[:8], "little") :], np.float32))
        return tensor_transfer.pack_vectors(x=change(tensor_transfer.unpack_vectors(half, {"x": size}, "float32")["x"]))

    return changed


BEFORE: dict[str, Change] = {
    "huge": pack(lambda x: np.full_like(x, 1e30)),
    "nan": pack(lambda x: np.full_like(x, np.nan)),
    "shorter": pack(lambda x: x[:-1]),
    "no tensors": lambda half: b"\0" * len(half),
}
AFTER: dict[str, Change] = {
    "garbage": lambda sealed: sealed[: HEADER.size] + b"\0" * (len(sealed) - HEADER.size),
}
LABELS: dict[str, Change] = {
    "other spec": lambda sealed: sealed[:4] + b"\0" * 32 + sealed[36:],
    "short": lambda sealed: sealed[:-100],
}


def corrupt(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Client EVIL trains as it should, seals something else, and remembers nothing."""
    seal, committed = Sealer.seal, Sealer.confirm_own

    def sealing(sealer: Sealer, half: bytes, **label: int) -> bytes:
        if sealer.m != EVIL:
            return seal(sealer, half, **label)
        return {**AFTER, **LABELS}.get(kind, bytes)(seal(sealer, BEFORE.get(kind, bytes)(half), **label))

    monkeypatch.setattr(Sealer, "seal", sealing)
    monkeypatch.setattr(
        Sealer, "confirm_own", lambda sealer, sealed: None if sealer.m == EVIL else committed(sealer, sealed)
    )


def lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """Client EVIL says of every half that it cannot open it."""
    opened = VisitRunner._unseal

    def opening(visitor: VisitRunner, blob: bytes, words: Any) -> Any:
        if visitor.used.allowed.m == EVIL and words.sealed_visit:
            raise TamperedHalf("I cannot open this")
        return opened(visitor, blob, words)

    monkeypatch.setattr(VisitRunner, "_unseal", opening)


def play(stage: LocalDeployment, listen: str = "") -> None:
    for m in stage.partition.clients:
        join_directly(stage, m, listen)
    stage.play()


def struck(stage: LocalDeployment) -> set[int]:
    return {event["client"] for event in stage.events("strike")}


def check_replayed(stage: LocalDeployment) -> None:
    """The model is that of a run in which exactly the visits of client EVIL were skipped."""
    skips = list_skipped_visits(stage.events("skipped"))
    assert skips == {(r, EVIL, 0) for r in range(stage.spec.R)}
    expected = simulate(stage.serving.spec, RunDirectory(stage.folder / "replay"), skips)
    assert (stage.folder / "model").read_bytes() == expected.model.read_bytes()


@pytest.mark.parametrize("listen", ["", "127.0.0.1:0"], ids=["relayed", "direct"])
@pytest.mark.parametrize("kind", [*BEFORE, *AFTER, *LABELS])
def test_the_writer_of_an_unopenable_half_is_struck_and_the_run_goes_on(
    kind: str, listen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make_direct_deployment(tmp_path, *FOUR, policy=Policy("skip"))
    corrupt(monkeypatch, kind)
    play(stage, listen)
    assert struck(stage) == {EVIL}
    check_replayed(stage)


@pytest.mark.parametrize("words", ["", "order=permutation every=2 R=4", "evaluator=1"])
def test_an_unopenable_half_at_any_place_of_a_round_strikes_only_its_writer(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first that is asked to open it may be the evaluator, or a client of the next round."""
    stage = make_direct_deployment(
        tmp_path, "M=4", "C=9", "evaluator=3", *words.split(), policy=Policy("skip", strikes=9)
    )
    corrupt(monkeypatch, "huge")
    play(stage)
    check_replayed(stage)
    assert struck(stage) == {EVIL}


@pytest.mark.parametrize("listen", ["", "127.0.0.1:0"], ids=["relayed", "direct"])
def test_a_client_that_claims_not_to_open_a_good_half_is_struck_itself(
    listen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make_direct_deployment(tmp_path, *FOUR, policy=Policy("skip"))
    lie(monkeypatch)
    play(stage, listen)
    assert struck(stage) == {EVIL} and not stage.events("rejected")
    check_replayed(stage)


@pytest.mark.parametrize("evil", ["writer", "claimant"])
def test_without_a_third_client_nobody_is_struck(evil: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = make_direct_deployment(tmp_path, "M=2", "C=9", "R=3", "evaluator=0", policy=Policy("wait", retries=1))
    corrupt(monkeypatch, "garbage") if evil == "writer" else lie(monkeypatch)
    with pytest.raises(WorkError) as found:
        play(stage)
    assert not stage.events("strike")
    assert "client 0" in str(found.value) and "client 1" in str(found.value)


def test_a_run_that_may_not_skip_stops_and_names_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = make_direct_deployment(tmp_path, *FOUR, policy=Policy("wait", retries=1))
    corrupt(monkeypatch, "garbage")
    with pytest.raises(WorkError) as found:
        play(stage)
    assert f"client {EVIL}" in found.value.what
    assert struck(stage) == {EVIL} and len(stage.events("rejected")) == 2


def test_a_client_that_was_left_out_of_the_history_of_a_half_is_not_struck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Client EVIL seals its half with a history that lacks the last visits of the others."""
    stage = make_direct_deployment(tmp_path, *FOUR, policy=Policy("skip", strikes=9))
    seal, committed = Sealer.seal, Sealer.confirm_own

    def sealing(sealer: Sealer, half: bytes, **label: int) -> bytes:
        if sealer.m == EVIL:
            sealer._history = {}
        return seal(sealer, half, **label)

    monkeypatch.setattr(Sealer, "seal", sealing)
    monkeypatch.setattr(
        Sealer, "confirm_own", lambda sealer, sealed: None if sealer.m == EVIL else committed(sealer, sealed)
    )
    with suppress(WorkError):  # in the end the evaluator, too, may be a client that was left out
        play(stage)
    assert struck(stage) <= {EVIL}


@pytest.mark.parametrize("clients", [range(1000, 1340), range(1000, 1001), [2**32 - 1]], ids=["full", "one", "last"])
def test_a_history_of_clients_that_do_not_exist_strikes_only_its_writer(
    clients: Sequence[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filled up with them, the half of the next client was too long, and that client got the strikes."""
    stage = make_direct_deployment(tmp_path, *FOUR, policy=Policy("skip"))
    seal, committed = Sealer.seal, Sealer.confirm_own
    limit = compute_half_size(stage.serving.spec, stage.serving.shape)

    def sealing(sealer: Sealer, half: bytes, **label: int) -> bytes:
        if sealer.m == EVIL:
            own = {*sealer._history, EVIL}
            entries = (limit - list_sealed_sizes(len(half))[len(own)]) // ENTRY.size
            sealer._history |= dict.fromkeys(clients[:entries], 1)
        return seal(sealer, half, **label)

    monkeypatch.setattr(Sealer, "seal", sealing)
    monkeypatch.setattr(Sealer, "confirm_own", lambda one, sealed: None if one.m == EVIL else committed(one, sealed))
    play(stage)
    assert struck(stage) == {EVIL}
    check_replayed(stage)


# With a fed server


def play_fed(stage: LocalDeployment) -> None:
    join_all(stage)
    stage.play()


@pytest.mark.parametrize("kind", [*BEFORE, *AFTER, *LABELS])
@pytest.mark.parametrize("words", ["algorithm=fedavg", "algorithm=splitfed-v2 every=2"])
def test_the_writer_of_a_half_that_the_fed_server_cannot_open_is_struck_and_the_run_goes_on(
    kind: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make_fed_deployment(tmp_path, "M=3", "C=9", "evaluator=2", *words.split(), policy=Policy("skip"))
    corrupt(monkeypatch, kind)
    play_fed(stage)
    assert struck(stage) == {EVIL}
    check_replayed(stage)


def test_a_fed_server_that_claims_not_to_open_a_good_half_is_named_and_no_client_is_struck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make_fed_deployment(tmp_path, "M=3", "C=9", "algorithm=fedavg", policy=Policy("skip", retries=1))

    def unseal(averaging: FedServer, *_: Any) -> Any:
        raise TamperedHalf("I cannot open this")

    monkeypatch.setattr(FedServer, "_unseal", unseal)
    with pytest.raises(WorkError) as found:
        play_fed(stage)
    assert "the fed server" in found.value.what and not stage.events("strike")


@pytest.mark.parametrize("kind", ["huge", "nan", "garbage"])
@pytest.mark.parametrize("away", ["skip", "wait"])
def test_a_mean_that_nobody_can_open_strikes_no_client_and_the_fed_server_is_named(
    kind: str, away: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the second time, as the server does not keep a mean that nobody can open."""
    seal = Sealer.seal
    evil = [True]

    def sealing(sealer: Sealer, half: bytes, **label: int) -> bytes:
        if sealer.m is not None or not evil[0]:
            return seal(sealer, half, **label)
        return AFTER.get(kind, bytes)(seal(sealer, BEFORE.get(kind, bytes)(half), **label))

    monkeypatch.setattr(Sealer, "seal", sealing)
    words = ("M=3", "C=9", "algorithm=fedavg", "R=3", "every=3", "evaluator=2")
    stage = make_fed_deployment(tmp_path, *words, policy=Policy(away, retries=1))
    with pytest.raises(WorkError) as found:
        play_fed(stage)
    assert "the fed server" in found.value.what and not stage.events("strike")
    evil[0] = False
    again = make_fed_deployment(tmp_path, *words, policy=Policy(away, retries=1))
    play_fed(again)
    assert not again.events("strike") and not again.events("skipped")


def test_a_client_that_claims_not_to_open_a_good_mean_is_struck_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make_fed_deployment(tmp_path, "M=3", "C=9", "algorithm=fedavg", "R=3", "evaluator=2", policy=Policy("skip"))
    lie(monkeypatch)
    play_fed(stage)
    assert struck(stage) == {EVIL}
    assert list_skipped_visits(stage.events("skipped")) == {(1, EVIL, 0), (2, EVIL, 0)}
