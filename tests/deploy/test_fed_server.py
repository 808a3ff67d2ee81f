"""A fed server of its own: the same weights, and the main server never reads the clients' halves."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from splitrelay.chaos.proxies import TcpProxy
from splitrelay.deploy.fed_server import FedServer
from splitrelay.deploy.handshake import build_terms
from splitrelay.deploy.lease_limits import ServerBrokeSpec
from splitrelay.deploy.rehearsal import read_untimed_rows
from splitrelay.deploy.server_program import ServerConfig, ServerProgram
from splitrelay.errors import InputError
from splitrelay.network.messages import EvaluationRequest
from splitrelay.network.server_connection import FED_SERVER_NUMBER
from splitrelay.security.encryption import TamperedHalf
from tests.support.deployment import PATIENCE, LocalDeployment, simulate_run, small_spec
from tests.support.error_fields import expect_error
from tests.support.sealed_deployments import join_all, make_fed_deployment

WAYS = [
    "algorithm=fedavg engine=fast weighted=true clip=1",
    "algorithm=fedavg engine=reference gamma=0.5 order=replacement S=4",
    "algorithm=splitfed-v2 engine=fast",
    "algorithm=sflg G=2 engine=fast every=2 R=3",
]


@pytest.mark.parametrize("words", WAYS)
def test_with_a_fed_server_it_is_the_simulated_run(words: str, tmp_path: Path) -> None:
    stage = make_fed_deployment(tmp_path, *words.split())
    expected = simulate_run(stage.spec, tmp_path / "simulated")
    join_all(stage)
    stage.play()
    assert (tmp_path / "model").read_bytes() == expected.model.read_bytes()
    assert read_untimed_rows(stage.serving.directory) == read_untimed_rows(expected)
    assert len(stage.events("combined")) == stage.spec.R


def test_nothing_at_the_main_server_holds_a_clients_half(tmp_path: Path) -> None:
    stage = make_fed_deployment(tmp_path, "algorithm=fedavg", "R=1")
    join_all(stage)
    stage.play()
    first = next(iter(load_file(tmp_path / "model").values())).tobytes()
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) > 3 and not stage.serving.directory.model.exists()
    assert not [path for path in files if first[:64] in path.read_bytes()]


def test_a_fed_server_that_falls_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one falls in the middle of its first mean; another one takes its place."""
    stage = make_fed_deployment(tmp_path, "algorithm=fedavg")
    expected = simulate_run(stage.spec, tmp_path / "simulated")
    fallen = threading.Event()

    def falling(joined: Any, *_: Any) -> None:
        if not fallen.is_set():
            fallen.set()
            joined.session.disconnect()
            stage.join(FED_SERVER_NUMBER, keys=tmp_path / "fed", data=None, fed=True)
            raise RuntimeError("as if it had been killed")

    whole = FedServer.answer_request

    def fall_first(server: FedServer, *words: Any) -> None:
        falling(stage.clients[FED_SERVER_NUMBER])
        whole(server, *words)

    monkeypatch.setattr(FedServer, "answer_request", fall_first)
    join_all(stage)
    stage.play()
    assert fallen.is_set()
    assert (tmp_path / "model").read_bytes() == expected.model.read_bytes()


def stopped_after(stage: LocalDeployment, visits: int) -> None:
    """The server is told to stop when so many visits are committed."""

    def watch(port: int) -> None:
        note = stage.serving.journal.note

        def noted(event: str, **facts: Any) -> None:
            note(event, **facts)
            if len(stage.events("committed")) == visits:
                stage.stop.set()

        stage.serving.journal.note = noted  # type: ignore[method-assign]
        stage.listening.set()

    stage.serving.on_listening = watch


def test_a_restarted_main_server_goes_on(tmp_path: Path) -> None:
    first = make_fed_deployment(tmp_path, "algorithm=fedavg", "R=3")
    expected = simulate_run(first.spec, tmp_path / "simulated")
    stopped_after(first, 6)  # in the middle of the second round
    join_all(first)
    with pytest.raises(KeyboardInterrupt):
        first.play()
    second = make_fed_deployment(tmp_path, "algorithm=fedavg", "R=3")
    join_all(second)
    second.play()
    assert (tmp_path / "model").read_bytes() == expected.model.read_bytes()
    committed = [(event["round"], event["client"]) for event in second.events("committed")]
    assert len(set(committed)) == len(committed)


def test_a_fed_server_that_stays_makes_nothing_twice(tmp_path: Path) -> None:
    """The main server falls after several means and goes on from an older checkpoint; the fed server never left."""
    words = ("algorithm=fedavg", "R=5", "every=4")
    first = make_fed_deployment(tmp_path, *words)
    expected = simulate_run(first.spec, tmp_path / "simulated")
    stopped_after(first, 10)  # in the middle of the third round
    lines = list[TcpProxy]()  # another program may take the port of the first server meanwhile

    def reach_server() -> str:
        lines.append(TcpProxy(first.serving.port))
        return f"127.0.0.1:{lines[0].port}"

    fed = {"keys": tmp_path / "fed", "data": None, "fed": True}
    first.join(FED_SERVER_NUMBER, address=reach_server, stays=True, **fed)
    fed_server = first.threads.pop()
    for m in first.partition.clients:
        keep = {"test": tmp_path / "data" / "test.npz", "keep": tmp_path / "model"}
        first.join(m, **(keep if m == first.spec.evaluator else {}))
    with pytest.raises(KeyboardInterrupt):
        first.play()
    second = make_fed_deployment(tmp_path, *words)
    second.serving.on_listening = lambda port: (setattr(lines[0], "target", port), second.listening.set())  # type: ignore[func-returns-value, assignment]
    for m in second.partition.clients:
        second.join(m, **(keep if m == second.spec.evaluator else {}))
    second.play()
    fed_server.join(PATIENCE)
    lines[0].close()
    assert (tmp_path / "model").read_bytes() == expected.model.read_bytes()
    committed = [(event["round"], event["client"]) for event in second.events("committed")]
    assert len(set(committed)) == len(committed)
    assert len(second.events("combined")) == 5


@pytest.mark.parametrize(
    "words", ["algorithm=ssl", "algorithm=fedavg placement=whole", "algorithm=scaffold", "route=peer-to-peer"]
)
def test_where_no_halves_are_averaged_a_fed_server_is_refused(words: str, tmp_path: Path) -> None:
    with expect_error(InputError, value=True, limit=("placement=cut", "route=centralized")):
        ServerProgram(ServerConfig(small_spec(tmp_path, *words.split()), tmp_path / "run", fed=True), print)


def test_a_fed_server_takes_no_more_bytes_than_all_halves_have(tmp_path: Path) -> None:
    """A malicious main server could fill its memory."""
    stage = make_fed_deployment(tmp_path, "algorithm=fedavg", "M=3", "C=9")
    terms = build_terms(stage.serving.spec, stage.serving.data, sealed=True)
    fed = FedServer(stage.serving.spec, terms, tmp_path / "fed")
    request = EvaluationRequest(1, 0, fed.most_bytes + 1, b"", 1, 1, recipe="{}")
    session: Any = None  # nothing is received
    with pytest.raises(ServerBrokeSpec) as found:
        fed.answer_request(session, request)
    assert str(fed.most_bytes) in str(found.value.limit)


@pytest.mark.parametrize("count", [1, 40])
def test_a_fed_server_combines_no_more_halves_than_an_algorithm_uses(count: int, tmp_path: Path) -> None:
    """A half of visit 0 has no bytes: a short recipe of a malicious main server could ask for any number of copies."""
    stage = make_fed_deployment(tmp_path, "algorithm=fedavg", "M=3", "C=9")
    fed = FedServer(stage.serving.spec, build_terms(stage.serving.spec, stage.serving.data), tmp_path / "fed")
    recipe = json.dumps({"halves": [[0, 0, 0]] * count, "steps": ["half"] + ["half", "+"] * (count - 1)})
    if count == 1:
        assert fed.combine(b"", recipe).tolist() == fed.x0.tolist()
        return
    with expect_error(TamperedHalf):
        fed.combine(b"", recipe)


def test_a_client_that_insists_on_it_does_not_show_its_half(tmp_path: Path) -> None:
    stage = LocalDeployment(small_spec(tmp_path, "algorithm=fedavg"), tmp_path, keys=True)

    def disconnect(port: int) -> None:
        stage.listening.set()
        stage.join(0, sealed=True)
        stage.threads[0].join(300)
        stage.stop.set()

    stage.serving.on_listening = disconnect
    with pytest.raises(KeyboardInterrupt):
        stage.play()
    assert "reads the clients' half" in str(stage.words[0])
