"""Transfer of a half of the model: safetensors bytes in numbered chunks, with a SHA-256 of the whole."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from splitrelay.network import limits
from splitrelay.network.codec import BadMessage
from splitrelay.network.messages import Chunk

Vector = npt.NDArray[Any]


def pack_vectors(**vectors: Vector) -> bytes:
    """Return flat vectors as safetensors bytes: x, and others that travel with it."""
    return save({name: np.ascontiguousarray(vector) for name, vector in vectors.items()})


def unpack_vectors(blob: bytes, sizes: Mapping[str, int], dtype: str) -> dict[str, Vector]:
    """Return the vectors. Raises BadMessage for another name, length or dtype, and for NaN or infinity."""
    try:
        found = load(blob)
    except (SafetensorError, KeyError, ValueError) as error:
        raise BadMessage("a half is no safetensors", value=" ".join(str(error).split())[:100]) from None
    if set(found) != set(sizes):
        raise BadMessage("vectors of a half", value=sorted(found)[:10], limit=sorted(sizes))
    for name, vector in found.items():
        if vector.shape != (sizes[name],) or vector.dtype.name != dtype:
            raise BadMessage(
                f"{name} of a half", value=f"{vector.dtype} {vector.shape}", limit=f"{dtype} {sizes[name]}"
            )
        if not np.isfinite(vector).all():
            raise BadMessage(f"{name} of a half holds NaN or infinity", hint="Lower eta, or set clip.")
    return found


def compute_packed_size(sizes: Mapping[str, int], dtype: str) -> int:
    """Return the bytes of such a half, which are known before it comes."""
    return len(pack_vectors(**{name: np.zeros(n, dtype) for name, n in sizes.items()}))


def compute_sha256(blob: bytes | bytearray) -> bytes:
    """Return the digest by which the receiver checks that a half is complete."""
    return hashlib.sha256(blob).digest()


def split_into_chunks(fence: int, blob: bytes, piece: int = limits.PIECE) -> Iterator[Chunk]:
    """Yield the half in chunks, numbered from 0."""
    for k, start in enumerate(range(0, len(blob), piece)):
        yield Chunk(fence, k, blob[start : start + piece])


class Assembly:
    """A half that is being received; it takes no more bytes than its limit."""

    def __init__(self, limit: int) -> None:
        self.limit = min(limit, limits.HALF)
        self._data = bytearray()
        self._chunks = 0
        self._ended = False  # by a short chunk

    @property
    def length(self) -> int:
        """Bytes so far."""
        return len(self._data)

    def add(self, chunk: Chunk) -> int:
        """Add the next chunk and return the bytes so far. Raises BadMessage if it is out of order or too long."""
        if chunk.k != self._chunks:
            raise BadMessage("chunks out of order", value=chunk.k, limit=self._chunks)
        if self.length + len(chunk.data) > self.limit:
            raise BadMessage("a half is too long", limit=f"<= {self.limit} bytes")
        if self._ended:
            raise BadMessage("a chunk that is not the last is too short", limit=f">= {limits.LEAST} bytes")
        self._data += chunk.data
        self._chunks += 1
        self._ended = len(chunk.data) < limits.LEAST
        return self.length

    def blob(self, length: int, digest: bytes) -> bytes:
        """Return the bytes. Raises BadMessage if they are incomplete or their SHA-256 is wrong."""
        if self.length != length or compute_sha256(self._data) != digest:
            raise BadMessage("a half did not come whole", value=f"{self.length} bytes", limit=f"{length} bytes")
        return bytes(self._data)
