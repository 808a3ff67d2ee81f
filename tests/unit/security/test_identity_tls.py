"""Over a real socket: who gets in with the folders that were issued, and who does not?"""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest

from splitrelay.errors import WorkError
from splitrelay.security.authority import Authority
from splitrelay.security.identity import (
    Identity,
    NotAdmitted,
    admitted,
    channel_credentials,
    load_identity,
    server_credentials,
)
from splitrelay.security.revocation import Revocations
from tests.support.key_folders import DAY, consortium, copied

DEADLINE = 20.0


class Door(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Tells whoever is admitted who it is."""

    def __init__(self, revocations: Revocations) -> None:
        self.revocations = revocations

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(self.answer)

    def answer(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            who = admitted(context.auth_context(), self.revocations)
        except NotAdmitted as error:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        return f"{who.name} {who.role} {who.m}".encode()


@dataclass(frozen=True)
class Here:
    """A consortium whose server listens."""

    authority: Authority
    port: int

    def identity(self, name: str) -> Identity:
        return load_identity(self.authority.folder.parent / name)

    def ask(self, credentials: grpc.ChannelCredentials, host: str = "127.0.0.1") -> str:
        return asked(credentials, f"{host}:{self.port}")

    def refusal(self, credentials: grpc.ChannelCredentials) -> grpc.StatusCode:
        """How the server refuses them, while somebody else gets in."""
        code, _ = refusal(credentials, f"127.0.0.1:{self.port}")
        assert self.ask(channel_credentials(self.identity("boss"))) == "boss observer None"
        return code


def asked(credentials: grpc.ChannelCredentials, target: str) -> str:
    with grpc.secure_channel(target, credentials) as channel:
        return bytes(channel.unary_unary("/door/ask")(b"", timeout=DEADLINE)).decode()


def refusal(credentials: grpc.ChannelCredentials, target: str) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        asked(credentials, target)
    return caught.value.code(), caught.value.details()


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return consortium(tmp_path_factory.mktemp("keys"))


def listening(authority: Authority, name: str) -> Iterator[Here]:
    folder = authority.folder.parent / name
    server = grpc.server(ThreadPoolExecutor(1), handlers=[Door(Revocations(folder / "crl.pem"))])
    port = server.add_secure_port("127.0.0.1:0", server_credentials(load_identity(folder)))
    server.start()
    yield Here(authority, port)
    server.stop(None).wait(DEADLINE)


@pytest.fixture
def here(issued: Authority, tmp_path: Path) -> Iterator[Here]:
    yield from listening(copied(issued, tmp_path / "here"), "server")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_client_gets_in_and_is_known_by_its_number(here: Here, host: str) -> None:
    assert here.ask(channel_credentials(here.identity("hospital-3")), host) == "hospital-3 client 3"


def test_an_observer_gets_in_as_what_it_is(here: Here) -> None:
    assert here.ask(channel_credentials(here.identity("boss"))) == "boss observer None"


def test_a_peer_can_be_called_where_it_was_issued_a_host(issued: Authority) -> None:
    for peer in listening(issued, "hospital-4"):
        assert peer.ask(channel_credentials(peer.identity("hospital-3"))) == "hospital-3 client 3"


def test_a_server_on_an_event_loop_knows_its_callers_too(issued: Authority) -> None:
    folder = issued.folder.parent / "server"
    revocations = Revocations(folder / "crl.pem")

    async def answer(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return admitted(context.auth_context(), revocations).name.encode()

    async def conversation() -> bytes:
        server = grpc.aio.server()
        methods = {"ask": grpc.unary_unary_rpc_method_handler(answer)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("door", methods),))
        port = server.add_secure_port("127.0.0.1:0", server_credentials(load_identity(folder)))
        await server.start()
        caller = channel_credentials(load_identity(issued.folder.parent / "hospital-3"))
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", caller) as channel:
            found = await channel.unary_unary("/door/ask")(b"", timeout=DEADLINE)
        await server.stop(None)
        return bytes(found)

    assert asyncio.run(conversation()) == b"hospital-3"


def test_nobody_gets_in_without_a_certificate(here: Here) -> None:
    assert here.refusal(grpc.ssl_channel_credentials(here.identity("boss").ca)) == grpc.StatusCode.UNAVAILABLE


def test_another_authority_of_the_same_name_lets_nobody_in(here: Here, tmp_path: Path) -> None:
    """It trusts our server, and shows a certificate that says client 3, signed by an authority of our name."""
    consortium(tmp_path / "other")
    forged = load_identity(tmp_path / "other" / "hospital-3")
    credentials = grpc.ssl_channel_credentials(here.identity("boss").ca, forged.key, forged.certificate)
    assert here.refusal(credentials) == grpc.StatusCode.UNAVAILABLE


def test_the_servers_certificate_is_not_a_clients(here: Here) -> None:
    server = here.identity("server")
    credentials = grpc.ssl_channel_credentials(server.ca, server.key, server.certificate)
    assert here.refusal(credentials) == grpc.StatusCode.UNAVAILABLE


def test_an_expired_certificate_does_not_get_in(tmp_path: Path) -> None:
    old = datetime.now(UTC) - 3 * DAY
    authority = consortium(tmp_path, now=old)
    authority.issue_client("late", 8, days=1, now=old)
    late = load_identity(tmp_path / "late", old)
    credentials = grpc.ssl_channel_credentials(late.ca, late.key, late.certificate)
    for here in listening(authority, "server"):
        assert here.refusal(credentials) == grpc.StatusCode.UNAVAILABLE


def test_a_client_is_out_as_soon_as_it_is_revoked(here: Here) -> None:
    credentials = channel_credentials(here.identity("hospital-3"))
    assert here.ask(credentials) == "hospital-3 client 3"
    here.authority.revoke("hospital-3")
    code, words = refusal(credentials, f"127.0.0.1:{here.port}")
    assert code == grpc.StatusCode.PERMISSION_DENIED and "hospital-3 is revoked" in words
    assert here.ask(channel_credentials(here.identity("hospital-4"))) == "hospital-4 client 4"


def test_an_open_link_is_out_too_at_its_next_question(here: Here) -> None:
    with grpc.secure_channel(f"127.0.0.1:{here.port}", channel_credentials(here.identity("hospital-3"))) as channel:
        ask = channel.unary_unary("/door/ask")
        assert ask(b"", timeout=DEADLINE) == b"hospital-3 client 3"
        here.authority.revoke("hospital-3")
        with pytest.raises(grpc.RpcError) as caught:
            ask(b"", timeout=DEADLINE)
    assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED


def test_a_client_does_not_talk_to_a_server_of_another_authority(here: Here, tmp_path: Path) -> None:
    consortium(tmp_path / "other")
    assert (
        here.refusal(channel_credentials(load_identity(tmp_path / "other" / "hospital-3")))
        == grpc.StatusCode.UNAVAILABLE
    )


def test_a_server_answers_only_at_the_hosts_it_was_issued_for(tmp_path: Path) -> None:
    authority = consortium(tmp_path)
    authority.issue_server("elsewhere", ["s.example.org"])
    for wrong in listening(authority, "elsewhere"):
        code, _ = refusal(channel_credentials(wrong.identity("hospital-3")), f"127.0.0.1:{wrong.port}")
        assert code == grpc.StatusCode.UNAVAILABLE


def test_a_client_cannot_pose_as_the_server(issued: Authority) -> None:
    """Client 3 has no host in its certificate, and may not serve."""
    client = load_identity(issued.folder.parent / "hospital-3")
    credentials = grpc.ssl_server_credentials([(client.key, client.certificate)], client.ca, True)
    server = grpc.server(ThreadPoolExecutor(1), handlers=[Door(Revocations(client.revocations))])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    caller = channel_credentials(load_identity(issued.folder.parent / "hospital-4"))
    assert refusal(caller, f"127.0.0.1:{port}")[0] == grpc.StatusCode.UNAVAILABLE
    server.stop(None).wait(DEADLINE)


def test_who_shows_nothing_is_not_admitted(issued: Authority) -> None:
    revocations = Revocations(issued.folder / "crl.pem")
    with pytest.raises(WorkError, match="shows no certificate"):
        admitted({}, revocations)
    with pytest.raises(NotAdmitted, match="no certificate of a splitrelay authority"):
        admitted({"x509_pem_cert": [b"junk"]}, revocations)


def test_a_certificate_that_expires_on_an_open_link_is_not_admitted_again(issued: Authority) -> None:
    client = load_identity(issued.folder.parent / "hospital-3")
    context = {"x509_pem_cert": [client.certificate]}
    revocations = Revocations(client.revocations)
    assert admitted(context, revocations, now=client.not_after).m == 3
    with pytest.raises(NotAdmitted, match="has expired"):
        admitted(context, revocations, now=client.not_after + DAY)


def test_the_servers_own_certificate_is_not_admitted(issued: Authority) -> None:
    server = load_identity(issued.folder.parent / "server")
    with pytest.raises(NotAdmitted, match="is a server's certificate"):
        admitted({"x509_pem_cert": [server.certificate]}, Revocations(server.revocations))


@pytest.mark.parametrize(
    ("name", "words"), [("hospital-4", "is client 4, not client 3"), ("boss", "is no client, not")]
)
def test_nobody_speaks_in_anothers_name(issued: Authority, name: str, words: str) -> None:
    caller = load_identity(issued.folder.parent / name)
    with pytest.raises(NotAdmitted, match=words):
        admitted({"x509_pem_cert": [caller.certificate]}, Revocations(caller.revocations), m=3)


def test_a_client_speaks_in_its_own_name(issued: Authority) -> None:
    caller = load_identity(issued.folder.parent / "hospital-3")
    assert admitted({"x509_pem_cert": [caller.certificate]}, Revocations(caller.revocations), m=3).m == 3
