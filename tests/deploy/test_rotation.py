"""A new sealing secret in the middle of a run, which reaches one client sooner than another: does the run go on?"""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from splitrelay.deploy import client_visit
from splitrelay.deploy.rehearsal import read_untimed_rows
from splitrelay.network.grpc_channel import ServerRefused
from splitrelay.security.authority import Authority, open_authority
from splitrelay.security.encryption import load_secrets
from splitrelay.security.key_files import REVOKED, SEALING
from tests.support.deployment import LocalDeployment, simulate_run, watch_events
from tests.support.sealed_deployments import join_directly, make_direct_deployment

Happened = Callable[[str, dict[str, Any]], None]


class Consortium:
    """A run of three clients that take turns, and the authority on a machine of its own: files are brought by hand."""

    def __init__(self, place: Path, *words: str, listen: str = "") -> None:
        self.stage = make_direct_deployment(place, "M=3", "C=5", *words)
        self.place, self.office, self.listen = place, place / "office", listen
        for folder in ("authority", "server", *(f"client-{m}" for m in range(3))):
            shutil.copytree(place / folder, self.office / folder)

    @property
    def authority(self) -> Authority:
        return open_authority(self.office / "authority")

    def bring(self, *names: str, file: str = SEALING) -> None:
        """The office's file lies in the folders of these holders, whole, from one moment to the next."""
        for name in names:
            shutil.copy(self.office / name / file, self.place / name / "on-its-way")
            (self.place / name / "on-its-way").replace(self.place / name / file)

    def spoil(self, name: str, length: int | None) -> None:
        """The first bytes of the office's file, as if somebody were still writing; or no file yet."""
        path = self.place / name / SEALING
        if length is None:
            path.unlink()
        else:
            path.write_bytes((self.office / name / SEALING).read_bytes()[:length])

    def epochs(self) -> list[int]:
        return [load_secrets(self.place / f"client-{m}").current for m in range(3)]

    def play(self, happened: Happened) -> LocalDeployment:
        """The whole run; it is the simulated one, each visit was made once, nobody was passed over."""
        stage = self.stage
        simulation = simulate_run(stage.spec, self.place / "simulated")
        watch_events(stage, happened)
        for m in range(3):
            join_directly(stage, m, self.listen)
        stage.play()
        assert (self.place / "model").read_bytes() == simulation.model.read_bytes()
        assert read_untimed_rows(stage.serving.directory) == read_untimed_rows(simulation)
        committed = {(event["round"], event["client"]) for event in stage.events("committed")}
        assert committed == {(r, m) for r in range(stage.spec.R) for m in range(3)}
        assert not [kind for kind in ("skipped", "expired", "unseen", "undone") if stage.events(kind)]
        return stage


def who(stage: LocalDeployment, kind: str) -> list[int]:
    return [event["client"] for event in stage.events(kind)]


def outsider_revoked(here: Consortium) -> None:
    """Somebody who had the secret too, and is in none of the rounds."""
    here.authority.issue_client("client-9", 9)
    here.authority.revoke("client-9")
    here.bring("server", file=REVOKED)


NEWS: dict[str, Callable[[Consortium], object]] = {
    "rotated": lambda here: here.authority.rotate(),
    "revoked": outsider_revoked,
}


@pytest.mark.parametrize("listen", ["", "127.0.0.1:0"], ids=["relayed", "direct"])
@pytest.mark.parametrize("news", NEWS)
def test_clients_that_get_the_new_secret_late_are_waited_for(news: str, listen: str, tmp_path: Path) -> None:
    """Client 1 seals in the new epoch; client 2 cannot open that, nor can client 0 in the next round."""
    here = Consortium(tmp_path, "evaluator=1", listen=listen)

    def happened(event: str, facts: dict[str, Any]) -> None:
        if event == "leased" and (facts["round"], facts["client"]) == (0, 0):
            NEWS[news](here)
            here.bring("client-1")
        if event == "unable":
            assert "WrongEpoch: " in facts["why"]
            here.bring(f"client-{facts['client']}")

    stage = here.play(happened)
    assert who(stage, "unable") == [2, 0]
    assert not stage.events("failed") and here.epochs() == [2, 2, 2]
    assert set(stage.words.values()) == {"all rounds are done"}


class Listening(list[str]):
    """What clients say; somebody hears how often they could not open the half."""

    def __init__(self, heard: Callable[[int], None]) -> None:
        super().__init__()
        self.heard, self.times = heard, 0

    def append(self, text: str) -> None:
        super().append(text)
        if text.startswith("not yet: WrongEpoch: "):
            self.times += 1
            self.heard(self.times)


OFTEN = 6  # more often than anybody may fail


@pytest.mark.parametrize("listen", ["", "127.0.0.1:0"], ids=["relayed", "direct"])
def test_who_cannot_open_the_half_yet_is_asked_again_and_again_and_noted_once(listen: str, tmp_path: Path) -> None:
    here = Consortium(tmp_path, "evaluator=1", "R=1", listen=listen)
    here.stage.said = said = Listening(lambda times: here.bring("client-2") if times == OFTEN else None)

    def happened(event: str, facts: dict[str, Any]) -> None:
        if event == "leased" and facts["client"] == 0:
            here.authority.rotate()
            here.bring("client-1")

    stage = here.play(happened)
    assert who(stage, "unable") == [2] and not stage.events("failed")
    assert who(stage, "leased").count(2) == OFTEN + 1 and said.times == OFTEN


@pytest.mark.parametrize("listen", ["", "127.0.0.1:0"], ids=["relayed", "direct"])
def test_an_evaluator_that_gets_the_new_secret_late_scores_late(listen: str, tmp_path: Path) -> None:
    """It has made its visit before; all others are in the new epoch when it is asked for a score."""
    here = Consortium(tmp_path, listen=listen)
    here.stage.said = said = Listening(lambda times: here.bring("client-0") if times == OFTEN else None)

    def happened(event: str, facts: dict[str, Any]) -> None:
        if event == "leased" and (facts["round"], facts["client"]) == (0, 1):
            here.authority.rotate()
            here.bring("client-1", "client-2")

    stage = here.play(happened)
    (late,) = stage.events("unable")
    assert late["client"] == 0 and "WrongEpoch" in late["why"] and not stage.events("failed")
    assert said.times == OFTEN


@pytest.mark.parametrize("length", [None, 0, 60])
def test_a_secret_that_is_not_whole_yet_is_waited_for_where_a_half_is_opened(
    length: int | None, tmp_path: Path
) -> None:
    here = Consortium(tmp_path)

    def happened(event: str, facts: dict[str, Any]) -> None:
        if event == "committed" and (facts["round"], facts["client"]) == (0, 0):
            here.spoil("client-1", length)
        if event == "unable":
            here.bring("client-1")

    stage = here.play(happened)
    assert who(stage, "unable") == [1] and not stage.events("failed")
    assert stage.events("unable")[0]["why"].startswith("SecretUnavailable: ")
    assert set(stage.words.values()) == {"all rounds are done"}


@pytest.mark.parametrize("listen", ["", "127.0.0.1:0"], ids=["relayed", "direct"])
def test_a_secret_that_is_not_whole_where_a_half_is_sealed_costs_the_visit_and_no_more(
    listen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All steps are made when the file is found to be half there: they are made again."""
    here, spoilt = Consortium(tmp_path, listen=listen), threading.Event()
    finish = client_visit.RemoteServerHalf.finish

    def finished(calls: client_visit.RemoteServerHalf, norm2: float) -> None:
        finish(calls, norm2)
        if calls.lease.m == 1 and not spoilt.is_set():
            spoilt.set()
            here.spoil("client-1", 60)

    def happened(event: str, facts: dict[str, Any]) -> None:
        if event == "unable":
            here.bring("client-1")

    monkeypatch.setattr(client_visit.RemoteServerHalf, "finish", finished)
    stage = here.play(happened)
    assert who(stage, "unable") == [1] and not stage.events("failed")


def test_an_evaluator_whose_secret_is_not_whole_is_asked_again(tmp_path: Path) -> None:
    here = Consortium(tmp_path)

    def happened(event: str, facts: dict[str, Any]) -> None:
        if event == "committed" and (facts["round"], facts["client"]) == (0, 2):
            here.spoil("client-0", 60)
        if event in ("failed", "unable"):
            here.bring("client-0")

    stage = here.play(happened)
    (late,) = stage.events("unable")
    assert late["client"] == 0 and "is damaged" in late["why"] and not stage.events("failed")


class LastWords(dict[int, Any]):
    """What clients said when they left, also where two had the same number."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[Any] = []

    def __setitem__(self, m: int, word: Any) -> None:
        self.all.append(word)
        super().__setitem__(m, word)


def test_a_revoked_clients_successor_takes_its_place_and_the_others_follow(tmp_path: Path) -> None:
    """Client 2 is out after its first visit; the client that gets its number and its data makes the next one."""
    here = Consortium(tmp_path, "evaluator=1")
    stage = here.stage

    def happened(event: str, facts: dict[str, Any]) -> None:
        if event == "committed" and (facts["round"], facts["client"]) == (0, 2):
            here.authority.revoke("client-2")
            here.authority.issue_client("successor", 2)
            shutil.copytree(here.office / "successor", tmp_path / "successor")
            here.bring("server", file=REVOKED)
            here.bring("client-0")
        if event == "unable":
            join_directly(stage, 2, "", keys=tmp_path / "successor")
            here.bring(f"client-{facts['client']}")

    stage.words = words = LastWords()
    here.play(happened)
    assert who(stage, "unable") == [1] and not stage.events("failed")
    (refused,) = [word for word in words.all if word != "all rounds are done"]
    assert isinstance(refused, ServerRefused) and refused.final and "client-2 is revoked" in str(refused)
    assert len(words.all) == 4
    assert load_secrets(tmp_path / "client-2").current == 1  # it was given nothing
