"""Use renewed keys without a restart: clients read them for each connection, servers for each TLS handshake."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import grpc

from splitrelay.errors import InputError, SplitrelayError
from splitrelay.security.identity import Identity, check_has_hosts, load_identity
from splitrelay.security.key_files import CA, CERTIFICATE, IDENTITY, KEY
from splitrelay.security.revocation import FileStamp, get_file_stamp

FILES = (CERTIFICATE, KEY, IDENTITY, CA)
DRAIN = 0.2  # seconds for handshakes with the old certificate; they need 0.0001


class IdentityReloader:
    """The identity in a folder, read again when the files change. Several threads may use it.

    Args:
        identity: The identity as it was loaded first.
        warn: Called once for each change that cannot be used. The last valid identity stays in use.
    """

    def __init__(self, identity: Identity, warn: Callable[[str], None]) -> None:
        self.folder, self._identity, self._warn = identity.folder, identity, warn
        self._stamps = get_stamps(self.folder)
        self._lock = threading.Lock()  # gRPC calls from its own threads

    def get_identity(self) -> Identity:
        """Return the identity; read the files if one of them has changed."""
        with self._lock:
            stamps = get_stamps(self.folder)
            if stamps != self._stamps:
                self._stamps = stamps
                try:
                    new = load_identity(self.folder)
                    check_same_holder(self._identity, new)
                    self._identity = new
                except SplitrelayError as error:
                    self._warn(f"the old keys stay in use: {error}")
            return self._identity


def get_stamps(folder: Path) -> tuple[FileStamp, ...]:
    """Return values that change when a file of the identity changes."""
    return tuple(get_file_stamp(folder / name) for name in FILES)


def check_same_holder(old: Identity, new: Identity) -> None:
    """Raise an InputError if the new keys have another holder, other roles or another authority."""
    if (old.name, old.roles, old.m, old.ca) != (new.name, new.roles, new.m, new.ca):
        hint = "Start the program again to use another identity."
        raise InputError(f"{new.folder} now belongs to another holder", value=new.name, limit=old.name, hint=hint)


def build_reloading_credentials(reloader: IdentityReloader) -> grpc.ServerCredentials:
    """Build server credentials for mutual TLS that use the certificate in the folder at each handshake."""
    identity = reloader.get_identity()
    check_has_hosts(identity)
    fetch = _build_fetcher(reloader, identity)
    return grpc.dynamic_ssl_server_credentials(_build_configuration(identity), fetch, True)


def _build_fetcher(
    reloader: IdentityReloader, identity: Identity
) -> Callable[[], grpc.ServerCertificateConfiguration | None]:
    """Return the function that gRPC calls before each handshake: it returns None unless the keys have changed.

    When it returns new certificates, gRPC 1.85 frees the old ones while another handshake may still use them, and
    crashes. gRPC calls it for one handshake at a time, so a short wait lets earlier handshakes finish.
    """
    last = identity

    def fetch_configuration() -> grpc.ServerCertificateConfiguration | None:
        nonlocal last
        before, last = last, reloader.get_identity()
        if last is before:
            return None
        time.sleep(DRAIN)
        return _build_configuration(last)

    return fetch_configuration


def _build_configuration(identity: Identity) -> grpc.ServerCertificateConfiguration:
    pair = [(identity.key, identity.certificate)]
    return grpc.ssl_server_certificate_configuration(pair, root_certificates=identity.ca)
