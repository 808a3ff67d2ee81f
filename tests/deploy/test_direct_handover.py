"""Clients that reach each other hand over the half directly: the same bits, also when one of them falls in between."""

import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from splitrelay.deploy.client_program import ClientOptions, ClientProgram
from splitrelay.deploy.rehearsal import read_untimed_rows
from splitrelay.errors import InputError
from splitrelay.network.client_session import Session
from splitrelay.network.messages import Commit, Message
from tests.support.deployment import LocalDeployment
from tests.support.error_fields import expect_error
from tests.support.sealed_deployments import join_directly, make_direct_deployment, simulate_deployment


@pytest.mark.parametrize("words", ["engine=fast model=lenet-small clip=1", "engine=reference M=3 C=5 R=3 every=2"])
def test_handed_directly_it_is_the_simulated_run(words: str, tmp_path: Path) -> None:
    stage = make_direct_deployment(tmp_path, *words.split())
    simulation = simulate_deployment(stage)
    for m in stage.partition.clients:
        join_directly(stage, m)
    stage.play()
    assert (tmp_path / "model").read_bytes() == simulation.model.read_bytes()
    assert read_untimed_rows(stage.serving.directory) == read_untimed_rows(simulation)
    visits = len(stage.partition.clients) * stage.spec.R
    assert len(stage.events("handed")) == visits - 1  # after the last there is nobody
    assert len(stage.events("committed")) == visits
    assert not stage.events("wanted") and not stage.events("unreached")


def test_a_client_that_nobody_reaches_is_relayed_to_and_that_is_recorded(tmp_path: Path) -> None:
    stage = make_direct_deployment(tmp_path, "M=3", "C=5")
    simulation = simulate_deployment(stage)
    for m in range(2):
        join_directly(stage, m)
    join_directly(stage, 2, listen="")
    stage.play()
    assert (tmp_path / "model").read_bytes() == simulation.model.read_bytes()
    assert {event["to"] for event in stage.events("handed")} == {0, 1}


def test_a_client_under_a_host_that_is_not_in_its_certificate_is_relayed_to(tmp_path: Path) -> None:
    """Its keys name a host at which something else, or nothing, answers."""
    stage = make_direct_deployment(tmp_path, "M=2", "C=9", "R=1", hosts=("127.0.0.9",))
    simulation = simulate_deployment(stage)
    for m in range(2):
        join_directly(stage, m)
    stage.play()
    assert (tmp_path / "model").read_bytes() == simulation.model.read_bytes()
    assert not stage.events("handed")
    assert len(stage.events("unreached")) == 1


class Fallen(Exception):
    """As if the program had been killed."""


class Play:
    """What clients do before they say a word to the server, by client and kind of word: wait, or fall."""

    def __init__(self, stage: LocalDeployment, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stage, self.cues = stage, dict[tuple[int, str], Callable[[], None]]()
        self.heard = {m: threading.Event() for m in stage.partition.clients}  # whose visits were committed
        self.fallen, self.back = False, threading.Event()  # somebody fell, and is here again
        self.noted = defaultdict[tuple[str, int], threading.Event](threading.Event)  # in the server's record
        stage.serving.on_listening = self.listening
        play = self

        class Acting(Session):
            def send(self, *words: Message) -> None:
                for word in words:
                    play.cues.pop((self.client, word.event), lambda: None)()
                    super().send(word)

            def connect(self) -> bool:
                resumed = super().connect()
                if play.fallen:
                    play.back.set()
                return resumed

            def exchange(self, *words: Any, **how: Any) -> Message:
                answer = super().exchange(*words, **how)
                if isinstance(answer, Commit):
                    play.heard[self.client].set()
                return answer

        monkeypatch.setattr("splitrelay.deploy.client_program.Session", Acting)

    def listening(self, port: int) -> None:
        note = self.stage.serving.journal.note

        def noted(event: str, **facts: Any) -> None:
            note(event, **facts)
            self.noted[event, facts.get("client", -1)].set()

        self.stage.serving.journal.note = noted  # type: ignore[method-assign]
        self.stage.listening.set()

    def wait_for(self, event: threading.Event) -> Callable[[], None]:
        def waiting() -> None:
            assert event.wait(60), "nobody came"

        return waiting

    def fall(self, m: int, after: tuple[str, int] | None = None) -> Callable[[], None]:
        """Client m falls as soon as this is in the server's record, and comes back without all it had."""

        def falling() -> None:
            if after is not None:
                assert self.noted[after].wait(60), "it never happened"
            self.fallen = True
            self.stage.clients[m].session.disconnect()
            join_directly(self.stage, m)
            raise Fallen

        return falling

    def same(self) -> bool:
        simulation = simulate_deployment(self.stage)
        for m in self.stage.partition.clients:
            join_directly(self.stage, m)
        self.stage.play()
        committed = [(event["round"], event["client"]) for event in self.stage.events("committed")]
        assert len(set(committed)) == len(committed) == len(self.stage.partition.clients) * self.stage.spec.R
        return bool((self.stage.folder / "model").read_bytes() == simulation.model.read_bytes())


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    return Play(make_direct_deployment(tmp_path, "M=3", "C=5"), monkeypatch)


def test_the_deposit_is_off_the_critical_path(play: Play) -> None:
    """The first client deposits only when the second has made all its steps."""
    stepped = threading.Event()
    play.cues = {(0, "deposit"): play.wait_for(stepped), (1, "finish"): stepped.set}
    assert play.same()
    times = {kind: play.stage.events(kind) for kind in ("leased", "committed")}
    (leased,) = [event["seconds"] for event in times["leased"] if (event["round"], event["client"]) == (0, 1)]
    (committed,) = [event["seconds"] for event in times["committed"] if (event["round"], event["client"]) == (0, 0)]
    assert leased < committed


def test_a_deposit_covers_what_is_still_owed_of_the_visit_before(play: Play) -> None:
    play.cues[0, "deposit"] = play.wait_for(play.heard[1])
    assert play.same()
    assert not play.stage.events("unpaid")


def test_an_evaluator_is_asked_for_a_score_only_when_its_own_deposit_has_come(play: Play) -> None:
    """Its visit counts before that: the last client of the round has covered it."""
    play.cues[0, "deposit"] = play.wait_for(play.heard[2])
    assert play.same()
    assert not play.stage.events("lost")


def test_a_receiver_that_falls_before_the_deposit_is_sent_it_by_the_server(play: Play) -> None:
    play.cues = {(1, "ready"): play.fall(1), (0, "deposit"): play.wait_for(play.back)}
    assert play.same()
    assert play.stage.events("restarted") or play.stage.events("lost")
    assert not play.stage.events("undone")


def test_a_sender_that_falls_before_its_deposit_is_not_needed_any_more(play: Play) -> None:
    unpaid = play.noted["unpaid", 0]
    play.cues = {(0, "deposit"): play.fall(0, ("handed", 0)), (1, "finish"): play.wait_for(unpaid)}
    assert play.same()
    assert not play.stage.events("undone")


def test_a_half_that_is_lost_at_both_ends_is_made_again(play: Play) -> None:
    play.cues = {(0, "deposit"): play.fall(0, ("handed", 0)), (1, "ready"): play.fall(1)}
    assert play.same()
    assert [event["client"] for event in play.stage.events("undone")] == [0]


def test_the_last_client_of_a_round_that_falls_before_its_deposit_makes_its_visit_again(play: Play) -> None:
    """The evaluator waits for the half: nothing else has come out of it yet."""
    play.cues[2, "deposit"] = play.fall(2, ("handed", 2))
    assert play.same()
    assert [event["client"] for event in play.stage.events("undone")] == [2]


def test_without_keys_nobody_can_listen(tmp_path: Path) -> None:
    wish = ClientOptions("127.0.0.1:1", 0, tmp_path / "data.npz", listen="127.0.0.1:0")
    with expect_error(InputError, hint=("--keys", "--listen")):
        ClientProgram(wish, lambda text: None).run()
