"""Mutual TLS over sockets: which keys are accepted by which server."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest

from splitrelay.security.authority import Authority
from splitrelay.security.identity import (
    AccessDenied,
    Identity,
    authenticate_peer,
    build_channel_credentials,
    build_server_credentials,
    load_identity,
)
from splitrelay.security.revocation import Revocations
from tests.support.error_fields import expect_error
from tests.support.key_folders import DAY, consortium, copied

DEADLINE = 300.0


class WhoAmIHandler(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers with the name, role and number of the authenticated peer."""

    def __init__(self, revocations: Revocations) -> None:
        self.revocations = revocations

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(self.answer)

    def answer(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            peer = authenticate_peer(context.auth_context(), self.revocations)
        except AccessDenied as error:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        return f"{peer.name} {peer.role} {peer.m}".encode()


@dataclass(frozen=True)
class RunningServer:
    """A consortium and the port of its server."""

    authority: Authority
    port: int

    def load_identity(self, name: str) -> Identity:
        return load_identity(self.authority.folder.parent / name)

    def ask(self, credentials: grpc.ChannelCredentials, host: str = "127.0.0.1") -> str:
        return send_request(credentials, f"{host}:{self.port}")

    def get_error(self, credentials: grpc.ChannelCredentials) -> grpc.StatusCode:
        """Return the error of a request, and check that others are still accepted."""
        code, _ = get_error(credentials, f"127.0.0.1:{self.port}")
        assert self.ask(build_channel_credentials(self.load_identity("boss"))) == "boss observer None"
        return code


def send_request(credentials: grpc.ChannelCredentials, target: str) -> str:
    with grpc.secure_channel(target, credentials) as channel:
        return bytes(channel.unary_unary("/test/ask")(b"", timeout=DEADLINE)).decode()


def get_error(credentials: grpc.ChannelCredentials, target: str) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        send_request(credentials, target)
    return caught.value.code(), caught.value.details()


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return consortium(tmp_path_factory.mktemp("keys"))


def run_server(authority: Authority, name: str) -> Iterator[RunningServer]:
    folder = authority.folder.parent / name
    server = grpc.server(ThreadPoolExecutor(1), handlers=[WhoAmIHandler(Revocations(folder / "crl.pem"))])
    port = server.add_secure_port("127.0.0.1:0", build_server_credentials(load_identity(folder)))
    server.start()
    yield RunningServer(authority, port)
    server.stop(None).wait(DEADLINE)


@pytest.fixture
def here(issued: Authority, tmp_path: Path) -> Iterator[RunningServer]:
    yield from run_server(copied(issued, tmp_path / "here"), "server")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_client_is_accepted_with_its_number(here: RunningServer, host: str) -> None:
    assert here.ask(build_channel_credentials(here.load_identity("hospital-3")), host) == "hospital-3 client 3"


def test_observer_is_accepted(here: RunningServer) -> None:
    assert here.ask(build_channel_credentials(here.load_identity("boss"))) == "boss observer None"


def test_client_with_host_accepts_connections(issued: Authority) -> None:
    for peer in run_server(issued, "hospital-4"):
        assert peer.ask(build_channel_credentials(peer.load_identity("hospital-3"))) == "hospital-3 client 3"


def test_asyncio_server_authenticates_peer(issued: Authority) -> None:
    folder = issued.folder.parent / "server"
    revocations = Revocations(folder / "crl.pem")

    async def answer(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return authenticate_peer(context.auth_context(), revocations).name.encode()

    async def conversation() -> bytes:
        server = grpc.aio.server()
        methods = {"ask": grpc.unary_unary_rpc_method_handler(answer)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", methods),))
        port = server.add_secure_port("127.0.0.1:0", build_server_credentials(load_identity(folder)))
        await server.start()
        caller = build_channel_credentials(load_identity(issued.folder.parent / "hospital-3"))
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", caller) as channel:
            found = await channel.unary_unary("/test/ask")(b"", timeout=DEADLINE)
        await server.stop(None)
        return bytes(found)

    assert asyncio.run(conversation()) == b"hospital-3"


def test_connection_without_certificate_fails(here: RunningServer) -> None:
    assert here.get_error(grpc.ssl_channel_credentials(here.load_identity("boss").ca)) == grpc.StatusCode.UNAVAILABLE


def test_certificate_of_other_authority_with_same_name_fails(here: RunningServer, tmp_path: Path) -> None:
    """The peer trusts our server and shows a certificate for client 3 of an authority with our name."""
    consortium(tmp_path / "other")
    forged = load_identity(tmp_path / "other" / "hospital-3")
    credentials = grpc.ssl_channel_credentials(here.load_identity("boss").ca, forged.key, forged.certificate)
    assert here.get_error(credentials) == grpc.StatusCode.UNAVAILABLE


def test_certificate_of_server_fails_for_client(here: RunningServer) -> None:
    server = here.load_identity("server")
    credentials = grpc.ssl_channel_credentials(server.ca, server.key, server.certificate)
    assert here.get_error(credentials) == grpc.StatusCode.UNAVAILABLE


def test_expired_certificate_fails(tmp_path: Path) -> None:
    old = datetime.now(UTC) - 3 * DAY
    authority = consortium(tmp_path, now=old)
    authority.issue_client("late", 8, days=1, now=old)
    late = load_identity(tmp_path / "late", old)
    credentials = grpc.ssl_channel_credentials(late.ca, late.key, late.certificate)
    for here in run_server(authority, "server"):
        assert here.get_error(credentials) == grpc.StatusCode.UNAVAILABLE


def test_revoked_client_is_rejected_immediately(here: RunningServer) -> None:
    credentials = build_channel_credentials(here.load_identity("hospital-3"))
    assert here.ask(credentials) == "hospital-3 client 3"
    here.authority.revoke("hospital-3")
    code, details = get_error(credentials, f"127.0.0.1:{here.port}")
    assert code == grpc.StatusCode.PERMISSION_DENIED and "hospital-3" in details
    assert here.ask(build_channel_credentials(here.load_identity("hospital-4"))) == "hospital-4 client 4"


def test_revoked_client_is_rejected_on_open_connection(here: RunningServer) -> None:
    with grpc.secure_channel(
        f"127.0.0.1:{here.port}", build_channel_credentials(here.load_identity("hospital-3"))
    ) as channel:
        ask = channel.unary_unary("/test/ask")
        assert ask(b"", timeout=DEADLINE) == b"hospital-3 client 3"
        here.authority.revoke("hospital-3")
        with pytest.raises(grpc.RpcError) as caught:
            ask(b"", timeout=DEADLINE)
    assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED


def test_client_rejects_server_of_other_authority(here: RunningServer, tmp_path: Path) -> None:
    consortium(tmp_path / "other")
    assert (
        here.get_error(build_channel_credentials(load_identity(tmp_path / "other" / "hospital-3")))
        == grpc.StatusCode.UNAVAILABLE
    )


def test_server_is_rejected_at_other_host(tmp_path: Path) -> None:
    authority = consortium(tmp_path)
    authority.issue_server("elsewhere", ["s.example.org"])
    for wrong in run_server(authority, "elsewhere"):
        code, _ = get_error(build_channel_credentials(wrong.load_identity("hospital-3")), f"127.0.0.1:{wrong.port}")
        assert code == grpc.StatusCode.UNAVAILABLE


def test_client_is_rejected_as_server(issued: Authority) -> None:
    """The certificate of client 3 has no host and is not allowed to serve."""
    client = load_identity(issued.folder.parent / "hospital-3")
    credentials = grpc.ssl_server_credentials([(client.key, client.certificate)], client.ca, True)
    server = grpc.server(ThreadPoolExecutor(1), handlers=[WhoAmIHandler(Revocations(client.revocation_file))])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    caller = build_channel_credentials(load_identity(issued.folder.parent / "hospital-4"))
    assert get_error(caller, f"127.0.0.1:{port}")[0] == grpc.StatusCode.UNAVAILABLE
    server.stop(None).wait(DEADLINE)


def test_missing_or_invalid_certificate_is_denied(issued: Authority) -> None:
    revocations = Revocations(issued.folder / "crl.pem")
    with pytest.raises(AccessDenied):
        authenticate_peer({}, revocations)
    with pytest.raises(AccessDenied):
        authenticate_peer({"x509_pem_cert": [b"junk"]}, revocations)


def test_certificate_that_expires_during_connection_is_denied(issued: Authority) -> None:
    client = load_identity(issued.folder.parent / "hospital-3")
    context = {"x509_pem_cert": [client.certificate]}
    revocations = Revocations(client.revocation_file)
    assert authenticate_peer(context, revocations, now=client.not_after).m == 3
    with pytest.raises(AccessDenied):
        authenticate_peer(context, revocations, now=client.not_after + DAY)


def test_certificate_of_server_is_denied(issued: Authority) -> None:
    server = load_identity(issued.folder.parent / "server")
    with pytest.raises(AccessDenied):
        authenticate_peer({"x509_pem_cert": [server.certificate]}, Revocations(server.revocation_file))


@pytest.mark.parametrize("name", ["hospital-4", "boss"])
def test_number_of_other_client_is_denied(issued: Authority, name: str) -> None:
    caller = load_identity(issued.folder.parent / name)
    with expect_error(AccessDenied, what=(name, "client 3"), hint=True):
        authenticate_peer({"x509_pem_cert": [caller.certificate]}, Revocations(caller.revocation_file), m=3)


def test_own_number_is_accepted(issued: Authority) -> None:
    caller = load_identity(issued.folder.parent / "hospital-3")
    assert authenticate_peer({"x509_pem_cert": [caller.certificate]}, Revocations(caller.revocation_file), m=3).m == 3
