"""Who this program is: its folder of keys, checked before it is used, and the gRPC credentials made of it."""

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
from splitrelay.security.certificates import SERVER, Peer, described, instant, parsed, peer_identity, shown_serial
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

__all__ = [
    "Identity",
    "NotAdmitted",
    "Peer",
    "admitted",
    "channel_credentials",
    "load_identity",
    "peer_identity",
    "refuse_uncallable",
    "server_credentials",
]


class NotAdmitted(WorkError):
    """A caller whose certificate lets nobody in."""


@dataclass(frozen=True)
class Identity(Peer):
    """A holder with its keys in PEM; the private one is never shown."""

    folder: Path
    ca: bytes = field(repr=False)
    certificate: bytes = field(repr=False)
    key: bytes = field(repr=False)

    @property
    def revocations(self) -> Path:
        """The revocation list that came with the keys."""
        return self.folder / REVOKED


def load_identity(folder: Path, now: datetime | None = None) -> Identity:
    """The identity in a folder of keys, if it is whole, private, ours and valid today."""
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder of keys", hint="Make one: splitrelay keys issue --help")
    check_folder(folder)
    key, certificate, ca = read_private(folder / KEY), read_public(folder / CERTIFICATE), read_public(folder / CA)
    found = parsed(certificate)
    who = described(found)
    _refuse_unsigned(found, parsed(ca), folder)
    _refuse_other_key(found, key, folder)
    _refuse_date(who, instant(now), folder)
    _refuse_other_note(who, folder)
    said: dict[str, Any] = {one.name: getattr(who, one.name) for one in fields(Peer)}
    return Identity(**said, folder=folder, ca=ca, certificate=certificate, key=key)


def server_credentials(identity: Identity) -> grpc.ServerCredentials:
    """Mutual TLS: whoever calls must show a certificate of the same authority."""
    refuse_uncallable(identity)
    pair = [(identity.key, identity.certificate)]
    return grpc.ssl_server_credentials(pair, root_certificates=identity.ca, require_client_auth=True)


def refuse_uncallable(identity: Identity) -> None:
    """Nobody could check whom it has reached."""
    if not identity.hosts:
        hint = "Use keys issued with --host."
        raise InputError(f"{identity.name} ({identity.role}) has no hosts to be called at", hint=hint)


def channel_credentials(identity: Identity) -> grpc.ChannelCredentials:
    """Mutual TLS: we show our certificate, and the server's must be of the same authority, for the host we call."""
    if SERVER in identity.roles:
        hint = "Use keys issued with --client, --evaluator or --observer."
        raise InputError(f"{identity.name} is a server's identity and cannot call one", hint=hint)
    return grpc.ssl_channel_credentials(identity.ca, identity.key, identity.certificate)


def admitted(
    auth_context: Mapping[str, Iterable[bytes]],
    revocations: Revocations,
    *,
    m: int | None = None,
    now: datetime | None = None,
) -> Peer:
    """Who is calling, by context.auth_context(), and that it is client m where it says so.

    To be asked again whenever a lease is granted or renewed: a revocation reaches links that are open.
    """
    certificates = [bytes(one) for one in auth_context.get("x509_pem_cert", ())]
    if len(certificates) != 1:
        raise NotAdmitted("the caller shows no certificate", hint="Join with --keys.")
    try:
        who = peer_identity(certificates[0])
    except InputError as error:
        raise NotAdmitted(error.what, hint=error.hint) from None
    if SERVER in who.roles:
        raise NotAdmitted(f"{who.name} is a server's certificate", hint="Join with keys issued with --client.")
    if revocations.is_revoked(who.serial):
        raise NotAdmitted(f"the certificate of {who.name} is revoked", value=shown_serial(who.serial))
    if who.not_after < instant(now):  # it may expire while the stream is open
        raise NotAdmitted(f"the certificate of {who.name} has expired", value=f"{who.not_after:%Y-%m-%d %H:%M} UTC")
    if m is not None and who.m != m:
        is_what = "no client" if who.m is None else f"client {who.m}"
        raise NotAdmitted(f"{who.name} is {is_what}, not client {m}", hint="Join with that client's own keys.")
    return who


def _refuse_unsigned(certificate: x509.Certificate, authority: x509.Certificate, folder: Path) -> None:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        hint = "Keep the files of one keys issue together."
        raise InputError(f"{folder / CERTIFICATE} is not signed by {folder / CA}", hint=hint) from None


def _refuse_other_key(certificate: x509.Certificate, key: bytes, folder: Path) -> None:
    try:
        public = load_pem_private_key(key, password=None).public_key()
    except (ValueError, TypeError):
        raise InputError(f"{folder / KEY} is damaged", hint=_again(folder)) from None
    if public != certificate.public_key():
        raise InputError(f"{folder / KEY} is not the key of {folder / CERTIFICATE}", hint=_again(folder))


def _refuse_date(who: Peer, now: datetime, folder: Path) -> None:
    if now < who.not_before:
        value, hint = f"{now:%Y-%m-%d %H:%M} UTC", "Set this host's clock."
        limit = f"{who.not_before:%Y-%m-%d %H:%M} UTC or later"
        raise InputError(f"{folder / CERTIFICATE} is not valid yet", value=value, limit=limit, hint=hint)
    if now > who.not_after:
        hint = f"Renew it at the authority: splitrelay keys renew {who.name}"
        raise InputError(f"{folder / CERTIFICATE} expired on {who.not_after:%Y-%m-%d}", hint=hint)


def _refuse_other_note(who: Peer, folder: Path) -> None:
    try:
        serial = parse_json(read_public(folder / IDENTITY))["serial"]
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{folder / IDENTITY} is damaged", hint=_again(folder)) from None
    if serial != shown_serial(who.serial):
        raise InputError(f"{folder / IDENTITY} is of another certificate than {CERTIFICATE}", hint=_again(folder))


def _again(folder: Path) -> str:
    return f"Have it made again: splitrelay keys renew {folder.name}"
