"""Who is out: a revocation list signed by the authority, read again whenever the file changes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from splitrelay.errors import InputError, SplitrelayError
from splitrelay.security.certificates import Signer, parsed
from splitrelay.security.key_files import CA, read_public

Stamp = tuple[int, int, int] | None  # time of change, size, inode; None: no such file


@dataclass(frozen=True)
class RevocationList:
    """The serial numbers that are out, and the number of the list, which only grows."""

    number: int
    serials: frozenset[int]


def signed_list(number: int, revoked: Iterable[tuple[int, datetime]], signer: Signer, now: datetime) -> bytes:
    """An X.509 revocation list in PEM; it holds until the next one comes, so its end is the authority's."""
    builder = x509.CertificateRevocationListBuilder().issuer_name(signer.certificate.subject)
    builder = builder.last_update(now).next_update(signer.certificate.not_valid_after_utc)
    builder = builder.add_extension(x509.CRLNumber(number), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key())
    builder = builder.add_extension(issuer, critical=False)
    for serial, when in revoked:
        out = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(when).build()
        builder = builder.add_revoked_certificate(out)
    return builder.sign(signer.key, SHA256()).public_bytes(Encoding.PEM)


def read_list(path: Path, ca: bytes) -> RevocationList:
    """The list in a file, if this authority signed it."""
    content = read_public(path)
    authority = parsed(ca)
    try:
        found = x509.load_pem_x509_crl(content)
        serials = frozenset(entry.serial_number for entry in found)
        number = found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    except (ValueError, TypeError, x509.ExtensionNotFound, x509.DuplicateExtension):
        raise InputError(f"{path} is no revocation list", hint="Copy it again from the authority.") from None
    key = authority.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or found.issuer != authority.subject:
        raise InputError(f"{path} is the revocation list of another authority", hint="Copy our authority's.")
    if not found.is_signature_valid(key):
        raise InputError(f"{path} is not signed by our authority", hint="Copy it again from the authority.")
    return RevocationList(number, serials)


class Revocations:
    """The list in force. A changed file is taken over at the next question; a bad one is not, and is told of once."""

    def __init__(self, path: Path, ca: bytes | None = None, tell: Callable[[str], None] | None = None) -> None:
        self.path = path
        self.trouble: str | None = None  # why the file as it is now is not in force
        self._ca = read_public(path.parent / CA) if ca is None else ca
        self._tell = tell or logging.getLogger("splitrelay.network").warning
        self._stamp = stamp_of(path)
        self._in_force = read_list(path, self._ca)

    def __repr__(self) -> str:
        return f"Revocations({str(self.path)!r}, list {self._in_force.number}, {len(self._in_force.serials)} revoked)"

    @property
    def number(self) -> int:
        """The number of the list in force."""
        return self._in_force.number

    def is_revoked(self, serial: int) -> bool:
        """Whether this certificate is out, by the newest good list."""
        self._look_again()
        return serial in self._in_force.serials

    def _look_again(self) -> None:
        stamp = stamp_of(self.path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._in_force, self.trouble = self._newer(), None
        except SplitrelayError as error:
            self.trouble = str(error)
            self._tell(f"revocation list {self._in_force.number} stays in force: {error}")

    def _newer(self) -> RevocationList:
        found = read_list(self.path, self._ca)
        if found.number < self._in_force.number:
            limit = f"number {self._in_force.number} or later"
            raise InputError(f"{self.path} is an older revocation list", value=found.number, limit=limit)
        return found


def stamp_of(path: Path) -> Stamp:
    """What changes when a file does."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
