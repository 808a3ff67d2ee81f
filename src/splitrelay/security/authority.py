"""The consortium's authority: it issues keys, renews and revokes them, and deals out the sealing secret.

The register is written before what follows from it, and everything else is made from it again by `_settle`: whatever
moment a command is killed at, giving it again finishes it. Folders are written beside the authority's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from splitrelay.errors import InputError, OutputError
from splitrelay.security.applicants import end_of, refuse_number, wanted
from splitrelay.security.certificate_registry import Register, note_of, parsed_register, register_file
from splitrelay.security.certificates import (
    CLIENT,
    EVALUATOR,
    FED,
    OBSERVER,
    SERVER,
    SKEW,
    Key,
    Peer,
    Signer,
    instant,
    new_key,
    own_authority,
    parsed,
    signed,
)
from splitrelay.security.key_files import (
    CA,
    CA_KEY,
    CERTIFICATE,
    IDENTITY,
    KEY,
    REGISTER,
    REVOKED,
    SEALING,
    check_folder,
    locked,
    read_private,
    read_public,
    write_folder,
)
from splitrelay.security.revocation import signed_list
from splitrelay.security.sealing_keys import Epochs, epochs_file, first_epoch, load_epochs

AUTHORITY_DAYS = 3650
PRINTABLE = re.compile(r"[^\W_][\w .,&()-]{0,63}")


@dataclass(frozen=True)
class Handed:
    """A holder whose folder has changed, and the files in it that must reach the holder."""

    who: Peer
    folder: Path
    files: tuple[str, ...]


def create_authority(
    folder: Path, consortium: str = "consortium", days: int = AUTHORITY_DAYS, now: datetime | None = None
) -> Authority:
    """A new authority, with the first epoch of the clients' sealing secret; never over an old one."""
    if not PRINTABLE.fullmatch(consortium):
        raise InputError("a consortium needs a name of 1 to 64 letters, digits and .,&()-", value=repr(consortium))
    folder = _named(folder)
    if folder.exists():
        hint = "Choose another --folder; an authority that is overwritten takes every key it issued with it."
        raise OutputError(f"{folder} is there already", hint=hint)
    begin, key = instant(now), new_key()
    certificate = own_authority(consortium, key, begin - SKEW, end_of(begin, days, None))
    signer, register = Signer(certificate, key), Register(consortium).listing()
    files = {
        CA: certificate.public_bytes(Encoding.PEM),
        CA_KEY: _key_file(key),
        REGISTER: register_file(register),
        SEALING: epochs_file(first_epoch(consortium)),
        REVOKED: signed_list(register.list_number, [], signer, instant(now)),
    }
    write_folder(folder, files)
    return Authority(folder, signer)


def open_authority(folder: Path) -> Authority:
    """The authority that was made in this folder."""
    folder = _named(folder)
    if not (folder / CA_KEY).exists():
        hint = f"Make one: splitrelay keys authority --folder {folder}"
        raise InputError(f"{folder} is no authority", hint=hint)
    check_folder(folder)
    try:
        key = load_pem_private_key(read_private(folder / CA_KEY), password=None)
    except (ValueError, TypeError):
        raise InputError(f"{folder / CA_KEY} is damaged", hint="Bring it back from a copy.") from None
    certificate = parsed(read_public(folder / CA))
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise InputError(f"{folder / CA_KEY} is not the key of {CA}", hint="Bring both back from a copy.")
    return Authority(folder, Signer(certificate, key))


@dataclass(frozen=True)
class Authority:
    """Whoever has its folder can be anyone."""

    folder: Path
    signer: Signer = field(repr=False)

    @property
    def not_after(self) -> datetime:
        """When it expires, and all that it has issued with it."""
        return self.signer.certificate.not_valid_after_utc

    def register(self) -> Register:
        """What it has issued so far."""
        try:
            return parsed_register(read_private(self.folder / REGISTER))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(f"{self.folder / REGISTER} is damaged", hint="Bring it back from a copy.") from None

    def issue_server(
        self, name: str, hosts: Sequence[str], days: int | None = None, now: datetime | None = None
    ) -> Handed:
        """Keys for a server that is reached under these hosts."""
        if not hosts:
            hint = f"As in: splitrelay keys issue {name} --host s.example.org"
            raise InputError("a server needs the hosts under which its clients reach it", hint=hint)
        return self._issue([wanted(name, (SERVER,), None, hosts)], days, instant(now))[0]

    def issue_client(
        self,
        name: str,
        m: int | None = None,
        *,
        evaluator: bool = False,
        observer: bool = False,
        fed: bool = False,
        hosts: Sequence[str] = (),
        days: int | None = None,
        now: datetime | None = None,
    ) -> Handed:
        """Keys for client m, the evaluator, an observer, the fed server, or several in one; hosts, if peers call it."""
        has = {CLIENT: m is not None, EVALUATOR: evaluator, OBSERVER: observer, FED: fed}
        roles = tuple(role for role, held in has.items() if held)
        if not roles:
            hint = "Give --host for a server, or --client m, --evaluator, --observer, --fed-server."
            raise InputError(f"{name} needs a role", hint=hint)
        return self._issue([wanted(name, roles, m, hosts)], days, instant(now))[0]

    def issue_clients(
        self, numbers: Mapping[str, int], days: int | None = None, now: datetime | None = None
    ) -> list[Handed]:
        """Keys for many clients at once, by name and number: all are refused if one is."""
        return self._issue([wanted(name, (CLIENT,), m, ()) for name, m in numbers.items()], days, instant(now))

    def renew(self, name: str, days: int | None = None, now: datetime | None = None) -> Handed:
        """A new key and certificate for the same holder; the old certificate holds until it expires."""
        with locked(self.folder):
            register = self.register()
            old = register.newest(name)
            if old.revoked_at:
                raise InputError(f"{name} is revoked", hint=f"Move {self._place(name)} away and issue it anew.")
            refuse_number(register, name, old.who.m, instant(now))
            who = self._dated(old.who, days, instant(now))
            return self._hand_out(register.adding(who), [who])[0]

    def revoke(self, name: str, now: datetime | None = None) -> list[Handed]:
        """Out at once: a new revocation list, and a new epoch if the holder had the sealing secret."""
        with locked(self.folder):
            register = self.register()
            register.newest(name)
            self._save(REGISTER, register_file(register.revoking(name, instant(now), self._epochs().current)))
            return self._settle(instant(now))

    def rotate(self, now: datetime | None = None) -> list[Handed]:
        """A new epoch of the sealing secret for every client that is not revoked."""
        with locked(self.folder):
            self._save(SEALING, epochs_file(self._epochs().rotated()))
            content = {SEALING: read_private(self.folder / SEALING)}
            return [
                self._write(one.who, content) for one in self.register().holders(instant(now)) if one.who.opens_halves
            ]

    def epoch(self) -> int:
        """The epoch that seals now."""
        return self._epochs().current

    def _issue(self, wanted: Sequence[Peer], days: int | None, now: datetime) -> list[Handed]:
        with locked(self.folder):
            register, dated = self.register(), []
            for one in wanted:
                self._refuse_taken(register, one.name, one.m, now)
                dated.append(self._dated(replace(one, consortium=register.consortium), days, now))
                register = register.adding(dated[-1])
            return self._hand_out(register, dated)

    def _refuse_taken(self, register: Register, name: str, m: int | None, now: datetime) -> None:
        if any(one.who.name == name and not one.revoked_at for one in register.issued):
            raise InputError(f"{name} has keys already", hint=f"Renew them: splitrelay keys renew {name}")
        if self._place(name).exists():
            raise OutputError(f"{self._place(name)} is there already", hint="Move it away, or choose another name.")
        refuse_number(register, name, m, now)

    def _dated(self, who: Peer, days: int | None, now: datetime) -> Peer:
        begin = max(now - SKEW, self.signer.certificate.not_valid_before_utc)
        end = end_of(now, days, self.not_after)
        if end <= begin:
            value, hint = f"{now:%Y-%m-%d}", "Set this host's clock."
            raise InputError("it is earlier than the authority was made", value=value, limit=begin, hint=hint)
        return replace(who, serial=x509.random_serial_number(), not_before=begin, not_after=end)

    def _hand_out(self, register: Register, new: Sequence[Peer]) -> list[Handed]:
        """First the register: a certificate that it does not know could never be revoked."""
        self._save(REGISTER, register_file(register))
        return [self._write(who, {**self._own(who), **self._shared(who)}) for who in new]

    def _own(self, who: Peer) -> dict[str, bytes]:
        """What is one holder's alone: a new key, and the certificate for it."""
        key = new_key()
        return {
            CA: read_public(self.folder / CA),
            CERTIFICATE: signed(who, key.public_key(), self.signer).public_bytes(Encoding.PEM),
            KEY: _key_file(key),
            IDENTITY: note_of(who),
        }

    def _settle(self, now: datetime) -> list[Handed]:
        """Make everything follow the register: the epoch, the revocation list, and the folders of all who stay."""
        register = self.register().listing()
        self._save(REGISTER, register_file(register))
        if self._epochs().current < register.least_epoch():
            self._save(SEALING, epochs_file(self._epochs().rotated()))
        out = [(one.who.serial, one.revoked_at) for one in register.revoked() if one.revoked_at]
        self._save(REVOKED, signed_list(register.list_number, out, self.signer, now))
        for one in register.revoked():  # so that `keys show` tells the truth there too
            if self._place(one.who.name).exists():
                self._write(one.who, {REVOKED: read_public(self.folder / REVOKED)})
        return [self._write(one.who, self._shared(one.who)) for one in register.holders(now)]

    def _write(self, who: Peer, files: Mapping[str, bytes]) -> Handed:
        write_folder(self._place(who.name), files)
        return Handed(who, self._place(who.name), tuple(files))

    def _shared(self, who: Peer) -> dict[str, bytes]:
        """What changes for everybody at once: the revocation list, and for those who open halves the secret."""
        files = {REVOKED: read_public(self.folder / REVOKED)}
        return {**files, SEALING: read_private(self.folder / SEALING)} if who.opens_halves else files

    def _epochs(self) -> Epochs:
        return load_epochs(self.folder)

    def _save(self, name: str, content: bytes) -> None:
        write_folder(self.folder, {name: content})

    def _place(self, name: str) -> Path:
        return self.folder.parent / name


def _named(folder: Path) -> Path:
    """The folder by a name that has a parent: keys are written beside it."""
    return folder.resolve() if folder.name in ("", "..") else folder


def _key_file(key: Key) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
