"""Load a client's own images, check them against what the run expects, and compute their digest.

The digest is HMAC-SHA256. Its key is the sealing secret of the first epoch, which all clients of a consortium have and
the server does not, so the server cannot test guesses of the data. Later epochs are not used: after a rotation the
digest must stay the same. A client without keys uses an empty key. The authenticated bytes are

    "splitrelay data digest 1" 0 "train" or "test" 0     then the salt of the run (32 bytes)
    client (4 bytes), samples (8), channels, height, width (4 each)
    all pixels as bytes, all labels as 8-byte integers

with every number little-endian. Samples that are no images have the types of their inputs and targets as text in place
of channels, height and width, and then all numbers of all inputs and of the targets. A client that also brings a test
set sends the HMAC of "splitrelay data digest 1" 0 "both" 0 and its two digests.
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
from splitrelay.data.images import ImageSet, Labels, Samples, get_images
from splitrelay.data.samples import SampleSet
from splitrelay.data.tables import Table, read_table
from splitrelay.data.user_datasets import Raw, read_parts, simplify_labels, to_pixels
from splitrelay.data.user_samples import read_pair
from splitrelay.deploy.sample_terms import is_table_file
from splitrelay.errors import InputError
from splitrelay.network.messages import Terms
from splitrelay.network.server_connection import EVALUATOR_NUMBER
from splitrelay.runs.client_records import PREFIX, make_printable
from splitrelay.runs.spec import Spec
from splitrelay.security.encryption import load_secrets

READING = Lock()  # numpy reads a file's head with ast, which in Python 3.11 can fail where two threads do so at once
WHOLE = re.compile(r"(-?\d+)(\.0+)?")  # a whole number written out, also as some tables write it


def read_raw(path: Path, test: bool = False) -> Raw:
    """Read the images of a file or folder. If it has two parts, read the training part, or with `test` the other."""
    place = path.expanduser()
    with READING:
        if not is_dataset_folder(place):
            train, held = read_parts(place)
            return held if test and held is not None else train
        data = open_dataset(place)
    part = get_images(data.test if test else data.train, str(place))
    return Raw(part.x, part.y, str(place), part.classes)


def read_source(path: Path, agreed: Spec | None = None, *, test: bool = False) -> Raw | Table:
    """Read what a client brings, before it knows the terms.

    Args:
        path: A file or folder.
        agreed: The client's own copy of the spec. It says whether the file has images, a table or arrays. Without it, a
            file that has no images is read as a table or as arrays, and the terms decide later whether it fits.
        test: Read the test part of a file that has two parts.
    """
    place, is_table = path.expanduser(), is_table_file(path)
    if agreed is not None and agreed.data.label and is_table:
        return read_table(place)
    is_open = agreed is None or bool(agreed.data.label) or agreed.data.read_as == "samples"
    try:
        return read_raw(path, test)
    except InputError:
        if not is_open or not (is_table or place.suffix == ".npz"):
            raise
    if is_table:
        return read_table(place)
    features, y, held = read_pair(place, None)
    features, y = held if test and held is not None else (features, y)
    return Raw(features[0], np.asarray(y), str(place))


def get_sample_word(samples: Samples | None) -> str:
    """Return "images" or "samples", for messages to people."""
    return "images" if samples is None or isinstance(samples, ImageSet) else "samples"


def convert_images(raw: Raw, terms: Terms) -> ImageSet:
    """Convert images to the shape, the classes and the pixel values of this run."""
    x = to_pixels(raw, (terms.shape[0], terms.shape[1], terms.shape[2]), terms.peak)
    return ImageSet(x, convert_labels(raw, terms.classes), terms.classes, terms.mean, terms.std, terms.peak)


def convert_labels(raw: Raw, classes: tuple[str, ...]) -> Labels:
    """Convert labels to positions among the run's classes. Numbers are positions only if no class is a number."""
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
    """Return the labels of this run with their positions, and a text that lists them."""
    if by_name:
        return {_normalize_name(name): n for n, name in enumerate(classes)}, "one of " + ", ".join(classes[:20])
    return {str(n): n for n in range(len(classes))}, _describe_range(classes)


def _normalize_labels(raw: Raw, classes: tuple[str, ...]) -> npt.NDArray[Any]:
    """Return the labels as names or numbers. Positions among the source's own names become these names."""
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
    """Return one name for 7, 07 and 7.0."""
    whole = WHOLE.fullmatch(name)
    return name if whole is None else str(int(whole[1]))


def _describe_range(classes: tuple[str, ...]) -> str:
    return f"whole numbers from 0 to {len(classes) - 1}"


TAG = b"splitrelay data digest 1\0"
SHOWN = 40  # classes that are listed
WIDTH = 80  # columns
NAME = 24  # characters of a class that are shown


def compute_digest(images: Samples, *, salt: bytes, secret: bytes, client: int, test: bool = False) -> bytes:
    """Return the digest (32 bytes) of images and labels, as this client's training data or as a test set."""
    numbers = client.to_bytes(4, "little") + len(images).to_bytes(8, "little")
    if not isinstance(images, ImageSet):
        return _compute_sample_digest(images, TAG + (b"test\0" if test else b"train\0") + salt + numbers, secret)
    numbers += b"".join(side.to_bytes(4, "little") for side in images.shape)
    mac = hmac.new(secret, TAG + (b"test\0" if test else b"train\0") + salt + numbers, hashlib.sha256)
    mac.update(np.ascontiguousarray(images.x).data)
    mac.update(np.ascontiguousarray(images.y, dtype="<i8").data)
    return mac.digest()


def _compute_sample_digest(samples: SampleSet, start: bytes, secret: bytes) -> bytes:
    """Return the digest of samples that are no images: the types of inputs and targets, then all numbers."""
    forms = [*map(str, samples.inputs), f"{samples.y.dtype} {samples.y.shape[1:]}"]
    mac = hmac.new(secret, start + "\0".join(["samples", *forms, ""]).encode(), hashlib.sha256)
    for array in (*samples.arrays, samples.y):
        mac.update(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).data)
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
        self._made: tuple[bytes, Samples, Samples | None] | None = None  # from which `_found` was computed
        self._found = b""

    def find(self, salt: bytes, images: Samples | None, test: Samples | None = None) -> bytes:
        """Return the digest to be sent; no bytes where there is no salt or nothing was brought."""
        if not salt or images is None:
            return b""
        made = self._made
        if made is None or made[0] != salt or made[1] is not images or made[2] is not test:
            self._found, self._made = self._compute(salt, images, test), (salt, images, test)
        return self._found

    def _compute(self, salt: bytes, images: Samples, test: Samples | None) -> bytes:
        if self._secret is None:
            self._secret = load_secret(self.keys)
        found = compute_digest(
            images, salt=salt, secret=self._secret, client=self.client, test=self.client == EVALUATOR_NUMBER
        )
        if test is None or self.client == EVALUATOR_NUMBER:
            return found
        other = compute_digest(test, salt=salt, secret=self._secret, client=self.client, test=True)
        return combine_digests(found, other, self._secret)


def describe_data(name: str, images: Samples, digest: bytes = b"") -> str:
    """Return count, shape, classes and the first digits of the digest, for a person who checks them.

    Names of classes come from the server, so they are made printable.
    """
    shape, word = " x ".join(map(str, images.shape)), get_sample_word(images)
    if images.target != "classes":
        lines = [f"{name} brings {len(images)} {word} of shape {shape} with targets of the kind {images.target}"]
        return "\n".join(lines + [f"  data digest in this run: {digest.hex()[:PREFIX]}"] * bool(digest))
    counts = np.bincount(images.y, minlength=len(images.classes))
    held = [c for c in range(len(counts)) if counts[c]]
    lines = [f"{name} brings {len(images)} {word} of shape {shape} in {len(held)} of {len(counts)} classes"]
    if digest:
        lines.append(f"  data digest in this run: {digest.hex()[:PREFIX]}")
    each = [f"{make_printable(images.classes[c], NAME)}: {counts[c]}" for c in held[:SHOWN]]
    each += [f"and {len(held) - SHOWN} more classes"] * (len(held) > SHOWN)
    lines += textwrap.wrap(f"  {word} per class: " + ", ".join(each), WIDTH, subsequent_indent="    ")
    return "\n".join(lines)
