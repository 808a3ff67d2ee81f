"""Is a folder of keys whole, private, ours and valid today; and whom does a certificate name?"""

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
from splitrelay.security.certificates import described, host_name, parsed, peer_identity
from splitrelay.security.identity import channel_credentials, load_identity, server_credentials
from splitrelay.security.sealing_keys import load_epochs
from tests.support.key_folders import DAY, TODAY, consortium, copied, secrets_of


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return consortium(tmp_path_factory.mktemp("keys"), now=TODAY)


@pytest.fixture
def folder(issued: Authority, tmp_path: Path) -> Path:
    """The keys of client 3, to be spoilt."""
    return copied(issued, tmp_path).folder.parent / "hospital-3"


def refusal(folder: Path, now: datetime = TODAY) -> str:
    with pytest.raises(InputError) as caught:
        load_identity(folder, now)
    assert "\n" not in str(caught.value)
    return str(caught.value)


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
def test_a_folder_says_who_its_holder_is(
    issued: Authority, name: str, roles: tuple[str, ...], m: int | None, hosts: tuple[str, ...]
) -> None:
    found = load_identity(issued.folder.parent / name, TODAY)
    assert (found.name, found.roles, found.role, found.m, found.hosts) == (name, roles, roles[0], m, hosts)
    assert found.consortium == "clinics" and found.not_after == TODAY + 365 * DAY


def test_a_peer_is_known_by_its_certificate_in_either_form(issued: Authority) -> None:
    identity = load_identity(issued.folder.parent / "hospital-3", TODAY)
    der = parsed(identity.certificate).public_bytes(Encoding.DER)
    assert peer_identity(identity.certificate) == peer_identity(der)
    assert (peer_identity(der).m, peer_identity(der).serial) == (3, identity.serial)


def test_the_sealing_secret_is_for_those_who_open_halves(issued: Authority) -> None:
    having = {path.parent.name for path in issued.folder.parent.glob("*/sealing.json")}
    assert having == {"authority", "hospital-3", "hospital-4", "judge"}
    assert load_epochs(issued.folder.parent / "judge") == load_epochs(issued.folder.parent / "hospital-3")


def test_private_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        consortium(tmp_path, now=TODAY)
    finally:
        os.umask(before)
    for path in tmp_path.rglob("*"):
        private = path.is_dir() or path.name in ("key.pem", "ca-key.pem", "sealing.json", "register.json", ".lock")
        assert bool(path.stat().st_mode & 0o077) is not private, path


@pytest.mark.parametrize("name", ["ca.pem", "cert.pem", "key.pem", "identity.json"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert f"{name} is missing" in refusal(folder)


@pytest.mark.parametrize("name", ["ca.pem", "cert.pem", "key.pem", "identity.json"])
@pytest.mark.parametrize(
    "content", [b"", b"\xff\x00", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_a_damaged_file_is_refused(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)
    assert refusal(folder)


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    assert "no folder of keys" in refusal(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["key.pem", "sealing.json"])
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_key_open_to_others_is_refused(folder: Path, name: str, mode: int) -> None:
    (folder / name).chmod(mode)
    with pytest.raises(InputError, match=f"needs mode 0600; got 0{mode:o}. Run: chmod 600 .*{name}"):
        load_identity(folder, TODAY)
        load_epochs(folder)


@pytest.mark.parametrize(
    ("days", "words"), [(-1, "not valid yet"), (366, "expired on 2027-11-16. Renew it at the authority")]
)
def test_a_certificate_holds_from_a_day_to_a_day(folder: Path, days: int, words: str) -> None:
    assert words in refusal(folder, TODAY + days * DAY)


def test_a_host_whose_clock_is_a_little_behind_gets_in(folder: Path) -> None:
    assert load_identity(folder, TODAY - DAY / 25).m == 3


def test_the_key_must_be_the_certificates(folder: Path) -> None:
    shutil.copy(folder.parent / "hospital-4" / "key.pem", folder / "key.pem")
    assert "key.pem is not the key of" in refusal(folder)


def test_the_note_must_be_the_certificates(folder: Path) -> None:
    shutil.copy(folder.parent / "hospital-4" / "identity.json", folder / "identity.json")
    assert "identity.json is of another certificate" in refusal(folder)


def test_another_authority_of_the_same_name_has_not_signed_it(folder: Path, tmp_path: Path) -> None:
    other = consortium(tmp_path / "other", now=TODAY)
    shutil.copy(other.folder / "ca.pem", folder / "ca.pem")
    assert "cert.pem is not signed by" in refusal(folder)


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
def test_a_certificate_without_a_clear_role_names_nobody(issued: Authority, uris: list[str]) -> None:
    names = [x509.UniformResourceIdentifier(uri) for uri in uris] or [x509.DNSName("localhost")]
    above, subject = issued.signer, parsed((issued.folder.parent / "boss" / "cert.pem").read_bytes()).subject
    builder = x509.CertificateBuilder(above.certificate.subject, subject, above.key.public_key(), 7)
    builder = builder.not_valid_before(TODAY - DAY).not_valid_after(TODAY + DAY)
    certificate = builder.add_extension(x509.SubjectAlternativeName(names), False).sign(above.key, SHA256())
    with pytest.raises(InputError, match="no certificate of a splitrelay authority"):
        described(certificate)


@pytest.mark.parametrize("junk", [b"", b"x", b"-----BEGIN", b"0" * 500], ids=repr)
def test_junk_names_nobody(junk: bytes) -> None:
    with pytest.raises(InputError, match="no certificate of a splitrelay authority"):
        peer_identity(junk)


def test_the_authoritys_own_certificate_names_nobody(issued: Authority) -> None:
    with pytest.raises(InputError, match="no certificate of a splitrelay authority"):
        peer_identity((issued.folder / "ca.pem").read_bytes())


@pytest.mark.parametrize("host", ["", "a..b", "-a", "http://a", "a:7443", "*.example.org", "é.org", "a" * 64, "a b"])
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(InputError, match="not a host"):
        host_name(host)


def test_a_server_cannot_call_and_a_client_without_hosts_cannot_serve(issued: Authority) -> None:
    server, client = (load_identity(issued.folder.parent / name, TODAY) for name in ("server", "hospital-3"))
    with pytest.raises(InputError, match="server's identity and cannot call"):
        channel_credentials(server)
    with pytest.raises(InputError, match="has no hosts to be called at"):
        server_credentials(client)


def test_nothing_secret_is_in_a_repr_or_an_error(folder: Path) -> None:
    seen = [repr(load_identity(folder, TODAY)), repr(load_epochs(folder)), repr(folder)]
    (folder / "sealing.json").write_text((folder / "sealing.json").read_text().replace("=", "!"))
    with pytest.raises(InputError) as caught:
        load_epochs(folder)
    text = "".join([*seen, str(caught.value)]).encode()
    shutil.copy(folder.parent / "hospital-4" / "sealing.json", folder / "sealing.json")
    secrets = secrets_of(folder)
    assert len(secrets) >= 5 and [secret for secret in secrets if secret in text] == []


def test_the_note_holds_no_secret(issued: Authority) -> None:
    note = json.loads((issued.folder.parent / "hospital-3" / "identity.json").read_text())
    assert set(note) == {"name", "roles", "m", "hosts", "consortium", "serial", "not_before", "not_after"}


@pytest.mark.parametrize("m", [-1, 10**9])
def test_a_clients_number_has_limits(issued: Authority, m: int) -> None:
    with pytest.raises(OutOfRange, match="0 <= m < 10"):
        issued.issue_client("x", m, now=TODAY)


@pytest.mark.parametrize(
    ("name", "purposes"),
    [
        ("server", {ExtendedKeyUsageOID.SERVER_AUTH}),
        ("hospital-3", {ExtendedKeyUsageOID.CLIENT_AUTH}),
        ("hospital-4", {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH}),
        ("boss", {ExtendedKeyUsageOID.CLIENT_AUTH}),
    ],
)
def test_a_certificate_serves_its_purpose_and_no_other(
    issued: Authority, name: str, purposes: set[x509.ObjectIdentifier]
) -> None:
    certificate = parsed((issued.folder.parent / name / "cert.pem").read_bytes())
    assert set(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == purposes
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
