"""Folders of keys are checked when they are loaded, and certificates name their holder."""

import json
import os
import shutil
from datetime import datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from splitrelay.errors import InputError, OutOfRange
from splitrelay.security.authority import Authority
from splitrelay.security.certificates import build_host_name, parse_certificate, parse_peer, read_peer
from splitrelay.security.encryption import load_secrets
from splitrelay.security.identity import build_channel_credentials, build_server_credentials, load_identity
from tests.support.key_folders import DAY, TODAY, consortium, copied, secrets_of


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return consortium(tmp_path_factory.mktemp("keys"), now=TODAY)


@pytest.fixture
def folder(issued: Authority, tmp_path: Path) -> Path:
    """A copy of the keys of client 3."""
    return copied(issued, tmp_path).folder.parent / "hospital-3"


def get_error(folder: Path, now: datetime = TODAY) -> InputError:
    with pytest.raises(InputError) as caught:
        load_identity(folder, now)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("name", "roles", "m", "hosts"),
    [
        ("server", ("server",), None, ("localhost", "127.0.0.1")),
        ("hospital-3", ("client",), 3, ()),
        ("hospital-4", ("client",), 4, ("127.0.0.1",)),
        ("judge", ("evaluator",), None, ()),
        ("boss", ("observer",), None, ()),
    ],
)
def test_identity_names_holder_and_roles(
    issued: Authority, name: str, roles: tuple[str, ...], m: int | None, hosts: tuple[str, ...]
) -> None:
    found = load_identity(issued.folder.parent / name, TODAY)
    assert (found.name, found.roles, found.role, found.m, found.hosts) == (name, roles, roles[0], m, hosts)
    assert found.consortium == "clinics" and found.not_after == TODAY + 365 * DAY


def test_peer_is_parsed_from_pem_and_der(issued: Authority) -> None:
    identity = load_identity(issued.folder.parent / "hospital-3", TODAY)
    der = parse_certificate(identity.certificate).public_bytes(Encoding.DER)
    assert parse_peer(identity.certificate) == parse_peer(der)
    assert (parse_peer(der).m, parse_peer(der).serial) == (3, identity.serial)


def test_only_clients_and_evaluator_have_sealing_secret(issued: Authority) -> None:
    having = {path.parent.name for path in issued.folder.parent.glob("*/sealing.json")}
    assert having == {"authority", "hospital-3", "hospital-4", "judge"}
    assert load_secrets(issued.folder.parent / "judge") == load_secrets(issued.folder.parent / "hospital-3")


def test_private_files_do_not_depend_on_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        consortium(tmp_path, now=TODAY)
    finally:
        os.umask(before)
    for path in tmp_path.rglob("*"):
        private = path.is_dir() or path.name in ("key.pem", "ca-key.pem", "sealing.json", "register.json", ".lock")
        assert bool(path.stat().st_mode & 0o077) is not private, path


@pytest.mark.parametrize("name", ["ca.pem", "cert.pem", "key.pem", "identity.json"])
def test_error_names_missing_file(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert name in get_error(folder).what


@pytest.mark.parametrize("name", ["ca.pem", "cert.pem", "key.pem", "identity.json"])
@pytest.mark.parametrize(
    "content", [b"", b"\xff\x00", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_damaged_file_raises_error(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    assert get_error(folder)


def test_missing_folder_raises_error(tmp_path: Path) -> None:
    assert "nowhere" in get_error(tmp_path / "nowhere").what


@pytest.mark.parametrize("name", ["key.pem", "sealing.json"])
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_private_file_with_open_mode_raises_error(folder: Path, name: str, mode: int) -> None:
    (folder / name).chmod(mode)
    with pytest.raises(InputError) as error:
        load_identity(folder, TODAY)
        load_secrets(folder)
    assert error.value.value == f"0{mode:o}" and f"chmod 600 {folder / name}" in str(error.value.hint)


@pytest.mark.parametrize(("days", "hint"), [(-1, "clock"), (366, "splitrelay keys renew hospital-3")])
def test_certificate_outside_its_dates_raises_error(folder: Path, days: int, hint: str) -> None:
    assert hint in str(get_error(folder, TODAY + days * DAY).hint)


def test_certificate_is_valid_for_host_with_late_clock(folder: Path) -> None:
    assert load_identity(folder, TODAY - DAY / 25).m == 3


def test_key_of_other_certificate_raises_error(folder: Path) -> None:
    shutil.copy(folder.parent / "hospital-4" / "key.pem", folder / "key.pem")
    assert "key.pem" in get_error(folder).what


def test_identity_file_of_other_certificate_raises_error(folder: Path) -> None:
    shutil.copy(folder.parent / "hospital-4" / "identity.json", folder / "identity.json")
    assert "identity.json" in get_error(folder).what


def test_other_authority_with_same_name_raises_error(folder: Path, tmp_path: Path) -> None:
    other = consortium(tmp_path / "other", now=TODAY)
    shutil.copy(other.folder / "ca.pem", folder / "ca.pem")
    assert "cert.pem" in get_error(folder).what and "ca.pem" in get_error(folder).what


@pytest.mark.parametrize(
    "uris",
    [
        [],
        ["splitrelay:king"],
        ["splitrelay:client"],
        ["splitrelay:client:-1"],
        ["splitrelay:client:03"],
        ["splitrelay:client:3", "splitrelay:client:4"],
        ["https:client:3"],
    ],
    ids=str,
)
def test_certificate_with_invalid_roles_raises_error(issued: Authority, uris: list[str]) -> None:
    names = [x509.UniformResourceIdentifier(uri) for uri in uris] or [x509.DNSName("localhost")]
    above, subject = issued.signer, parse_certificate((issued.folder.parent / "boss" / "cert.pem").read_bytes()).subject
    builder = x509.CertificateBuilder(above.certificate.subject, subject, above.key.public_key(), 7)
    builder = builder.not_valid_before(TODAY - DAY).not_valid_after(TODAY + DAY)
    certificate = builder.add_extension(x509.SubjectAlternativeName(names), False).sign(above.key, SHA256())
    with pytest.raises(InputError):
        read_peer(certificate)


@pytest.mark.parametrize("junk", [b"", b"x", b"-----BEGIN", b"0" * 500], ids=repr)
def test_invalid_certificate_raises_error(junk: bytes) -> None:
    with pytest.raises(InputError):
        parse_peer(junk)


def test_certificate_of_authority_is_no_peer(issued: Authority) -> None:
    with pytest.raises(InputError):
        parse_peer((issued.folder / "ca.pem").read_bytes())


@pytest.mark.parametrize("host", ["", "a..b", "-a", "http://a", "a:7443", "*.example.org", "é.org", "a" * 64, "a b"])
def test_invalid_host_raises_error(host: str) -> None:
    with pytest.raises(InputError) as error:
        build_host_name(host)
    assert error.value.value == repr(host)


def test_server_cannot_connect_and_client_without_host_cannot_serve(issued: Authority) -> None:
    server, client = (load_identity(issued.folder.parent / name, TODAY) for name in ("server", "hospital-3"))
    with pytest.raises(InputError):
        build_channel_credentials(server)
    with pytest.raises(InputError):
        build_server_credentials(client)


def test_repr_and_errors_contain_no_secret(folder: Path) -> None:
    seen = [repr(load_identity(folder, TODAY)), repr(load_secrets(folder)), repr(folder)]
    (folder / "sealing.json").write_text((folder / "sealing.json").read_text().replace("=", "!"))
    with pytest.raises(InputError) as caught:
        load_secrets(folder)
    text = "".join([*seen, str(caught.value)]).encode()
    shutil.copy(folder.parent / "hospital-4" / "sealing.json", folder / "sealing.json")
    secrets = secrets_of(folder)
    assert len(secrets) >= 5 and [secret for secret in secrets if secret in text] == []


def test_identity_file_contains_no_secret(issued: Authority) -> None:
    note = json.loads((issued.folder.parent / "hospital-3" / "identity.json").read_text())
    assert set(note) == {"name", "roles", "m", "hosts", "consortium", "serial", "not_before", "not_after"}


@pytest.mark.parametrize("m", [-1, 10**9])
def test_client_number_outside_limits_raises_error(issued: Authority, m: int) -> None:
    with pytest.raises(OutOfRange) as error:
        issued.issue_client("x", m, now=TODAY)
    assert error.value.value == m


@pytest.mark.parametrize(
    ("name", "purposes"),
    [
        ("server", {ExtendedKeyUsageOID.SERVER_AUTH}),
        ("hospital-3", {ExtendedKeyUsageOID.CLIENT_AUTH}),
        ("hospital-4", {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH}),
        ("boss", {ExtendedKeyUsageOID.CLIENT_AUTH}),
    ],
)
def test_certificate_is_limited_to_its_purposes(
    issued: Authority, name: str, purposes: set[x509.ObjectIdentifier]
) -> None:
    certificate = parse_certificate((issued.folder.parent / name / "cert.pem").read_bytes())
    assert set(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == purposes
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
