"""The clients' sealing secret, by epoch: the newest seals, the older ones only open what was sealed before."""

from __future__ import annotations

import json
import os
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from splitrelay.errors import InputError, WorkError
from splitrelay.security.key_files import SEALING, read_private
from splitrelay.structured_text import parse_json

SECRET_BYTES = 32


class WrongEpoch(WorkError):
    """A half of an epoch whose secret is not here, or is no longer taken."""


class NoSecret(InputError):
    """The secret cannot be read as it lies there; the file may be on its way."""


@dataclass(frozen=True)
class Epochs:
    """The secret of every epoch so far; its bytes appear in no message and no repr."""

    consortium: str
    secrets: Mapping[int, bytes] = field(repr=False)

    @property
    def current(self) -> int:
        """The epoch that seals."""
        return max(self.secrets)

    def secret(self, epoch: int) -> bytes:
        """The secret of one epoch, if this client was given it."""
        if epoch not in self.secrets:
            hint = f"Ask whoever keeps the authority for the new {SEALING} of this client."
            held = ", ".join(map(str, sorted(self.secrets)))
            raise WrongEpoch(f"the half was sealed in epoch {epoch}; this client has {held}", hint=hint)
        return self.secrets[epoch]

    def rotated(self) -> Epochs:
        """The same with one epoch more."""
        return replace(self, secrets={**self.secrets, self.current + 1: os.urandom(SECRET_BYTES)})


def first_epoch(consortium: str) -> Epochs:
    """A new secret, epoch 1."""
    return Epochs(consortium, {1: os.urandom(SECRET_BYTES)})


def load_epochs(folder: Path) -> Epochs:
    """The sealing secret in a client's folder; read it at every visit, so that a new epoch is seen without restart."""
    path = folder / SEALING
    try:
        return _parsed(read_private(path))
    except InputError as error:
        raise NoSecret(error.what, value=error.value, limit=error.limit, hint=error.hint) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        hint = "Ask whoever keeps the authority for it again."
        raise NoSecret(f"{path} is damaged", hint=hint) from None


def epochs_file(epochs: Epochs) -> bytes:
    """The file that a client is given."""
    secrets = {str(epoch): b64encode(secret).decode() for epoch, secret in sorted(epochs.secrets.items())}
    return json.dumps({"consortium": epochs.consortium, "epochs": secrets}, indent=2).encode() + b"\n"


def _parsed(content: bytes) -> Epochs:
    read = parse_json(content)
    secrets = {int(epoch): b64decode(secret, validate=True) for epoch, secret in read["epochs"].items()}
    if not secrets or min(secrets) < 1 or any(len(secret) != SECRET_BYTES for secret in secrets.values()):
        raise ValueError
    return Epochs(str(read["consortium"]), secrets)
