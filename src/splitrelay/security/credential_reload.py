"""Keys that are renewed while a program runs: a client reads them at every dial, a server at every handshake."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import grpc

from splitrelay.errors import InputError, SplitrelayError
from splitrelay.security.identity import Identity, load_identity, refuse_uncallable
from splitrelay.security.key_files import CA, CERTIFICATE, IDENTITY, KEY
from splitrelay.security.revocation import Stamp, stamp_of

FILES = (CERTIFICATE, KEY, IDENTITY, CA)
DRAIN = 0.2  # seconds; what must be over by then takes a ten-thousandth of a second


class Keys:
    """The identity in a folder as it is now. Files that are of no use are told of once, and the last good ones stay."""

    def __init__(self, identity: Identity, tell: Callable[[str], None]) -> None:
        self.folder, self._identity, self._tell = identity.folder, identity, tell
        self._stamps = stamps(self.folder)
        self._lock = threading.Lock()  # gRPC asks on threads of its own

    def current(self) -> Identity:
        """Read again if the folder has changed; a question costs a look at four files."""
        with self._lock:
            now = stamps(self.folder)
            if now != self._stamps:
                self._stamps = now
                self._take_over()
            return self._identity

    def _take_over(self) -> None:
        try:
            found = load_identity(self.folder)
            refuse_other_holder(self._identity, found)
        except SplitrelayError as error:
            self._tell(f"the keys that were read before stay in use: {error}")
        else:
            self._identity = found


def stamps(folder: Path) -> tuple[Stamp, ...]:
    """When each of the files was last changed."""
    return tuple(stamp_of(folder / name) for name in FILES)


def refuse_other_holder(old: Identity, new: Identity) -> None:
    """Renewing is for the same holder under the same authority."""
    if (old.name, old.roles, old.m, old.ca) != (new.name, new.roles, new.m, new.ca):
        hint = "Start the program again to be somebody else."
        raise InputError(f"{new.folder} is another holder's now", value=new.name, limit=old.name, hint=hint)


def renewed_credentials(keys: Keys) -> grpc.ServerCredentials:
    """Mutual TLS as in server_credentials, with the certificate that lies in the folder when a caller comes."""
    identity = keys.current()
    refuse_uncallable(identity)
    return grpc.dynamic_ssl_server_credentials(_shown(identity), _news(keys, identity), True)


def _news(keys: Keys, shown: Identity) -> Callable[[], grpc.ServerCertificateConfiguration | None]:
    """What gRPC asks at every handshake: None unless the keys are others than before.

    An answer makes gRPC (1.85) throw the old certificates away while another handshake may be about to use them, and
    then it falls. It asks one handshake at a time, so whoever was let pass is given time to be through with them.
    """
    last = shown

    def news() -> grpc.ServerCertificateConfiguration | None:
        nonlocal last
        before, last = last, keys.current()
        if last is before:
            return None
        time.sleep(DRAIN)
        return _shown(last)

    return news


def _shown(identity: Identity) -> grpc.ServerCertificateConfiguration:
    pair = [(identity.key, identity.certificate)]
    return grpc.ssl_server_certificate_configuration(pair, root_certificates=identity.ca)
