"""Load a client's own images, check them against what the run expects, and compute their digest.

The digest is HMAC-SHA256. Its key is the sealing secret of the first epoch, which all clients of a consortium have and
the server does not, so the server cannot test guesses of the data. Later epochs are not used: after a rotation the
digest must stay the same. A client without keys uses an empty key. The authenticated bytes are

    "splitrelay data digest 1" 0 "train" or "test" 0     then the salt of the run (32 bytes)
    client (4 bytes), samples (8), channels, height, width (4 each)
    all pixels as bytes, all labels as 8-byte integers

with every number little-endian. A client that also brings a test set sends the HMAC of "splitrelay data digest 1" 0
"both" 0 and its two digests.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import textwrap
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from splitrelay.data.cache import is_dataset_folder, open_dataset
from splitrelay.data.images import ImageSet, Labels
from splitrelay.data.user_datasets import Raw, read_parts, simplify_labels, to_pixels
from splitrelay.errors import InputError
from splitrelay.network.connection_handler import EVALUATOR_NUMBER
from splitrelay.network.messages import Terms
from splitrelay.runs.client_records import PREFIX, make_printable
from splitrelay.security.encryption import load_secrets

READING = Lock()  # numpy reads a file's head with ast, which in Python 3.11 can fail where two threads do so at once
WHOLE = re.compile(r"(-?\d+)(\.0+)?")  # a whole number written out, also as some tables write it


def read_raw(path: Path, test: bool = False) -> Raw:
    """The images of a file or folder, as they are; where it has two parts, its training part, or its `test` part."""
    place = path.expanduser()
    with READING:
        if not is_dataset_folder(place):
            train, held = read_parts(place)
            return held if test and held is not None else train
        data = open_dataset(place)
    part = data.test if test else data.train
    return Raw(part.x, part.y, str(place), part.classes)


def convert_images(raw: Raw, terms: Terms) -> ImageSet:
    """These images as this run's: its shape, its classes, its way to make a pixel a number."""
    x = to_pixels(raw, (terms.shape[0], terms.shape[1], terms.shape[2]), terms.peak)
    return ImageSet(x, convert_labels(raw, terms.classes), terms.classes, terms.mean, terms.std, terms.peak)


def convert_labels(raw: Raw, classes: tuple[str, ...]) -> Labels:
    """Each label as a position among the run's classes: numbers are positions only where no class is a number."""
    y = _normalize_labels(raw, classes)
    written, which = np.unique(y, return_inverse=True)
    known, limit = _list_labels(classes, by_name=y.dtype.kind not in "iu" or any(map(WHOLE.fullmatch, classes)))
    keys = [_normalize_name(str(label)) for label in written.tolist()]
    strangers = [str(label) for label, key in zip(written, keys, strict=True) if key not in known]
    if strangers:
        what = f"labels of {raw.of} are not this run's classes"
        raise InputError(what, value=", ".join(strangers[:5]), limit=limit)
    return np.array([known[key] for key in keys], dtype=np.int64)[which]


def _list_labels(classes: tuple[str, ...], by_name: bool) -> tuple[dict[str, int], str]:
    """The labels that this run knows, with their positions; and how to say which."""
    if by_name:
        return {_normalize_name(name): n for n, name in enumerate(classes)}, "one of " + ", ".join(classes[:20])
    return {str(n): n for n in range(len(classes))}, _describe_range(classes)


def _normalize_labels(raw: Raw, classes: tuple[str, ...]) -> npt.NDArray[Any]:
    """The labels as names or numbers; positions among the source's own names as these names."""
    y = simplify_labels(raw)
    if y.dtype.kind == "b" and not {"False", "True"} & set(classes):
        return y.astype(np.int64)
    if raw.classes is None or y.dtype.kind not in "iu":
        return y
    strangers = np.unique(y[(y < 0) | (y >= len(raw.classes))])
    if strangers.size:
        found = ", ".join(map(str, strangers[:5].tolist()))
        raise InputError(
            f"{raw.of} has labels outside its own classes", value=found, limit=_describe_range(raw.classes)
        )
    names: npt.NDArray[Any] = np.asarray(raw.classes)[y]
    return names


def _normalize_name(name: str) -> str:
    """What makes 7, 07 and 7.0 one name."""
    whole = WHOLE.fullmatch(name)
    return name if whole is None else str(int(whole[1]))


def _describe_range(classes: tuple[str, ...]) -> str:
    return f"whole numbers from 0 to {len(classes) - 1}"


TAG = b"splitrelay data digest 1\0"
SHOWN = 40  # classes that are listed
WIDTH = 80  # columns
NAME = 24  # characters of a class that are shown


def compute_digest(images: ImageSet, *, salt: bytes, secret: bytes, client: int, test: bool = False) -> bytes:
    """Return the digest (32 bytes) of images and labels, as this client's training data or as a test set."""
    numbers = client.to_bytes(4, "little") + len(images).to_bytes(8, "little")
    numbers += b"".join(side.to_bytes(4, "little") for side in images.shape)
    mac = hmac.new(secret, TAG + (b"test\0" if test else b"train\0") + salt + numbers, hashlib.sha256)
    mac.update(np.ascontiguousarray(images.x).data)
    mac.update(np.ascontiguousarray(images.y, dtype="<i8").data)
    return mac.digest()


def combine_digests(train: bytes, test: bytes, secret: bytes) -> bytes:
    """Return the digest of a client that brings training data and a test set."""
    return hmac.new(secret, TAG + b"both\0" + train + test, hashlib.sha256).digest()


def load_secret(keys: Path | None) -> bytes:
    """Return the sealing secret of the first epoch, or no bytes for a client without keys."""
    if keys is None:
        return b""
    epochs = load_secrets(keys)
    return epochs.get_secret(min(epochs.secrets))


class DataDigests:
    """Computes the digest of one client's data, once per salt, and reuses it for later connections."""

    def __init__(self, client: int, keys: Path | None) -> None:
        self.client, self.keys = client, keys
        self._secret: bytes | None = None
        self._made: tuple[bytes, ImageSet, ImageSet | None] | None = None  # from which `_found` was computed
        self._found = b""

    def find(self, salt: bytes, images: ImageSet | None, test: ImageSet | None = None) -> bytes:
        """Return the digest to be sent; no bytes where there is no salt or nothing was brought."""
        if not salt or images is None:
            return b""
        made = self._made
        if made is None or made[0] != salt or made[1] is not images or made[2] is not test:
            self._found, self._made = self._compute(salt, images, test), (salt, images, test)
        return self._found

    def _compute(self, salt: bytes, images: ImageSet, test: ImageSet | None) -> bytes:
        if self._secret is None:
            self._secret = load_secret(self.keys)
        found = compute_digest(
            images, salt=salt, secret=self._secret, client=self.client, test=self.client == EVALUATOR_NUMBER
        )
        if test is None or self.client == EVALUATOR_NUMBER:
            return found
        other = compute_digest(test, salt=salt, secret=self._secret, client=self.client, test=True)
        return combine_digests(found, other, self._secret)


def describe_data(name: str, images: ImageSet, digest: bytes = b"") -> str:
    """Return count, shape, classes and the first digits of the digest, for a person who checks them.

    Names of classes come from the server, so they are made printable.
    """
    counts = np.bincount(images.y, minlength=len(images.classes))
    shape = " x ".join(map(str, images.shape))
    held = [c for c in range(len(counts)) if counts[c]]
    lines = [f"{name} brings {len(images)} images of shape {shape} in {len(held)} of {len(counts)} classes"]
    if digest:
        lines.append(f"  data digest in this run: {digest.hex()[:PREFIX]}")
    each = [f"{make_printable(images.classes[c], NAME)}: {counts[c]}" for c in held[:SHOWN]]
    each += [f"and {len(held) - SHOWN} more classes"] * (len(held) > SHOWN)
    lines += textwrap.wrap("  images per class: " + ", ".join(each), WIDTH, subsequent_indent="    ")
    return "\n".join(lines)
