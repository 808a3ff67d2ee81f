"""The authority of a consortium: it issues, renews and revokes keys and distributes the clients' sealing secret.

The authority has a folder. The folders of the holders are written next to it. Each command writes the registry first.
Revocation list, sealing secret and folders are then derived from it. If a command is killed at any moment, running it
again completes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from splitrelay.errors import InputError, OutOfRange, OutputError
from splitrelay.security.certificate_registry import (
    CertificateRegistry,
    format_identity,
    format_registry,
    parse_registry,
)
from splitrelay.security.certificates import (
    CLIENT,
    CLOCK_SKEW,
    EVALUATOR,
    FED,
    NAME,
    OBSERVER,
    SERVER,
    Peer,
    PrivateKey,
    Signer,
    build_authority_certificate,
    build_certificate,
    build_host_name,
    format_serial,
    generate_key,
    parse_certificate,
    parse_peer,
    round_time,
)
from splitrelay.security.encryption import SealingSecrets, create_secrets, format_secrets, load_secrets
from splitrelay.security.key_files import (
    CA,
    CA_KEY,
    CERTIFICATE,
    IDENTITY,
    KEY,
    REGISTRY,
    REVOKED,
    SEALING,
    check_folder,
    lock_folder,
    read_private,
    read_public,
    write_folder,
)
from splitrelay.security.revocation import build_revocation_list, read_revocation_list

AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS, MAX_DAYS = 365, 36500
CONSORTIUM_NAME = re.compile(r"[^\W_][\w .,&()-]{0,63}")


@dataclass(frozen=True)
class KeyDelivery:
    """A holder whose folder has changed, and the names of the files that must be brought to its host."""

    peer: Peer
    folder: Path
    files: tuple[str, ...]


@dataclass(frozen=True)
class KeyStatus:
    """One certificate as `keys show` shows it.

    Attributes:
        peer: The holder.
        state: "valid", "expired", "revoked", "replaced" or "not valid yet".
        days_left: Whole days until it expires; negative afterwards.
        epochs: Key epochs of the sealing secret in the holder's folder.
        revoked: Whether it is revoked; None if there is no revocation list.
    """

    peer: Peer
    state: str
    days_left: int
    epochs: tuple[int, ...] = ()
    revoked: bool | None = None

    @property
    def serial(self) -> str:
        """The serial number in hexadecimal."""
        return format_serial(self.peer.serial)

    @property
    def roles(self) -> str:
        """All roles, separated by commas."""
        return ", ".join(self.peer.roles)


def create_authority(
    folder: Path, consortium: str = "consortium", days: int = AUTHORITY_DAYS, now: datetime | None = None
) -> Authority:
    """Create an authority and the sealing secret of key epoch 1.

    Args:
        folder: The new folder.
        consortium: Name of the consortium in all certificates.
        days: How long the authority is valid.
        now: The current time; for tests.

    Raises:
        InputError: The name is not valid.
        OutputError: The folder exists.
    """
    if not CONSORTIUM_NAME.fullmatch(consortium):
        limit = "1 to 64 letters, digits, spaces and .,&()-"
        raise InputError("the name of the consortium is not valid", value=repr(consortium), limit=limit)
    folder = _resolve_folder(folder)
    if folder.exists():
        hint = "Choose another --folder. Without this authority, the keys that it has issued cannot be renewed."
        raise OutputError(f"the folder {folder} exists", hint=hint)
    begin, key = round_time(now), generate_key()
    certificate = build_authority_certificate(consortium, key, begin - CLOCK_SKEW, _compute_end(begin, days, None))
    signer, registry = Signer(certificate, key), CertificateRegistry(consortium).increment_list_number()
    files = {
        CA: certificate.public_bytes(Encoding.PEM),
        CA_KEY: _format_key(key),
        REGISTRY: format_registry(registry),
        SEALING: format_secrets(create_secrets(consortium)),
        REVOKED: build_revocation_list(registry.list_number, [], signer, begin),
    }
    write_folder(folder, files)
    return Authority(folder, signer)


def open_authority(folder: Path) -> Authority:
    """Open the authority in a folder.

    Raises:
        InputError: There is no authority, or its files are damaged or accessible to other users.
    """
    folder = _resolve_folder(folder)
    if not (folder / CA_KEY).exists():
        hint = f"Create one: splitrelay keys authority --folder {folder}"
        raise InputError(f"the folder {folder} contains no authority", hint=hint)
    check_folder(folder)
    try:
        key = load_pem_private_key(read_private(folder / CA_KEY), password=None)
    except (ValueError, TypeError):
        raise InputError(f"{folder / CA_KEY} is damaged", hint="Restore it from a backup.") from None
    certificate = parse_certificate(read_public(folder / CA))
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise InputError(f"{folder / CA_KEY} is not the key of {CA}", hint="Restore both from a backup.")
    return Authority(folder, Signer(certificate, key))


def list_keys(folder: Path, now: datetime | None = None) -> list[KeyStatus]:
    """Return the status of all certificates of an authority, or of the one in a holder's folder.

    Expired, revoked and readable keys are listed too; they raise no error.

    Raises:
        InputError: The folder contains no keys.
    """
    now = round_time(now)
    if (folder / CA_KEY).exists():
        registry = open_authority(folder).read_registry()
        return [
            _build_status(one.peer, now, one.revoked_at is not None, registry.get_newest(one.peer.name) != one)
            for one in registry.certificates
        ]
    if not (folder / CERTIFICATE).exists():
        hint = "Create keys: splitrelay keys authority, then splitrelay keys issue NAME."
        raise InputError(f"the folder {folder} contains no keys", hint=hint)
    peer = parse_peer(read_public(folder / CERTIFICATE))
    revoked = None
    if (folder / REVOKED).exists():
        revoked = peer.serial in read_revocation_list(folder / REVOKED, read_public(folder / CA)).serials
    epochs = tuple(sorted(load_secrets(folder).secrets)) if (folder / SEALING).exists() else ()
    return [replace(_build_status(peer, now, bool(revoked), False), epochs=epochs, revoked=revoked)]


def _build_status(peer: Peer, now: datetime, revoked: bool, replaced: bool) -> KeyStatus:
    if revoked:
        state = "revoked"
    elif now > peer.not_after:
        state = "expired"
    elif now < peer.not_before:
        state = "not valid yet"
    else:
        state = "replaced" if replaced else "valid"
    return KeyStatus(peer, state, peer.count_days_left(now), revoked=revoked)


@dataclass(frozen=True)
class Authority:
    """Certificate authority. Anyone with access to its folder can impersonate any participant."""

    folder: Path
    signer: Signer = field(repr=False)

    @property
    def not_after(self) -> datetime:
        """When the authority and all its certificates expire."""
        return self.signer.certificate.not_valid_after_utc

    def read_registry(self) -> CertificateRegistry:
        """Read the registry of all issued certificates."""
        try:
            return parse_registry(read_private(self.folder / REGISTRY))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError(f"{self.folder / REGISTRY} is damaged", hint="Restore it from a backup.") from None

    def get_epoch(self) -> int:
        """Return the current key epoch."""
        return self._load_secrets().current

    def issue_server(
        self, name: str, hosts: Sequence[str], days: int | None = None, now: datetime | None = None
    ) -> KeyDelivery:
        """Issue keys for a server that clients reach at these hosts.

        Raises:
            InputError: There are no hosts, or the name or a host is not valid or the name has keys.
        """
        if not hosts:
            hint = f"Example: splitrelay keys issue {name} --host s.example.org"
            raise InputError("a server needs the hosts at which its clients reach it", hint=hint)
        return self._issue([_build_request(name, (SERVER,), None, hosts)], days, round_time(now))[0]

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
    ) -> KeyDelivery:
        """Issue keys for a holder with one or several roles.

        Args:
            name: The holder's name, which is also the name of its folder.
            m: The client's number, if it is a client.
            evaluator: Whether it evaluates the model.
            observer: Whether it may ask for the status and download the model.
            fed: Whether it is the fed server.
            hosts: Where other clients reach it (peer to peer).
            days: How long the certificate is valid; by default 365 days, or until the authority expires.
            now: The current time; for tests.

        Raises:
            InputError: There is no role, or the name, the number or a host is not valid or in use.
        """
        has = {CLIENT: m is not None, EVALUATOR: evaluator, OBSERVER: observer, FED: fed}
        roles = tuple(role for role, is_held in has.items() if is_held)
        if not roles:
            hint = "Give --host for a server, or --client m, --evaluator, --observer, --fed-server."
            raise InputError(f"{name} needs a role", hint=hint)
        return self._issue([_build_request(name, roles, m, hosts)], days, round_time(now))[0]

    def issue_clients(
        self, numbers: Mapping[str, int], days: int | None = None, now: datetime | None = None
    ) -> list[KeyDelivery]:
        """Issue keys for several clients, by name and number; issue none if one of them is not valid."""
        requests = [_build_request(name, (CLIENT,), m, ()) for name, m in numbers.items()]
        return self._issue(requests, days, round_time(now))

    def renew(self, name: str, days: int | None = None, now: datetime | None = None) -> KeyDelivery:
        """Issue a new key and certificate to the same holder. The old certificate stays valid until it expires.

        Raises:
            InputError: The name is unknown or revoked, or its number now belongs to another client.
        """
        with lock_folder(self.folder):
            registry = self.read_registry()
            old = registry.get_newest(name)
            if old.revoked_at:
                hint = f"Move {self._get_folder(name)} away and issue new keys."
                raise InputError(f"{name} is revoked", hint=hint)
            _check_number(registry, name, old.peer.m, round_time(now))
            peer = self._set_dates(old.peer, days, round_time(now))
            return self._deliver(registry.add(peer), [peer])[0]

    def revoke(self, name: str, now: datetime | None = None) -> list[KeyDelivery]:
        """Revoke a holder: write a new revocation list, and a new key epoch if the holder had the sealing secret.

        Returns:
            All other holders, whose folders have changed.
        """
        with lock_folder(self.folder):
            registry = self.read_registry()
            registry.get_newest(name)  # raises an error if the name is unknown
            registry = registry.revoke(name, round_time(now), self.get_epoch())
            self._write(REGISTRY, format_registry(registry))
            return self._apply_registry(round_time(now))

    def rotate(self, now: datetime | None = None) -> list[KeyDelivery]:
        """Start a new key epoch; return the holders of the sealing secret, whose folders have changed."""
        with lock_folder(self.folder):
            self._write(SEALING, format_secrets(self._load_secrets().add_epoch()))
            files = {SEALING: read_private(self.folder / SEALING)}
            peers = self.read_registry().list_valid(round_time(now))
            return [self._write_folder(peer, files) for peer in peers if peer.can_open_halves]

    def _issue(self, requests: Sequence[Peer], days: int | None, now: datetime) -> list[KeyDelivery]:
        with lock_folder(self.folder):
            registry, peers = self.read_registry(), list[Peer]()
            for request in requests:
                self._check_available(registry, request.name, request.m, now)
                peers.append(self._set_dates(replace(request, consortium=registry.consortium), days, now))
                registry = registry.add(peers[-1])
            return self._deliver(registry, peers)

    def _check_available(self, registry: CertificateRegistry, name: str, m: int | None, now: datetime) -> None:
        if any(one.peer.name == name and not one.revoked_at for one in registry.certificates):
            raise InputError(f"{name} has keys already", hint=f"Renew them: splitrelay keys renew {name}")
        if self._get_folder(name).exists():
            hint = "Move it away, or choose another name."
            raise OutputError(f"the folder {self._get_folder(name)} exists", hint=hint)
        _check_number(registry, name, m, now)

    def _set_dates(self, peer: Peer, days: int | None, now: datetime) -> Peer:
        begin = max(now - CLOCK_SKEW, self.signer.certificate.not_valid_before_utc)
        end = _compute_end(now, days, self.not_after)
        if end <= begin:
            what = "the current date is before the creation of the authority"
            raise InputError(what, value=f"{now:%Y-%m-%d}", limit=begin, hint="Set this host's clock.")
        return replace(peer, serial=x509.random_serial_number(), not_before=begin, not_after=end)

    def _deliver(self, registry: CertificateRegistry, peers: Sequence[Peer]) -> list[KeyDelivery]:
        """Write the registry first: a certificate that it does not contain could never be revoked."""
        self._write(REGISTRY, format_registry(registry))
        return [
            self._write_folder(peer, {**self._create_keys(peer), **self._read_shared_files(peer)}) for peer in peers
        ]

    def _create_keys(self, peer: Peer) -> dict[str, bytes]:
        key = generate_key()
        return {
            CA: read_public(self.folder / CA),
            CERTIFICATE: build_certificate(peer, key.public_key(), self.signer).public_bytes(Encoding.PEM),
            KEY: _format_key(key),
            IDENTITY: format_identity(peer),
        }

    def _read_shared_files(self, peer: Peer) -> dict[str, bytes]:
        """Return the files that are the same for all holders: the revocation list and the sealing secret."""
        files = {REVOKED: read_public(self.folder / REVOKED)}
        return {**files, SEALING: read_private(self.folder / SEALING)} if peer.can_open_halves else files

    def _apply_registry(self, now: datetime) -> list[KeyDelivery]:
        """Write sealing secret, revocation list and the folders of all valid holders as the registry says."""
        registry = self.read_registry().increment_list_number()
        self._write(REGISTRY, format_registry(registry))
        if self.get_epoch() < registry.get_min_epoch():
            self._write(SEALING, format_secrets(self._load_secrets().add_epoch()))
        revoked = registry.list_revoked()
        dates = [(one.peer.serial, one.revoked_at) for one in revoked if one.revoked_at]
        self._write(REVOKED, build_revocation_list(registry.list_number, dates, self.signer, now))
        for one in revoked:  # so that `keys show` reports the revocation for these folders too
            if self._get_folder(one.peer.name).exists():
                self._write_folder(one.peer, {REVOKED: read_public(self.folder / REVOKED)})
        return [self._write_folder(peer, self._read_shared_files(peer)) for peer in registry.list_valid(now)]

    def _write_folder(self, peer: Peer, files: Mapping[str, bytes]) -> KeyDelivery:
        folder = self._get_folder(peer.name)
        write_folder(folder, files)
        return KeyDelivery(peer, folder, tuple(files))

    def _write(self, name: str, content: bytes) -> None:
        write_folder(self.folder, {name: content})

    def _load_secrets(self) -> SealingSecrets:
        return load_secrets(self.folder)

    def _get_folder(self, name: str) -> Path:
        return self.folder.parent / name


def _build_request(name: str, roles: tuple[str, ...], m: int | None, hosts: Sequence[str]) -> Peer:
    """Check the name, number and hosts of a new holder; return it without serial number and dates."""
    if not NAME.fullmatch(name):
        raise InputError("the name is not valid", value=repr(name), limit="1 to 63 letters, digits, '.', '_' and '-'")
    if m is not None and not 0 <= m < 10**9:
        raise OutOfRange("the client's number", value=m, limit="0 <= m < 10^9")
    for host in hosts:
        build_host_name(host)
    return Peer(name, roles, m, tuple(hosts), "", 0, datetime.min, datetime.min)


def _check_number(registry: CertificateRegistry, name: str, m: int | None, now: datetime) -> None:
    """Raise an InputError if client m has another name."""
    for peer in registry.list_valid(now):
        if m is not None and peer.m == m and peer.name != name:
            hint = f"Revoke it first: splitrelay keys revoke {peer.name}"
            raise InputError(f"client {m} is {peer.name} already", hint=hint)


def _compute_end(now: datetime, days: int | None, latest: datetime | None) -> datetime:
    """Return the end of a new certificate: at most `latest`, when the authority expires."""
    if days is not None and not 1 <= days <= MAX_DAYS:
        raise OutOfRange("days", value=days, limit=f"1 <= days <= {MAX_DAYS}")
    end = now + timedelta(days=CERTIFICATE_DAYS if days is None else days)
    if latest is None or end <= latest:
        return end
    if days is None and latest > now:
        return latest
    raise OutOfRange("the authority expires earlier", value=f"{end:%Y-%m-%d}", limit=f"at most {latest:%Y-%m-%d}")


def _resolve_folder(folder: Path) -> Path:
    """Return a path with a parent, because keys are written next to the folder."""
    return folder.resolve() if folder.name in ("", "..") else folder


def _format_key(key: PrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
