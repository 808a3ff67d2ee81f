"""Does a server hear of a revocation without restart, and believe only its own authority?"""

import os
import shutil
from pathlib import Path

import pytest

from splitrelay.errors import InputError
from splitrelay.security.authority import Authority
from splitrelay.security.identity import load_identity
from splitrelay.security.revocation import Revocations, signed_list
from tests.support.key_folders import TODAY, consortium, copied


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return consortium(tmp_path_factory.mktemp("keys"), now=TODAY)


@pytest.fixture
def authority(issued: Authority, tmp_path: Path) -> Authority:
    return copied(issued, tmp_path / "here")


def server_list(authority: Authority) -> Path:
    return authority.folder.parent / "server" / "crl.pem"


def serial(authority: Authority, name: str = "hospital-3") -> int:
    return load_identity(authority.folder.parent / name, TODAY).serial


def test_a_new_list_is_in_force_at_the_next_question(authority: Authority) -> None:
    revocations = Revocations(server_list(authority))
    assert not revocations.is_revoked(serial(authority))
    authority.revoke("hospital-3", TODAY)
    assert revocations.is_revoked(serial(authority))
    assert not revocations.is_revoked(serial(authority, "hospital-4"))


def test_a_file_of_the_same_size_and_time_is_not_read_again(authority: Authority) -> None:
    """A question costs one look at the file's date."""
    path = server_list(authority)
    revocations, before = Revocations(path), path.stat()
    path.write_bytes(b"x" * before.st_size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not revocations.is_revoked(1) and revocations.trouble is None


def wrongly_signed(authority: Authority, elsewhere: Path) -> bytes:
    """A longer list by another authority that carries the same name."""
    other = consortium(elsewhere, now=TODAY)
    return signed_list(99, [(1, TODAY)], other.signer, TODAY)


def flipped(authority: Authority, elsewhere: Path) -> bytes:
    """A good list with one serial number changed."""
    good = authority.folder / "crl.pem"
    middle = len(good.read_bytes()) // 2
    content = bytearray(good.read_bytes())
    content[middle] = ord("A") if content[middle] != ord("A") else ord("B")
    return bytes(content)


def older(authority: Authority, elsewhere: Path) -> bytes:
    """The list from before the revocation, signed and all."""
    return signed_list(1, [], authority.signer, TODAY)


def of_another_consortium(authority: Authority, elsewhere: Path) -> bytes:
    """A list of people we do not know."""
    return (consortium(elsewhere, now=TODAY, name="banks").folder / "crl.pem").read_bytes()


def empty(authority: Authority, elsewhere: Path) -> bytes:
    """A disk that was full."""
    return b""


@pytest.mark.parametrize("bad", [wrongly_signed, flipped, older, of_another_consortium, empty])
def test_a_bad_list_is_told_of_once_and_the_last_good_one_kept(
    authority: Authority, tmp_path: Path, bad: object
) -> None:
    authority.revoke("hospital-3", TODAY)
    told: list[str] = []
    revocations = Revocations(server_list(authority), tell=told.append)
    server_list(authority).write_bytes(bad(authority, tmp_path / "elsewhere"))  # type: ignore[operator]
    for _ in range(3):
        assert revocations.is_revoked(serial(authority)) and not revocations.is_revoked(1)
    assert len(told) == 1 and told[0].startswith("revocation list 2 stays in force: ")
    assert revocations.trouble and "crl.pem" in revocations.trouble


def test_a_missing_list_is_told_of_and_the_last_one_kept(authority: Authority) -> None:
    authority.revoke("hospital-3", TODAY)
    told: list[str] = []
    revocations = Revocations(server_list(authority), tell=told.append)
    server_list(authority).unlink()
    assert revocations.is_revoked(serial(authority))
    assert len(told) == 1 and "is missing" in told[0]


def test_a_good_list_after_a_bad_one_is_taken(authority: Authority) -> None:
    revocations = Revocations(server_list(authority), tell=[].append)
    server_list(authority).write_bytes(b"junk")
    assert not revocations.is_revoked(serial(authority)) and revocations.trouble
    authority.revoke("hospital-3", TODAY)
    assert revocations.is_revoked(serial(authority)) and revocations.trouble is None


def test_the_log_is_told_unless_somebody_listens(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    revocations = Revocations(server_list(authority))
    server_list(authority).write_bytes(b"junk")
    revocations.is_revoked(1)
    assert "stays in force" in caplog.text and "no revocation list" in caplog.text


@pytest.mark.parametrize("content", [b"", b"junk", None])
def test_a_server_does_not_start_without_a_good_list(authority: Authority, content: bytes | None) -> None:
    if content is None:
        server_list(authority).unlink()
    else:
        server_list(authority).write_bytes(content)
    with pytest.raises(InputError, match=r"crl\.pem"):
        Revocations(server_list(authority))


def test_a_list_of_another_authority_is_refused_at_the_start(authority: Authority, tmp_path: Path) -> None:
    other = consortium(tmp_path / "other", now=TODAY)
    shutil.copy(other.folder / "crl.pem", server_list(authority))
    with pytest.raises(InputError, match="not signed by our authority"):
        Revocations(server_list(authority))


def test_the_list_is_one_that_other_programs_read(authority: Authority) -> None:
    authority.revoke("hospital-3", TODAY)
    assert server_list(authority).read_bytes().startswith(b"-----BEGIN X509 CRL-----")
