"""Encrypt client halves, so that the server can forward them but not read them.

The clients share a sealing secret, which the server does not have. The authority creates a new secret for each key
epoch, for example after a client is revoked. The newest epoch seals. Older ones only open halves that were sealed
before. A sealed half is bound to the spec, the visit, the fence and the key epoch:

    magic 4 | spec digest 32 | visit 8 | fence 8 | epoch 4 | nonce 24 | ChaCha20-Poly1305 of the half, tag 16

Integers are little-endian. The first 80 bytes, the label, are readable and authenticated. Each sealed half has its own
key, derived from the secret of the epoch and the label (see docs/decisions/security.md).
"""

from __future__ import annotations

import json
import os
import struct
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from splitrelay.errors import InputError, OutOfRange, WorkError
from splitrelay.security.key_files import SEALING, read_private
from splitrelay.structured_text import parse_json

SECRET_BYTES = 32
MAGIC = b"SRH1"
HEADER = struct.Struct("<4s32sQQI24s")
TAG_BYTES = 16
OVERHEAD = HEADER.size + TAG_BYTES
MAX_HALF = 2**31 - 1 - OVERHEAD  # bytes that the cipher accepts in one call


class WrongEpoch(WorkError):
    """The half was sealed in a key epoch whose secret is missing or no longer accepted."""


class SecretUnavailable(InputError):
    """The sealing secret cannot be read. The file may not have been copied to this host yet."""


class RejectedHalf(WorkError):
    """The client does not accept a half."""


class TamperedHalf(RejectedHalf):
    """The half was changed, or was not sealed by a client of this consortium."""


class WrongSpec(RejectedHalf):
    """The half belongs to another spec."""


class WrongVisit(RejectedHalf):
    """The half belongs to another visit."""


class OldFence(RejectedHalf):
    """The half belongs to a cancelled attempt."""


class FutureFence(RejectedHalf):
    """The half belongs to an attempt that this client does not know."""


class OldHalf(RejectedHalf):
    """The half is older than one that is already committed."""


class MissingVisit(RejectedHalf):
    """The half does not include a committed visit of this client."""


@dataclass(frozen=True)
class SealingSecrets:
    """The sealing secret of each key epoch. Its repr does not contain the secrets."""

    consortium: str
    secrets: Mapping[int, bytes] = field(repr=False)

    @property
    def current(self) -> int:
        """The newest key epoch, in which halves are sealed."""
        return max(self.secrets)

    def get_secret(self, epoch: int) -> bytes:
        """Return the secret of a key epoch.

        Raises:
            WrongEpoch: This client does not have it.
        """
        if epoch not in self.secrets:
            hint = f"Ask the administrator of the authority for the new {SEALING} of this client."
            known = ", ".join(map(str, sorted(self.secrets)))
            raise WrongEpoch(f"the half was sealed in key epoch {epoch}; this client has {known}", hint=hint)
        return self.secrets[epoch]

    def add_epoch(self) -> SealingSecrets:
        """Return the secrets with a new random secret for one more epoch."""
        return replace(self, secrets={**self.secrets, self.current + 1: os.urandom(SECRET_BYTES)})


def create_secrets(consortium: str) -> SealingSecrets:
    """Create a random secret for key epoch 1."""
    return SealingSecrets(consortium, {1: os.urandom(SECRET_BYTES)})


def load_secrets(folder: Path) -> SealingSecrets:
    """Read the sealing secrets in a folder of keys. Read them for each visit, so that new epochs need no restart.

    Raises:
        SecretUnavailable: The file is missing, damaged or accessible to other users.
    """
    path = folder / SEALING
    try:
        table = parse_json(read_private(path))
        secrets = {int(epoch): b64decode(secret, validate=True) for epoch, secret in table["epochs"].items()}
        if not secrets or min(secrets) < 1 or any(len(secret) != SECRET_BYTES for secret in secrets.values()):
            raise ValueError
        return SealingSecrets(str(table["consortium"]), secrets)
    except InputError as error:
        raise SecretUnavailable(error.what, value=error.value, limit=error.limit, hint=error.hint) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        hint = "Ask the administrator of the authority for it again."
        raise SecretUnavailable(f"{path} is damaged", hint=hint) from None


def format_secrets(secrets: SealingSecrets) -> bytes:
    """Return the content of the file with the sealing secrets."""
    epochs = {str(epoch): b64encode(secret).decode() for epoch, secret in sorted(secrets.secrets.items())}
    return json.dumps({"consortium": secrets.consortium, "epochs": epochs}, indent=2).encode() + b"\n"


@dataclass(frozen=True)
class Label:
    """The readable part of a sealed half. It is not authenticated until the half is opened."""

    spec_digest: bytes
    visit: int
    fence: int
    epoch: int
    nonce: bytes

    def pack(self) -> bytes:
        """Return the bytes in front of the sealed half."""
        return HEADER.pack(MAGIC, self.spec_digest, self.visit, self.fence, self.epoch, self.nonce)


def seal(
    half: bytes, secrets: SealingSecrets, *, spec_hash: str | bytes, visit: int, fence: int, epoch: int | None = None
) -> bytes:
    """Encrypt a half in the newest key epoch.

    Args:
        half: The bytes to seal.
        secrets: The sealing secrets.
        spec_hash: The hash of the spec.
        visit: The number of the visit that produced the half.
        fence: The fence of that visit.
        epoch: If given, it must be the newest epoch.

    Raises:
        WrongEpoch: `epoch` is not the newest epoch.
        OutOfRange: The half, the visit or the fence is too large.
    """
    if epoch not in (None, secrets.current):
        raise WrongEpoch("only the newest key epoch seals", value=epoch, limit=secrets.current, hint="Leave epoch out.")
    if len(half) > MAX_HALF:
        raise OutOfRange("the half is too large to be sealed", value=len(half), limit=f"at most {MAX_HALF} bytes")
    for name, number in (("visit", visit), ("fence", fence)):
        if not 0 <= number < 2**64:
            raise OutOfRange(f"{name} does not fit into a sealed half", value=number, limit="0 <= number < 2^64")
    label = Label(compute_spec_digest(spec_hash), visit, fence, secrets.current, os.urandom(24))
    cipher, nonce = _derive_cipher(label, secrets)
    return label.pack() + cipher.encrypt(nonce, half, label.pack())


def unseal(
    sealed: bytes, secrets: SealingSecrets, *, spec_hash: str | bytes, visit: int, fence: int, min_epoch: int = 1
) -> bytes:
    """Decrypt a half.

    Args:
        sealed: A sealed half.
        secrets: The sealing secrets.
        spec_hash: The expected hash of the spec.
        visit: The expected visit.
        fence: The expected fence.
        min_epoch: The oldest key epoch that is accepted (see sealing_session).

    Raises:
        RejectedHalf: The half was changed or belongs to another spec, visit or fence.
        WrongEpoch: Its epoch is too old, or its secret is not known.
    """
    label = read_label(sealed)
    _check_label(label, compute_spec_digest(spec_hash), visit, fence)
    if label.epoch < min_epoch:
        hint = "A revoked client may have sealed it. Check the server that forwarded it."
        what = "the half was sealed in an old key epoch"
        raise WrongEpoch(what, value=label.epoch, limit=f"epoch {min_epoch} or later", hint=hint)
    cipher, nonce = _derive_cipher(label, secrets)
    try:
        return cipher.decrypt(nonce, sealed[HEADER.size :], label.pack())
    except InvalidTag:
        hint = "It was changed on the way, or sealed with another secret. The visit must be repeated."
        raise TamperedHalf(f"the half of visit {visit} cannot be decrypted", hint=hint) from None


def read_label(sealed: bytes) -> Label:
    """Read the label of a sealed half without checking it.

    Raises:
        TamperedHalf: The bytes are not a sealed half.
    """
    if len(sealed) < OVERHEAD or not sealed.startswith(MAGIC):
        hint = "The visit must be repeated."
        raise TamperedHalf("the bytes are not a sealed half", value=f"{len(sealed)} bytes", hint=hint)
    _, digest, visit, fence, epoch, nonce = HEADER.unpack_from(sealed)
    return Label(digest, visit, fence, epoch, nonce)


def _check_label(label: Label, digest: bytes, visit: int, fence: int) -> None:
    if label.spec_digest != digest:
        raise WrongSpec("the half belongs to another spec", hint="Start server and clients with the same spec.")
    if label.visit != visit:
        raise WrongVisit("the half belongs to another visit", value=label.visit, limit=f"visit {visit}")
    if label.fence < fence:
        raise OldFence("the half belongs to a cancelled attempt", value=label.fence, limit=f"fence {fence}")
    if label.fence > fence:
        raise FutureFence("the half belongs to a later attempt", value=label.fence, limit=f"fence {fence}")


def _derive_cipher(label: Label, secrets: SealingSecrets) -> tuple[ChaCha20Poly1305, bytes]:
    """Derive key and nonce of one sealed half: first for the epoch and the spec, then for the label."""
    info = b"splitrelay half, epoch %d" % label.epoch
    shared = HKDF(SHA256(), 32, salt=label.spec_digest, info=info).derive(secrets.get_secret(label.epoch))
    own = HKDFExpand(SHA256(), 44, info=label.pack()).derive(shared)
    return ChaCha20Poly1305(own[:32]), own[32:]


def compute_spec_digest(spec_hash: str | bytes) -> bytes:
    """Return 32 bytes for the hash of a spec, given as hexadecimal text or as bytes."""
    text = spec_hash if isinstance(spec_hash, str) else spec_hash.hex()
    if not text:
        raise InputError("the hash of the spec is empty")
    return sha256(text.lower().encode()).digest()
