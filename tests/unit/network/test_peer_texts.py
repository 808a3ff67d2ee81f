"""Texts of a peer cannot forge a line of a log, nor steer a terminal."""

import json
from typing import Any

import pytest

from splitrelay.cli.deploy_options import build_logger
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
    Leave,
    Refuse,
    Terms,
    Welcome,
)
from splitrelay.network.server import NetworkServer
from splitrelay.network.server_connection import ServerContext
from splitrelay.network.status_rpc import status_handler

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
