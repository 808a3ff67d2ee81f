"""Which roles may join, read the status and fetch the model? And keys that change while programs run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from splitrelay.cli.console import mood
from splitrelay.cli.deploy_options import build_alarm, build_logger, warn_insecure
from splitrelay.cli.join import join
from splitrelay.cli.serve import build_authorizer, check_address, serve
from splitrelay.cli.status import collect, status
from splitrelay.deploy.authorization import authorize_by_certificate
from splitrelay.deploy.status_client import ask_status, collect_model
from splitrelay.errors import InputError, WorkError
from splitrelay.network.codec import VERSION
from splitrelay.network.grpc_channel import ServerRefused
from splitrelay.network.messages import Hello
from splitrelay.network.server_connection import EVALUATOR_NUMBER, FED_SERVER_NUMBER
from splitrelay.security.authority import Authority, open_authority
from splitrelay.security.revocation import Revocations
from tests.support.bare_server import PeerContext, copy_authority, issue_keys
from tests.support.deployment import LocalDeployment, simulate_run, small_spec
from tests.support.error_fields import expect_error

HOLDERS = ("client-0", "client-9", "judge", "boss", "both")


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return issue_keys(tmp_path_factory.mktemp("keys"))


def find_admitted(authority: Authority, check: Callable[[Any], str | None]) -> set[str]:
    """Return the names of the holders that `check` admits."""
    return {name for name in HOLDERS if check(PeerContext(authority.folder.parent / name)) is None}


def revocations(authority: Authority) -> Revocations:
    return Revocations(authority.folder.parent / "server" / "crl.pem")


def test_the_status_is_for_clients_of_the_run_evaluators_and_observers(issued: Authority) -> None:
    authorizer = authorize_by_certificate(revocations(issued), 4)
    assert find_admitted(issued, authorizer.status) == {"client-0", "judge", "boss", "both"}


@pytest.mark.parametrize(
    ("model_for", "who"),
    [
        (("observer",), {"boss"}),
        (("client",), {"client-0", "both"}),
        (("evaluator", "observer"), {"judge", "both", "boss"}),
        ((), set()),
    ],
)
def test_the_model_is_for_the_roles_that_the_server_names(
    model_for: tuple[str, ...], who: set[str], issued: Authority
) -> None:
    assert find_admitted(issued, authorize_by_certificate(revocations(issued), 4, model_for).collect) == who


def test_the_model_is_for_observers_unless_the_server_says_otherwise(issued: Authority) -> None:
    assert find_admitted(issued, authorize_by_certificate(revocations(issued), 4).collect) == {"boss"}


@pytest.mark.parametrize(
    ("m", "who"), [(0, {"client-0"}), (1, {"both"}), (EVALUATOR_NUMBER, {"judge", "both"}), (FED_SERVER_NUMBER, set())]
)
def test_each_joins_as_what_it_is(m: int, who: set[str], issued: Authority) -> None:
    authorizer = authorize_by_certificate(revocations(issued), 4)
    assert find_admitted(issued, lambda context: authorizer.join(context, Hello(VERSION, m))) == who


def test_who_may_not_have_the_model_is_told_who_may(tmp_path: Path) -> None:
    stage = LocalDeployment(small_spec(tmp_path), tmp_path, keys=True)
    seen: list[str] = []

    def listening(port: int) -> None:
        with pytest.raises(WorkError) as caught:
            collect_model(f"127.0.0.1:{port}", tmp_path / "client-1", False, tmp_path / "model")
        seen.append(str(caught.value))
        stage.stop.set()

    stage.serving.on_listening = listening
    with pytest.raises(KeyboardInterrupt):
        stage.play()
    assert seen == ["the server refused: this server gives the model to observers; client-1 is client"]
    assert not (tmp_path / "model").exists()


# Each program asks for its own keys


def refused(command: Any, *words: str) -> str:
    answer = CliRunner().invoke(command, words)
    assert isinstance(answer.exception, InputError) and answer.exception.exit_code == 2, answer
    return str(answer.exception)


@pytest.mark.parametrize("name", ["client-0", "boss"])
def test_serve_takes_only_a_servers_keys_and_does_not_listen(name: str, issued: Authority, tmp_path: Path) -> None:
    keys, port = issued.folder.parent / name, tmp_path / "port"
    words = ("data=digits", "--keys", str(keys), "--port-file", str(port), "--out", str(tmp_path / "run"))
    assert "needs the keys of a server" in refused(serve, *words)
    assert not port.exists() and not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["server", "boss"])
def test_join_takes_only_the_keys_of_those_who_take_part(name: str, issued: Authority, tmp_path: Path) -> None:
    words = ("127.0.0.1:1", "--keys", str(issued.folder.parent / name), "--data", "x.npz", "--patience", "1")
    assert "needs the keys of a client or an evaluator" in refused(join, *words)


@pytest.mark.parametrize("command", [status, collect])
def test_a_server_does_not_ask_a_server(command: Any, issued: Authority) -> None:
    words = ("127.0.0.1:1", "--keys", str(issued.folder.parent / "server"))
    assert "needs the keys of a client or an evaluator or an observer" in refused(command, *words)


def test_status_of_folder_raises_error_with_commands(tmp_path: Path) -> None:
    said = refused(status, str(tmp_path))
    assert "needs HOST:PORT" in said and f"splitrelay sweep --status {tmp_path}" in said


def test_a_client_without_data_and_an_evaluator_without_a_test_set_are_told_so(issued: Authority) -> None:
    place = issued.folder.parent
    assert "nothing to train on" in refused(join, "127.0.0.1:1", "--keys", str(place / "client-0"), "--test", "x.npz")
    assert "--data" in refused(join, "127.0.0.1:1", "--keys", str(place / "judge"))


def test_model_for_nobody_excludes_other_roles(issued: Authority) -> None:
    keys = str(issued.folder.parent / "server")
    words = ("data=digits", "--keys", keys, "--model-for", "nobody", "--model-for", "client")
    assert "--model-for nobody" in refused(serve, *words)


# What is weaker, or wrong, is said aloud


class Terminal:
    def __init__(self, is_one: bool) -> None:
        self.is_one = is_one

    def isatty(self) -> bool:
        return self.is_one


@pytest.mark.parametrize(("terminal", "begins"), [(True, "\x1b[31m\x1b[1mINSECURE"), (False, "INSECURE")])
def test_insecure_is_red_where_there_is_colour(
    terminal: bool, begins: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", Terminal(terminal).isatty)
    warn_insecure(True)
    assert capsys.readouterr().err.startswith(begins)


@pytest.mark.parametrize("command", [status, collect])
def test_who_asks_without_keys_is_warned(command: Any) -> None:
    answer = CliRunner().invoke(command, ["127.0.0.1:1", "--insecure"])
    assert answer.output.startswith("INSECURE: ")


def test_without_keys_only_this_machine_is_served() -> None:
    assert check_address(None, insecure=True) == "127.0.0.1:7443"
    assert check_address(None, insecure=False) == "0.0.0.0:7443"
    assert check_address("10.0.0.1:5", insecure=True) == "10.0.0.1:5"


def test_what_somebody_must_see_to_is_said_under_q(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mood, "quiet", True)
    build_logger("lines", who="server")("chatter")
    build_alarm("lines", who="server")("an important message")
    assert capsys.readouterr().err.endswith("server error: an important message\n")


def test_the_server_tells_of_a_bad_list_aloud(
    issued: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy_authority(issued, tmp_path)
    monkeypatch.setattr(mood, "quiet", True)
    server, boss = tmp_path / "here" / "server", PeerContext(tmp_path / "here" / "boss")
    _, authorizer = build_authorizer(small_spec(tmp_path), server, False, ["observer"], "lines")
    assert authorizer.status(boss) is None and capsys.readouterr().err == ""
    (server / "crl.pem").write_bytes(b"junk")
    assert authorizer.status(boss) is None
    assert "server error: revocation list 1" in capsys.readouterr().err


# An evaluator that is none of the clients


def judged(tmp_path: Path, has_evaluator: bool) -> LocalDeployment:
    stage = LocalDeployment(
        small_spec(tmp_path, "route=peer-to-peer"), tmp_path, keys=True, has_evaluator=has_evaluator
    )
    open_authority(tmp_path / "authority").issue_client("judge", evaluator=True)
    test = tmp_path / "data" / "test.npz"
    stage.join(EVALUATOR_NUMBER, keys=tmp_path / "judge", data=None, test=test, keep=tmp_path / "model")
    return stage


def test_an_evaluator_without_data_scores_and_writes_the_model(tmp_path: Path) -> None:
    stage = judged(tmp_path, has_evaluator=True)
    for m in stage.partition.clients:
        stage.join(m)
    expected = simulate_run(stage.spec, tmp_path / "simulated")
    rows = stage.play()
    assert (tmp_path / "model").read_bytes() == expected.model.read_bytes()
    assert [row["test_accuracy"] for row in rows] == [row["test_accuracy"] for row in expected.read_rows()]
    assert not stage.events("failed")


def test_an_evaluator_that_nobody_expects_is_refused(tmp_path: Path) -> None:
    stage = judged(tmp_path, has_evaluator=False)

    def listening(port: int) -> None:
        stage.listening.set()
        stage.threads[0].join(300)
        stage.stop.set()

    stage.serving.on_listening = listening
    with pytest.raises(KeyboardInterrupt):
        stage.play()
    assert isinstance(stage.words[EVALUATOR_NUMBER], ServerRefused) and "serve --judge expects another" in str(
        stage.words[EVALUATOR_NUMBER]
    )


def test_where_the_server_scores_no_judge_is_expected(tmp_path: Path) -> None:
    with expect_error(InputError, what="centralized", hint=("--judge", "route=peer-to-peer")):
        LocalDeployment(small_spec(tmp_path), tmp_path, has_evaluator=True)


def test_an_observer_sees_the_status_of_a_run(tmp_path: Path) -> None:
    stage = LocalDeployment(small_spec(tmp_path), tmp_path, keys=True)
    open_authority(tmp_path / "authority").issue_client("boss", observer=True)
    seen: list[dict[str, Any]] = []

    def listening(port: int) -> None:
        seen.append(ask_status(f"127.0.0.1:{port}", tmp_path / "boss", False))
        stage.stop.set()

    stage.serving.on_listening = listening
    with pytest.raises(KeyboardInterrupt):
        stage.play()
    assert seen[0]["phase"] == "waiting"


@pytest.mark.parametrize("name", ["missing.npz", "junk.npz"])
def test_data_that_cannot_be_read_are_told_before_a_server_is_called(tmp_path: Path, name: str) -> None:
    (tmp_path / "junk.npz").write_bytes(b"no images")
    words = ["127.0.0.1:1", "--insecure", "--client", "0", "--data", str(tmp_path / name)]
    error = CliRunner().invoke(join, words).exception
    assert isinstance(error, InputError) and name in str(error)
