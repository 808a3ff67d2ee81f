"""Which peers may send a half to a client's receiver, and which halves does it accept?"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from splitrelay.cli.deploy_options import build_logger
from splitrelay.cli.status import status
from splitrelay.deploy import status_client
from splitrelay.deploy.status_client import ask_status
from splitrelay.errors import InputError, WorkError, escape_unprintable
from splitrelay.network import limits, tensor_transfer
from splitrelay.network.codec import VERSION, BadMessage, Bounds, decode, encode
from splitrelay.network.grpc_channel import ServerEnded, ServerRefused
from splitrelay.network.messages import (
    Accept,
    Bye,
    Cancel,
    Chunk,
    Fail,
    HandoverReport,
    Hello,
    Lease,
    Leave,
    Refuse,
    Terms,
    Welcome,
)
from splitrelay.network.peer_transfer import MOST_HALVES, PeerEndpoint, PeerUnreachable
from splitrelay.network.server import NetworkServer
from splitrelay.network.server_connection import ServerContext
from splitrelay.network.status_rpc import status_handler
from splitrelay.security.authority import Authority, create_authority
from splitrelay.security.credential_reload import IdentityReloader
from splitrelay.security.identity import load_identity
from splitrelay.security.sealing_session import Sealer
from tests.support.error_fields import expect_error
from tests.support.key_folders import copied


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    authority = create_authority(tmp_path_factory.mktemp("keys") / "authority")
    authority.issue_client("reached", 0, hosts=["127.0.0.1"])
    authority.issue_client("elsewhere", 1, hosts=["127.0.0.2"])
    authority.issue_client("caller", 2)
    authority.issue_client("boss", observer=True)
    return authority


@pytest.fixture
def authority(issued: Authority, tmp_path: Path) -> Authority:
    return copied(issued, tmp_path)


def post(authority: Authority, name: str) -> PeerEndpoint:
    return PeerEndpoint(
        IdentityReloader(load_identity(authority.folder.parent / name), lambda text: None), lambda text: None
    )


@pytest.fixture
def reached(authority: Authority) -> Iterator[PeerEndpoint]:
    made = post(authority, "reached")
    made.listen("127.0.0.1:0")
    made.expect(limits.HALF)
    yield made
    made.close()


def half(authority: Authority, content: bytes = b"half") -> bytes:
    return Sealer(authority.folder.parent / "caller", "9f").seal(content, visit=1, fence=3)


def lease_of(word: HandoverReport) -> Lease:
    return Lease(4, 2, 0, 0, 0, 1, 0.1, bytes=word.bytes, sha256=word.sha256, direct=True)


def test_a_half_is_brought_once_and_taken_once(authority: Authority, reached: PeerEndpoint) -> None:
    blob = half(authority, bytes(3 * 2**20))
    word = post(authority, "caller").sender.send(reached.address, 3, blob)
    assert reached.take_half(lease_of(word)) == blob
    assert reached.take_half(lease_of(word)) is None


def test_only_the_last_few_are_kept(authority: Authority, reached: PeerEndpoint) -> None:
    sender = post(authority, "caller").sender
    words = [sender.send(reached.address, 3, half(authority, bytes([n]))) for n in range(MOST_HALVES + 1)]
    assert [reached.take_half(lease_of(word)) is None for word in words] == [True] + [False] * MOST_HALVES


def test_who_is_no_client_is_refused(authority: Authority, reached: PeerEndpoint) -> None:
    with expect_error(PeerUnreachable, what=reached.address, value="boss"):
        post(authority, "boss").sender.send(reached.address, 3, half(authority))


def test_who_is_revoked_is_refused(authority: Authority, reached: PeerEndpoint) -> None:
    sender, blob = post(authority, "caller").sender, half(authority)
    authority.revoke("caller")
    with expect_error(PeerUnreachable, what=reached.address, value=("caller", "revoked")):
        sender.send(reached.address, 3, blob)


def test_what_is_no_sealed_half_or_too_long_is_refused(authority: Authority, reached: PeerEndpoint) -> None:
    with expect_error(PeerUnreachable, what=reached.address, value="1000 bytes"):
        post(authority, "caller").sender.send(reached.address, 3, b"x" * 1000)
    reached.expect(100)
    with expect_error(PeerUnreachable, what=reached.address, value="<= 100 bytes"):
        post(authority, "caller").sender.send(reached.address, 3, half(authority, bytes(100)))


def test_a_client_that_knows_no_spec_takes_no_half(authority: Authority) -> None:
    """Otherwise another client could fill its memory while it waits for the server."""
    made = post(authority, "reached")
    made.listen("127.0.0.1:0")
    with expect_error(PeerUnreachable, what=made.address, value="<= 0 bytes"):
        post(authority, "caller").sender.send(made.address, 3, half(authority))
    made.close()


def test_a_certificate_for_another_host_is_not_believed(authority: Authority) -> None:
    elsewhere = post(authority, "elsewhere")
    elsewhere.listen("127.0.0.1:0")
    assert elsewhere.address.startswith("127.0.0.2:")
    port = elsewhere.address.rpartition(":")[2]
    with pytest.raises(PeerUnreachable):
        post(authority, "caller").sender.send(f"127.0.0.1:{port}", 3, half(authority))
    elsewhere.close()


def test_whoever_cannot_be_reached_is_not_tried_again_at_once(authority: Authority) -> None:
    sender = post(authority, "caller").sender
    with expect_error(PeerUnreachable, what="127.0.0.1:1", value="127.0.0.1:1"):  # the second is gRPC's own message
        sender.send("127.0.0.1:1", 3, half(authority))
    with expect_error(PeerUnreachable, what="127.0.0.1:1", value=None):  # nothing was tried
        sender.send("127.0.0.1:1", 3, half(authority))


def test_a_client_without_a_host_cannot_listen(authority: Authority) -> None:
    with expect_error(InputError, what="caller", hint="--host HOST"):
        post(authority, "caller").listen("127.0.0.1:0")


# Texts of a peer cannot forge a line of a log, nor steer a terminal.
FORGED = "all is well\n12:00:00 server: \x1b[2J\x1b]0;title\x07 \u202egnp.exe \x85\u2028\r\x00end"


@pytest.mark.parametrize(
    ("message", "name"),
    [
        (Hello(VERSION, 1, FORGED), "software"),
        (Accept("h", "fast", FORGED, 5), "cpu"),
        (Accept("h", FORGED, "cpu", 5), "engine"),
        (Accept(FORGED, "fast", "cpu", 5), "spec_hash"),
        (Accept("h", "fast", "cpu", 5, address=FORGED), "address"),
        (Welcome(FORGED), "note"),
        (Refuse(FORGED), "why"),
        (Fail(1, FORGED), "why"),
        (Cancel(1, FORGED), "why"),
        (HandoverReport(1, 0, b"", FORGED), "why"),
        (Leave(FORGED), "why"),
        (Bye(FORGED), "why"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_every_text_of_a_message_can_be_printed(message: Any, name: str) -> None:
    text = getattr(decode(encode(message)), name)
    assert text.isprintable() and text.startswith("all is well\\n") and len(text) <= limits.TEXT


def test_a_text_stays_within_its_length() -> None:
    message = decode(encode(Leave("\x1b" * limits.TEXT)))
    assert isinstance(message, Leave) and len(message.why) <= limits.TEXT


def test_what_is_parsed_stays_as_it_is() -> None:
    terms = Terms("R = 2\nK = 3\n", "h", "fast", "cpu", (1, 2, 2), ("a\tb",), (0.0,), (1.0,), 255, heartbeat=1.0)
    assert decode(encode(terms)) == terms


@pytest.mark.parametrize(
    "error", [WorkError("x", value=FORGED), InputError(FORGED), ServerRefused(FORGED, True), ServerEnded(FORGED, False)]
)
def test_an_error_is_one_line_without_escapes(error: Exception) -> None:
    assert str(error).isprintable()


def test_ordinary_letters_stay() -> None:
    assert escape_unprintable("Müller, 東京, ± 3 %") == "Müller, 東京, ± 3 %"


def test_the_log_is_one_line_per_message(capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("lines", "json"):
        build_logger(form, who="server")(FORGED)
    lines, entry = capsys.readouterr().err.split("\n")[:-1]
    assert lines.isprintable() and json.loads(entry)["message"].isprintable()


def test_short_chunks_take_no_more_memory_than_their_bytes() -> None:
    """Kept one by one, each would take twenty times its length."""
    half = tensor_transfer.Assembly(10**6)
    half.add(Chunk(1, 0, bytes(2)))
    with pytest.raises(BadMessage):
        half.add(Chunk(1, 1, bytes(2)))


def test_a_half_is_put_together_from_chunks_of_any_allowed_length() -> None:
    blob = bytes(range(256)) * 10
    pieces = (blob[:1000], blob[1000:1512], blob[1512:-3], blob[-3:])
    half = tensor_transfer.Assembly(len(blob))
    for k, piece in enumerate(pieces):
        half.add(Chunk(1, k, piece))
    assert half.blob(len(blob), tensor_transfer.compute_sha256(blob)) == blob


def test_a_report_can_be_printed() -> None:
    report = {"phase": FORGED, "clients": [{"client": 1, FORGED: [FORGED]}]}
    terms = Terms("", "h", "fast", "cpu", (1, 2, 2), ("a",), (0.0,), (1.0,), 255, heartbeat=60.0)
    network = NetworkServer(ServerContext(terms, Bounds(), 0, 1))
    network.add_method("Status", status_handler(lambda: json.dumps(report), lambda context: None))
    try:
        found = ask_status(f"127.0.0.1:{network.start('127.0.0.1:0')}", None, insecure=True)
    finally:
        network.close("enough", again=False)
    assert found["phase"].isprintable()
    assert found["clients"][0] == {"client": 1, escape_unprintable(FORGED): [escape_unprintable(FORGED)]}


@pytest.mark.parametrize(
    "text", ["{}", "[]", "5", "[" * 900 + "]" * 900, '{"a":' * 900 + "1" + "}" * 900, '{"clients": [1]}']
)
def test_a_report_of_a_malicious_server_is_an_error(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_client, "fetch_status", lambda line, address: text)
    result = CliRunner().invoke(status, ["127.0.0.1:1", "--insecure"])
    assert isinstance(result.exception, WorkError)
