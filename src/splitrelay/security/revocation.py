"""Revocation lists: signed by the authority, and read again when the file changes."""

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
from splitrelay.security.certificates import Signer, parse_certificate
from splitrelay.security.key_files import CA, read_public

FileStamp = tuple[int, int, int] | None  # modification time, size, inode; None if there is no file


@dataclass(frozen=True)
class RevocationList:
    """The revoked serial numbers, and the number of the list, which only increases."""

    number: int
    serials: frozenset[int]


def build_revocation_list(number: int, revoked: Iterable[tuple[int, datetime]], signer: Signer, now: datetime) -> bytes:
    """Build an X.509 revocation list in PEM. It is valid until the authority expires.

    Args:
        number: The number of the list.
        revoked: Serial number and time of each revocation.
        signer: The authority.
        now: The current time.
    """
    builder = x509.CertificateRevocationListBuilder().issuer_name(signer.certificate.subject)
    builder = builder.last_update(now).next_update(signer.certificate.not_valid_after_utc)
    builder = builder.add_extension(x509.CRLNumber(number), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key())
    builder = builder.add_extension(issuer, critical=False)
    for serial, time in revoked:
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(time).build()
        builder = builder.add_revoked_certificate(entry)
    return builder.sign(signer.key, SHA256()).public_bytes(Encoding.PEM)


def read_revocation_list(path: Path, ca: bytes) -> RevocationList:
    """Read a revocation list.

    Args:
        path: The file.
        ca: The certificate of the authority that must have signed it.

    Raises:
        InputError: The file is not a revocation list of this authority.
    """
    content = read_public(path)
    authority = parse_certificate(ca)
    try:
        crl = x509.load_pem_x509_crl(content)
        serials = frozenset(entry.serial_number for entry in crl)
        number = crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    except (ValueError, TypeError, x509.ExtensionNotFound, x509.DuplicateExtension):
        raise InputError(f"{path} is not a revocation list", hint="Copy it again from the authority.") from None
    key = authority.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or crl.issuer != authority.subject:
        hint = "Copy the list of our authority."
        raise InputError(f"{path} is the revocation list of another authority", hint=hint)
    if not crl.is_signature_valid(key):
        raise InputError(f"{path} is not signed by our authority", hint="Copy it again from the authority.")
    return RevocationList(number, serials)


class Revocations:
    """The revocation list in use. A new file is read at the next check, if it is valid and not older.

    Args:
        path: The file.
        ca: The certificate of the authority; by default ca.pem in the same folder.
        warn: Called once for each file that cannot be used; by default it is logged.

    Attributes:
        problem: Why the current file is not used, or None.
    """

    def __init__(self, path: Path, ca: bytes | None = None, warn: Callable[[str], None] | None = None) -> None:
        self.path = path
        self.problem: str | None = None
        self._ca = read_public(path.parent / CA) if ca is None else ca
        self._warn = warn or logging.getLogger("splitrelay.network").warning
        self._stamp = get_file_stamp(path)
        self._list = read_revocation_list(path, self._ca)

    def __repr__(self) -> str:
        return f"Revocations({str(self.path)!r}, list {self._list.number}, {len(self._list.serials)} revoked)"

    @property
    def number(self) -> int:
        """The number of the list in use."""
        return self._list.number

    def is_revoked(self, serial: int) -> bool:
        """Return whether a certificate is revoked in the newest valid list."""
        self._reload_if_changed()
        return serial in self._list.serials

    def _reload_if_changed(self) -> None:
        stamp = get_file_stamp(self.path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            new = read_revocation_list(self.path, self._ca)
            if new.number < self._list.number:
                limit = f"number {self._list.number} or later"
                raise InputError(f"{self.path} is an older revocation list", value=new.number, limit=limit)
            self._list, self.problem = new, None
        except SplitrelayError as error:
            self.problem = str(error)
            self._warn(f"revocation list {self._list.number} stays in use: {error}")


def get_file_stamp(path: Path) -> FileStamp:
    """Return values that change when the file changes."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
