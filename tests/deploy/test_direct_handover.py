"""Clients that reach each other hand over the half directly: the same bits, also if one of them fails meanwhile."""

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from splitrelay.deploy import client_visit
from splitrelay.deploy.client_program import ClientOptions, ClientProgram
from splitrelay.deploy.events import read_events
from splitrelay.deploy.rehearsal import read_untimed_rows, simulate
from splitrelay.deploy.server_visit import Policy
from splitrelay.errors import InputError
from splitrelay.network import messages
from splitrelay.network.client_session import Session
from splitrelay.network.grpc_channel import VisitCancelled
from splitrelay.network.messages import Chunk, Commit, Deposit, Fail, HandoverReport, Message
from splitrelay.network.peer_transfer import PeerEndpoint
from splitrelay.network.tensor_transfer import compute_sha256
from splitrelay.runs.run_directory import RunDirectory
from tests.support.deployment import LocalDeployment, list_skips, simulate_run, small_spec
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
            assert event.wait(300), "nobody came"

        return waiting

    def fall(self, m: int, after: tuple[str, int] | None = None) -> Callable[[], None]:
        """Client m falls as soon as this is in the server's record, and comes back without all it had."""

        def falling() -> None:
            if after is not None:
                assert self.noted[after].wait(300), "it never happened"
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
    events = read_events(play.stage.serving.journal.events)
    order = [(event["event"], event["client"]) for event in events if event.get("round") == 0]
    assert order.index(("leased", 1)) < order.index(("committed", 0))


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


def test_a_sender_that_falls_before_its_last_deposit_has_done_its_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stores that its half was handed on: the server does not ask for the visit again."""
    play = Play(make_direct_deployment(tmp_path, "M=3", "C=5", "R=1"), monkeypatch)
    unpaid = play.noted["unpaid", 0]
    play.cues = {(0, "deposit"): play.fall(0, ("handed", 0)), (1, "finish"): play.wait_for(unpaid)}
    assert play.same()
    assert play.stage.words[0] == play.stage.words[1]


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


# Peer to peer: does a client end the run that says it handed its half on, and then gives its visit up?
BAD = 1


def lie(stage: LocalDeployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Client BAD says that it handed its half on, brings it to nobody, and never deposits it."""
    bring, exchange = PeerEndpoint.hand_over, Session.exchange

    def is_bad(session: Session) -> bool:
        return stage.clients[BAD].session is session

    def claimed(post: PeerEndpoint, lease: Any, half: bytes) -> Any:
        if lease.m == BAD and lease.heir:
            return iter([HandoverReport(lease.fence, len(half), compute_sha256(half))])
        return bring(post, lease, half)

    def withheld(session: Session, words: Sequence[Message], *given: Any, **more: Any) -> Message:
        if not is_bad(session) or not any(isinstance(word, Deposit) for word in words):
            return exchange(session, words, *given, **more)
        session.send(*(word for word in words if not isinstance(word, Chunk | Deposit)))
        session.send(Fail(session.holding.fence, "I keep it"))
        raise VisitCancelled("given up")

    monkeypatch.setattr(PeerEndpoint, "hand_over", claimed)
    monkeypatch.setattr(Session, "exchange", withheld)


def test_a_half_that_is_kept_back_costs_the_visit_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make_direct_deployment(tmp_path, "M=3", "C=5", "R=3", policy=Policy("skip", strikes=0))
    lie(stage, monkeypatch)
    for m in stage.partition.clients:
        join_directly(stage, m)
    stage.play()
    assert set(list_skips(stage)) == {(r, BAD) for r in range(3)}
    skipped = frozenset((r, m, 0) for r, m in list_skips(stage))
    expected = simulate(stage.spec, RunDirectory(tmp_path / "simulated"), skipped)
    assert (tmp_path / "model").read_bytes() == expected.model.read_bytes()


# Which clients have a visit at the same time: all of a round where they are averaged, one where x is handed over.
TOGETHER = {
    "algorithm=fedavg": 4,
    "algorithm=fedavg placement=whole": 4,
    "algorithm=fedavg S=3": 3,
    "algorithm=scaffold": 4,
    "algorithm=splitfed-v3": 4,
    "algorithm=sflg G=2": 2,
    "algorithm=fedseq G=2": 2,
    "algorithm=splitfed-v2": 1,  # the server's half goes through all clients in sequence
    "algorithm=ssl": 1,
    "algorithm=ssl S=4 order=replacement": 1,
    "algorithm=random-reshuffling": 1,
}


def played(folder: Path, *words: str) -> LocalDeployment:
    stage = LocalDeployment(small_spec(folder, *words), folder)
    for m in stage.partition.clients:
        stage.join(m)
    stage.play()
    return stage


def out(stage: LocalDeployment) -> Iterator[tuple[int, list[int]]]:
    """(round, the clients whose visits are out), whenever one more is."""
    lines = (stage.folder / "run" / "relay" / "events.jsonl").read_text().splitlines()
    leased: dict[int, list[int]] = defaultdict(list)
    for event in map(json.loads, lines):
        if event["event"] == "committed":
            leased[event["round"]].remove(event["client"])
        elif event["event"] == "leased":
            leased[event["round"]].append(event["client"])
            yield event["round"], list(leased[event["round"]])


@pytest.mark.parametrize("words", TOGETHER)
def test_as_many_visits_are_out_as_the_algorithm_makes_at_once(words: str, tmp_path: Path) -> None:
    stage = played(tmp_path, *words.split())
    most: dict[int, int] = defaultdict(int)
    for r, clients in out(stage):
        most[r] = max(most[r], len(clients))
    assert most == dict.fromkeys(range(stage.spec.R), TOGETHER[words])


def test_a_client_that_is_drawn_twice_has_one_visit_at_a_time(tmp_path: Path) -> None:
    stage = played(tmp_path, "algorithm=fedavg", "S=4", "order=replacement", "R=3")
    seen = [clients for _, clients in out(stage)]
    assert max(map(len, seen)) > 1 and all(len(set(clients)) == len(clients) for clients in seen)
    assert any(event["occurrence"] for event in stage.events("committed"))


def test_peer_to_peer_one_visit_is_out_at_a_time_where_the_server_relays(tmp_path: Path) -> None:
    stage = make_direct_deployment(tmp_path, "M=3", "C=5")
    for m in stage.partition.clients:
        join_directly(stage, m, "")
    stage.play()
    assert [len(clients) for _, clients in out(stage)] == [1] * 6


@pytest.mark.parametrize("words", ["algorithm=fedavg", "algorithm=splitfed-v3"])
def test_nobody_waits_for_another_in_the_middle_of_a_visit(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each client's first step leaves only when all four are at theirs, and its last when all have one behind them."""
    stage = LocalDeployment(small_spec(tmp_path, words, "R=1"), tmp_path)
    expected = simulate_run(stage.spec, tmp_path / "simulated")
    meeting, step = threading.Barrier(4), client_visit.RemoteServerHalf.step

    def met(calls: client_visit.RemoteServerHalf, k: int, *given: Any, **more: Any) -> messages.Reply:
        meeting.wait(300)
        return step(calls, k, *given, **more)

    monkeypatch.setattr(client_visit.RemoteServerHalf, "step", met)
    for m in stage.partition.clients:
        stage.join(m)
    stage.play()
    assert stage.serving.directory.model.read_bytes() == expected.model.read_bytes()
