"""A client's half on its way past the server: sealed for the clients, bound to spec, visit, fence and epoch.

    magic 4 | spec digest 32 | visit 8 | fence 8 | epoch 4 | nonce 24 | ChaCha20-Poly1305 of the half, tag 16

Integers are little-endian. The first 80 bytes are readable, and authenticated. Every message has a key of its own,
derived from the epoch's secret and all of these 80 bytes: why, see docs/decisions/0012-identity.md.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from hashlib import sha256

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from splitrelay.errors import InputError, OutOfRange, WorkError
from splitrelay.security.sealing_keys import Epochs, WrongEpoch

MAGIC = b"SRH1"
HEADER = struct.Struct("<4s32sQQI24s")
TAG_BYTES = 16
OVERHEAD = HEADER.size + TAG_BYTES
LARGEST = 2**31 - 1 - OVERHEAD  # bytes of a half, as the cipher's interface takes them at once


class NotOurs(WorkError):
    """A half that this client does not take over."""


class Tampered(NotOurs):
    """What came is not what a client of this consortium sealed."""


class OtherSpec(NotOurs):
    """A half of another experiment."""


class OtherVisit(NotOurs):
    """A half of another visit."""


class OldFence(NotOurs):
    """A half of an attempt that was given up."""


class FutureFence(NotOurs):
    """A half of an attempt that this client has not been told of."""


class OldHalf(NotOurs):
    """A half of the past: one that came after it is known to be committed."""


class LeftOut(NotOurs):
    """A half of another history, without a visit that this client made and the server committed."""


@dataclass(frozen=True)
class Label:
    """What anybody can read on a sealed half; not to be believed before it is opened."""

    spec_digest: bytes
    visit: int
    fence: int
    epoch: int
    nonce: bytes

    def header(self) -> bytes:
        """The bytes in front of the sealed half."""
        return HEADER.pack(MAGIC, self.spec_digest, self.visit, self.fence, self.epoch, self.nonce)


def seal(
    half: bytes, epochs: Epochs, *, spec_hash: str | bytes, visit: int, fence: int, epoch: int | None = None
) -> bytes:
    """The half as it goes past the server, always in the newest epoch; `epoch`, if given, must be that one."""
    if epoch not in (None, epochs.current):
        raise WrongEpoch(f"only epoch {epochs.current} seals", value=epoch, hint="Leave epoch out.")
    if len(half) > LARGEST:
        raise OutOfRange("a half is too large to be sealed", value=len(half), limit=f"at most {LARGEST} bytes")
    for name, number in (("visit", visit), ("fence", fence)):
        if not 0 <= number < 2**64:
            raise OutOfRange(f"{name} does not fit into a sealed half", value=number, limit="0 <= number < 2^64")
    label = Label(digest_of(spec_hash), visit, fence, epochs.current, os.urandom(24))
    cipher, nonce = _cipher(label, epochs)
    return label.header() + cipher.encrypt(nonce, half, label.header())


def unseal(
    sealed: bytes, epochs: Epochs, *, spec_hash: str | bytes, visit: int, fence: int, least_epoch: int = 1
) -> bytes:
    """The half, if it is of this spec, visit and fence, and nobody has touched it.

    A half sealed in an epoch below least_epoch is refused (security/sealing_session.py keeps it for each visit).
    """
    label = label_of(sealed)
    _refuse_others(label, digest_of(spec_hash), visit, fence)
    if label.epoch < least_epoch:
        hint = "A revoked client may have made it: look at the relay."
        raise WrongEpoch(
            "the half was sealed in an epoch that is over", value=label.epoch, limit=least_epoch, hint=hint
        )
    cipher, nonce = _cipher(label, epochs)
    try:
        return cipher.decrypt(nonce, sealed[HEADER.size :], label.header())
    except InvalidTag:
        hint = "It was changed on the way, or sealed with another secret: have the visit replayed."
        raise Tampered(f"the half of visit {visit} is not as it was sealed", hint=hint) from None


def label_of(sealed: bytes) -> Label:
    """What is written on a sealed half, for the relay's records; unproven."""
    if len(sealed) < OVERHEAD or not sealed.startswith(MAGIC):
        raise Tampered("this is no sealed half", value=f"{len(sealed)} bytes", hint="Have the visit replayed.")
    _, digest, visit, fence, epoch, nonce = HEADER.unpack_from(sealed)
    return Label(digest, visit, fence, epoch, nonce)


def _refuse_others(label: Label, digest: bytes, visit: int, fence: int) -> None:
    if label.spec_digest != digest:
        raise OtherSpec("the half belongs to another spec", hint="Start server and clients from the same spec.")
    if label.visit != visit:
        raise OtherVisit("the half is of another visit", value=label.visit, limit=f"visit {visit}")
    if label.fence < fence:
        raise OldFence("the half is of an attempt that was given up", value=label.fence, limit=f"fence {fence}")
    if label.fence > fence:
        raise FutureFence("the half is of a later attempt", value=label.fence, limit=f"fence {fence}")


def _cipher(label: Label, epochs: Epochs) -> tuple[ChaCha20Poly1305, bytes]:
    """A key and a nonce for this one message: first per epoch and spec, then per label with its 24 random bytes."""
    info = b"splitrelay half, epoch %d" % label.epoch
    shared = HKDF(SHA256(), 32, salt=label.spec_digest, info=info).derive(epochs.secret(label.epoch))
    own = HKDFExpand(SHA256(), 44, info=label.header()).derive(shared)
    return ChaCha20Poly1305(own[:32]), own[32:]


def digest_of(spec_hash: str | bytes) -> bytes:
    """Return the spec's hash in 32 bytes, whether it comes as hexadecimal text or as bytes."""
    text = spec_hash if isinstance(spec_hash, str) else spec_hash.hex()
    if not text:
        raise InputError("a half is sealed for a spec; its hash is empty")
    return sha256(text.lower().encode()).digest()
