"""The identity of this program: load a folder of keys, build gRPC credentials, and authenticate peers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from splitrelay.errors import InputError, WorkError
from splitrelay.security.certificates import (
    SERVER,
    Peer,
    format_serial,
    parse_certificate,
    parse_peer,
    read_peer,
    round_time,
)
from splitrelay.security.key_files import (
    CA,
    CERTIFICATE,
    IDENTITY,
    KEY,
    REVOKED,
    check_folder,
    read_private,
    read_public,
)
from splitrelay.security.revocation import Revocations
from splitrelay.structured_text import parse_json


class AccessDenied(WorkError):
    """The certificate of a peer does not allow what it asks for."""


@dataclass(frozen=True)
class Identity(Peer):
    """A holder with its certificates and private key in PEM. Its repr does not contain them."""

    folder: Path
    ca: bytes = field(repr=False)
    certificate: bytes = field(repr=False)
    key: bytes = field(repr=False)

    @property
    def revocation_file(self) -> Path:
        """The revocation list in the folder."""
        return self.folder / REVOKED


def load_identity(folder: Path, now: datetime | None = None) -> Identity:
    """Load and check a folder of keys.

    Args:
        folder: The folder that `splitrelay keys issue` wrote.
        now: The current time; for tests.

    Raises:
        InputError: Files are missing, damaged, accessible to other users or do not belong together, or the certificate
            is not valid at this time.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder of keys", hint="Create one: splitrelay keys issue --help")
    check_folder(folder)
    key, certificate, ca = read_private(folder / KEY), read_public(folder / CERTIFICATE), read_public(folder / CA)
    parsed = parse_certificate(certificate)
    peer = read_peer(parsed)
    _check_signature(parsed, parse_certificate(ca), folder)
    _check_key(parsed, key, folder)
    _check_dates(peer, round_time(now), folder)
    _check_identity_file(peer, folder)
    values: dict[str, Any] = {one.name: getattr(peer, one.name) for one in fields(Peer)}
    return Identity(**values, folder=folder, ca=ca, certificate=certificate, key=key)


def build_server_credentials(identity: Identity) -> grpc.ServerCredentials:
    """Build server credentials for mutual TLS: clients must show a certificate of the same authority."""
    check_has_hosts(identity)
    pair = [(identity.key, identity.certificate)]
    return grpc.ssl_server_credentials(pair, root_certificates=identity.ca, require_client_auth=True)


def check_has_hosts(identity: Identity) -> None:
    """Raise an InputError if the certificate names no host, because clients could not check it."""
    if not identity.hosts:
        what = f"the certificate of {identity.name} ({identity.role}) names no host"
        raise InputError(what, hint="Use keys issued with --host.")


def build_channel_credentials(identity: Identity) -> grpc.ChannelCredentials:
    """Build client credentials for mutual TLS: the server must show a certificate of the same authority.

    Raises:
        InputError: The identity is that of a server.
    """
    if SERVER in identity.roles:
        hint = "Use keys issued with --client, --evaluator or --observer."
        raise InputError(f"{identity.name} is a server and cannot connect to another server", hint=hint)
    return grpc.ssl_channel_credentials(identity.ca, identity.key, identity.certificate)


def authenticate_peer(
    auth_context: Mapping[str, Iterable[bytes]],
    revocations: Revocations,
    *,
    m: int | None = None,
    now: datetime | None = None,
) -> Peer:
    """Return the holder of the certificate of a connection.

    Call it again whenever a lease is granted or renewed, because a certificate can expire or be revoked while a
    connection is open.

    Args:
        auth_context: The result of gRPC's context.auth_context().
        revocations: The revocation list.
        m: If given, the peer must be client m.
        now: The current time; for tests.

    Raises:
        AccessDenied: There is no valid certificate, or it is that of a server or of another client.
    """
    certificates = [bytes(one) for one in auth_context.get("x509_pem_cert", ())]
    if len(certificates) != 1:
        raise AccessDenied("the peer shows no certificate", hint="Join with --keys.")
    try:
        peer = parse_peer(certificates[0])
    except InputError as error:
        raise AccessDenied(error.what, hint=error.hint) from None
    if SERVER in peer.roles:
        hint = "Join with keys issued with --client."
        raise AccessDenied(f"the certificate of {peer.name} is that of a server", hint=hint)
    if revocations.is_revoked(peer.serial):
        raise AccessDenied(f"the certificate of {peer.name} is revoked", value=format_serial(peer.serial))
    if peer.not_after < round_time(now):
        raise AccessDenied(f"the certificate of {peer.name} has expired", value=_format_time(peer.not_after))
    if m is not None and peer.m != m:
        role = "no client" if peer.m is None else f"client {peer.m}"
        raise AccessDenied(f"{peer.name} is {role}, not client {m}", hint="Join with the keys of that client.")
    return peer


def _check_signature(certificate: x509.Certificate, authority: x509.Certificate, folder: Path) -> None:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        hint = "Keep the files that splitrelay keys issue wrote together."
        raise InputError(f"{folder / CERTIFICATE} is not signed by {folder / CA}", hint=hint) from None


def _check_key(certificate: x509.Certificate, key: bytes, folder: Path) -> None:
    try:
        public = load_pem_private_key(key, password=None).public_key()
    except (ValueError, TypeError):
        raise InputError(f"{folder / KEY} is damaged", hint=_get_renewal_hint(folder)) from None
    if public != certificate.public_key():
        what = f"{folder / KEY} is not the key of {folder / CERTIFICATE}"
        raise InputError(what, hint=_get_renewal_hint(folder))


def _check_dates(peer: Peer, now: datetime, folder: Path) -> None:
    if now < peer.not_before:
        limit, hint = f"{_format_time(peer.not_before)} or later", "Set this host's clock."
        raise InputError(f"{folder / CERTIFICATE} is not valid yet", value=_format_time(now), limit=limit, hint=hint)
    if now > peer.not_after:
        hint = f"Renew it at the authority: splitrelay keys renew {peer.name}"
        raise InputError(f"{folder / CERTIFICATE} expired on {peer.not_after:%Y-%m-%d}", hint=hint)


def _check_identity_file(peer: Peer, folder: Path) -> None:
    try:
        serial = parse_json(read_public(folder / IDENTITY))["serial"]
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{folder / IDENTITY} is damaged", hint=_get_renewal_hint(folder)) from None
    if serial != format_serial(peer.serial):
        what = f"{folder / IDENTITY} does not describe {CERTIFICATE}"
        raise InputError(what, hint=_get_renewal_hint(folder))


def _get_renewal_hint(folder: Path) -> str:
    return f"Renew it at the authority: splitrelay keys renew {folder.name}"


def _format_time(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M} UTC"
