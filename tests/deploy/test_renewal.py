"""Revoked or renewed while programs run: what holds at the next grant, the next dial, the next handshake?"""

import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path
from queue import Empty
from typing import Any

import grpc
import pytest

from splitrelay.network.codec import VERSION
from splitrelay.network.grpc_channel import ConnectionLost, ServerRefused
from splitrelay.network.messages import Chunk, Deposit, Finish, Hello
from splitrelay.network.server import NetworkServer
from splitrelay.network.shared_event_loop import MessageReceived
from splitrelay.network.tensor_transfer import compute_sha256
from splitrelay.security.authority import Authority, open_authority
from splitrelay.security.certificates import parse_peer
from splitrelay.security.credential_reload import IdentityReloader, build_reloading_credentials
from splitrelay.security.identity import build_channel_credentials, load_identity
from tests.support.bare_server import copy_authority, issue_keys, lease, run_bare_server, wait_until
from tests.support.deployment import LocalDeployment, small_spec
from tests.support.error_fields import expect_error


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return issue_keys(tmp_path_factory.mktemp("keys"))


# Revocation, at the moment of a grant


def test_a_lease_is_not_granted_to_whoever_was_revoked_just_before() -> None:
    out: list[str] = []
    with run_bare_server(admit=lambda context, hello: out[0] if out else None) as here:
        connection = here.joined()
        out.append("client 0 is revoked")
        here.say(0, lease(), Chunk(1, 0, b"the half"))
        with expect_error(ServerRefused, what="client 0 is revoked"):
            connection.receive(300)


def test_what_a_revoked_client_deposits_does_not_count() -> None:
    out: list[str] = []
    with run_bare_server(admit=lambda context, hello: out[0] if out else None) as here:
        connection, half = here.leased(), b"the half"
        for word in (Finish(1, 0, 0.0), Chunk(1, 0, half)):
            connection.send(word)
        wait_until(lambda: here.network.connections.clients[0].half)
        out.append("client 0 is revoked")
        connection.send(Deposit(1, len(half), compute_sha256(half)))
        with expect_error(ServerRefused, what="client 0 is revoked"):
            connection.receive(300)
        wait_until(lambda: here.network.connections.get_clients() == {})
        assert [type(event.message).__name__ for event in heard(here.network)] == ["Ready", "Finish"]


def heard(network: NetworkServer) -> list[MessageReceived]:
    """What the training thread was told so far."""
    found = []
    with suppress(Empty):
        while True:
            found.append(network.connections.inbox.get(timeout=0.01))
    return [event for event in found if isinstance(event, MessageReceived)]


def test_a_revoked_client_comes_no_further_than_its_greeting() -> None:
    with run_bare_server(admit=lambda context, hello: "client 0 is revoked") as here:
        connection = here.call()
        connection.send(Hello(VERSION, 0))
        with expect_error(ServerRefused, what="client 0 is revoked") as caught:
            connection.receive(300)
        assert caught.value.final


# Keys that are renewed


def test_renewed_keys_are_those_of_the_next_question(issued: Authority, tmp_path: Path) -> None:
    authority = copy_authority(issued, tmp_path)
    keys = IdentityReloader(load_identity(tmp_path / "here" / "client-0"), pytest.fail)
    before = keys.get_identity()
    assert keys.get_identity() is before
    authority.renew("client-0")
    assert keys.get_identity().serial != before.serial
    assert keys.get_identity() == load_identity(tmp_path / "here" / "client-0")


def test_keys_that_are_only_half_there_are_told_of_once_and_the_old_ones_stay(
    issued: Authority, tmp_path: Path
) -> None:
    authority, warnings = copy_authority(issued, tmp_path), list[str]()
    folder = tmp_path / "here" / "client-0"
    keys = IdentityReloader(load_identity(folder), warnings.append)
    before, old = keys.get_identity(), (folder / "key.pem").read_bytes()
    authority.renew("client-0")
    new = (folder / "key.pem").read_bytes()
    (folder / "key.pem").write_bytes(old)
    assert [keys.get_identity() for _ in range(3)] == [before] * 3
    assert len(warnings) == 1 and "stay in use" in warnings[0]
    (folder / "key.pem").write_bytes(new)
    assert keys.get_identity().serial != before.serial


def test_renewing_is_not_becoming_somebody_else(issued: Authority, tmp_path: Path) -> None:
    copy_authority(issued, tmp_path)
    warnings, folder = list[str](), tmp_path / "here" / "client-0"
    keys = IdentityReloader(load_identity(folder), warnings.append)
    for file in (tmp_path / "here" / "client-9").iterdir():
        file.replace(folder / file.name)
    assert keys.get_identity().name == "client-0" and "another holder" in warnings[0]


def served(port: int, folder: Path) -> int:
    """The serial number of the certificate that the server shows."""
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    context.set_alpn_protocols(["h2"])
    line = socket.create_connection(("127.0.0.1", port), timeout=300)
    with line, context.wrap_socket(line, server_hostname="127.0.0.1") as shown:
        found = shown.getpeercert()
    assert found is not None
    return int(str(found["serialNumber"]), 16)


def test_a_server_shows_its_renewed_certificate_without_a_restart(issued: Authority, tmp_path: Path) -> None:
    authority, place = copy_authority(issued, tmp_path), tmp_path / "here"
    keys = IdentityReloader(load_identity(place / "server"), pytest.fail)
    mine = build_channel_credentials(load_identity(place / "client-0"))
    with run_bare_server(build_reloading_credentials(keys)) as here:
        old = here.joined(0, mine)
        assert served(here.port, place / "client-0") == load_identity(place / "server").serial
        authority.renew("server")
        assert served(here.port, place / "client-0") == load_identity(place / "server").serial
        assert not old.wait_for_message(0.1)  # open connections stay
        here.joined(1, mine)


def test_whoever_shows_no_certificate_does_not_get_past_renewed_credentials(issued: Authority) -> None:
    place = issued.folder.parent
    keys, bare = IdentityReloader(load_identity(place / "server"), pytest.fail), load_identity(place / "boss").ca
    with run_bare_server(build_reloading_credentials(keys)) as here, expect_error(ConnectionLost, value="127.0.0.1"):
        here.call(grpc.ssl_channel_credentials(bare)).receive(300)


def test_a_client_dials_with_the_keys_that_it_has_by_then(tmp_path: Path) -> None:
    stage, seen = LocalDeployment(small_spec(tmp_path), tmp_path, keys=True), list[int]()
    admit = stage.offer.admit.join

    def noted(context: Any, hello: Hello) -> str | None:
        serial = parse_peer(next(iter(context.auth_context()["x509_pem_cert"]))).serial
        if serial not in seen:
            seen.append(serial)
        return admit(context, hello)

    object.__setattr__(stage.offer.admit, "join", noted)

    def renewing() -> None:
        wait_until(lambda: 0 in stage.serving.network.connections.get_clients())
        open_authority(tmp_path / "authority").renew("client-0")
        connection = stage.clients[0].session.connection
        assert connection is not None
        connection.channel.close()  # the connection is lost
        wait_until(lambda: len(seen) == 2)
        stage.stop.set()

    stage.join(0)
    stage.threads.append(threading.Thread(target=lambda: stage.listening.wait(300) and renewing()))
    stage.threads[-1].start()
    with pytest.raises(KeyboardInterrupt):
        stage.play()
    assert seen[-1] == load_identity(tmp_path / "client-0").serial
