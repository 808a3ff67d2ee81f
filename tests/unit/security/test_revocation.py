"""A server uses new revocation lists without a restart, and only those of its own authority."""

import os
import shutil
from pathlib import Path

import pytest

from splitrelay.errors import InputError
from splitrelay.security.authority import Authority
from splitrelay.security.identity import load_identity
from splitrelay.security.revocation import Revocations, build_revocation_list
from tests.support.error_fields import expect_error
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


def test_new_list_is_used_at_next_check(authority: Authority) -> None:
    revocations = Revocations(server_list(authority))
    assert not revocations.is_revoked(serial(authority))
    authority.revoke("hospital-3", TODAY)
    assert revocations.is_revoked(serial(authority))
    assert not revocations.is_revoked(serial(authority, "hospital-4"))


def test_file_with_same_size_and_time_is_not_read(authority: Authority) -> None:
    path = server_list(authority)
    revocations, before = Revocations(path), path.stat()
    path.write_bytes(b"x" * before.st_size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not revocations.is_revoked(1) and revocations.problem is None


def build_list_of_other_signer(authority: Authority, elsewhere: Path) -> bytes:
    """Build a longer list of another authority with the same name."""
    other = consortium(elsewhere, now=TODAY)
    return build_revocation_list(99, [(1, TODAY)], other.signer, TODAY)


def damage_list(authority: Authority, elsewhere: Path) -> bytes:
    """Change one letter of a valid list."""
    good = authority.folder / "crl.pem"
    middle = len(good.read_bytes()) // 2
    content = bytearray(good.read_bytes())
    content[middle] = ord("A") if content[middle] != ord("A") else ord("B")
    return bytes(content)


def build_older_list(authority: Authority, elsewhere: Path) -> bytes:
    """Build a signed list from before the revocation."""
    return build_revocation_list(1, [], authority.signer, TODAY)


def build_list_of_other_consortium(authority: Authority, elsewhere: Path) -> bytes:
    """Build a list of another consortium."""
    return (consortium(elsewhere, now=TODAY, name="banks").folder / "crl.pem").read_bytes()


def build_empty_file(authority: Authority, elsewhere: Path) -> bytes:
    """Return no content, as after a full disk."""
    return b""


@pytest.mark.parametrize(
    "bad", [build_list_of_other_signer, damage_list, build_older_list, build_list_of_other_consortium, build_empty_file]
)
def test_invalid_list_is_reported_once_and_last_list_is_used(authority: Authority, tmp_path: Path, bad: object) -> None:
    authority.revoke("hospital-3", TODAY)
    warnings: list[str] = []
    revocations = Revocations(server_list(authority), warn=warnings.append)
    server_list(authority).write_bytes(bad(authority, tmp_path / "elsewhere"))  # type: ignore[operator]
    for _ in range(3):
        assert revocations.is_revoked(serial(authority)) and not revocations.is_revoked(1)
    assert len(warnings) == 1 and "list 2" in warnings[0]
    assert revocations.problem and "crl.pem" in revocations.problem


def test_missing_list_is_reported_and_last_list_is_used(authority: Authority) -> None:
    authority.revoke("hospital-3", TODAY)
    warnings: list[str] = []
    revocations = Revocations(server_list(authority), warn=warnings.append)
    server_list(authority).unlink()
    assert revocations.is_revoked(serial(authority))
    assert len(warnings) == 1 and "crl.pem" in warnings[0]


def test_valid_list_after_invalid_one_is_used(authority: Authority) -> None:
    revocations = Revocations(server_list(authority), warn=[].append)
    server_list(authority).write_bytes(b"junk")
    assert not revocations.is_revoked(serial(authority)) and revocations.problem
    authority.revoke("hospital-3", TODAY)
    assert revocations.is_revoked(serial(authority)) and revocations.problem is None


def test_invalid_list_is_logged_by_default(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    revocations = Revocations(server_list(authority))
    server_list(authority).write_bytes(b"junk")
    revocations.is_revoked(1)
    assert [record.levelname for record in caplog.records] == ["WARNING"] and "crl.pem" in caplog.text


@pytest.mark.parametrize("content", [b"", b"junk", None])
def test_invalid_first_list_raises_error(authority: Authority, content: bytes | None) -> None:
    if content is None:
        server_list(authority).unlink()
    else:
        server_list(authority).write_bytes(content)
    with expect_error(InputError, what="crl.pem", hint=True):
        Revocations(server_list(authority))


def test_first_list_of_other_authority_raises_error(authority: Authority, tmp_path: Path) -> None:
    other = consortium(tmp_path / "other", now=TODAY)
    shutil.copy(other.folder / "crl.pem", server_list(authority))
    with expect_error(InputError, what="crl.pem", hint=True):
        Revocations(server_list(authority))


def test_list_has_standard_format(authority: Authority) -> None:
    authority.revoke("hospital-3", TODAY)
    assert server_list(authority).read_bytes().startswith(b"-----BEGIN X509 CRL-----")
