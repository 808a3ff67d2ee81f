"""Which peers may send a half to a client's receiver, and which halves does it accept?"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from splitrelay.errors import InputError
from splitrelay.network.messages import HandoverReport, Lease
from splitrelay.network.peer_transfer import MOST_HALVES, PeerEndpoint, PeerUnreachable
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
