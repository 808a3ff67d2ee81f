"""A sealed half can be opened only with its secret and only for its spec, visit and fence."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitrelay.errors import InputError, OutOfRange, SplitrelayError
from splitrelay.security.encryption import (
    OVERHEAD,
    FutureFence,
    OldFence,
    SealingSecrets,
    TamperedHalf,
    WrongEpoch,
    WrongSpec,
    WrongVisit,
    create_secrets,
    format_secrets,
    read_label,
    seal,
    unseal,
)

SPEC = "9f" * 32
HALF = bytes(range(256)) * 3
FIRST = SealingSecrets("clinics", {1: b"1" * 32})
SECOND = SealingSecrets("clinics", {1: b"1" * 32, 2: b"2" * 32})
NUMBER = st.integers(0, 2**64 - 1)
repeatable = settings(max_examples=200)


def seal_half(half: bytes = HALF, epochs: SealingSecrets = SECOND, visit: int = 7, fence: int = 40) -> bytes:
    return seal(half, epochs, spec_hash=SPEC, visit=visit, fence=fence)


def open_half(
    blob: bytes,
    epochs: SealingSecrets = SECOND,
    spec: str = SPEC,
    visit: int = 7,
    fence: int = 40,
    min_epoch: int = 1,
) -> bytes:
    return unseal(blob, epochs, spec_hash=spec, visit=visit, fence=fence, min_epoch=min_epoch)


BLOB = seal_half()
STORED_HALF = (
    "53524831182854d3f745f5d7d30f64ef6a903514c59dd270b7ac6d25e3f7990ef899d27d0300000000000000050000000000"
    "000002000000000102030405060708090a0b0c0d0e0f101112131415161781698e47c74e33460c71213a032e18fe45969899"
)


@repeatable
@given(half=st.binary(max_size=300), visit=NUMBER, fence=NUMBER, spec=st.text(min_size=1, max_size=9))
def test_sealed_half_can_be_opened(half: bytes, visit: int, fence: int, spec: str) -> None:
    blob = seal(half, SECOND, spec_hash=spec, visit=visit, fence=fence)
    assert len(blob) == len(half) + OVERHEAD
    assert unseal(blob, SECOND, spec_hash=spec, visit=visit, fence=fence) == half


@repeatable
@given(bit=st.integers(0, 8 * len(BLOB) - 1))
def test_flipped_bit_raises_error(bit: int) -> None:
    changed = bytearray(BLOB)
    changed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(SplitrelayError) as caught:
        open_half(bytes(changed))
    assert "\n" not in str(caught.value)


def test_flipped_bit_of_label_raises_error() -> None:
    for bit in range(8 * 80):
        changed = bytearray(BLOB)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SplitrelayError):
            open_half(bytes(changed))


@repeatable
@given(visit=NUMBER, fence=NUMBER, spec=st.sampled_from([SPEC, "9e" * 32, "9f" * 31]))
def test_other_spec_visit_or_fence_raises_error(visit: int, fence: int, spec: str) -> None:
    if (visit, fence, spec) != (7, 40, SPEC):
        with pytest.raises((WrongSpec, WrongVisit, OldFence, FutureFence)):
            open_half(BLOB, spec=spec, visit=visit, fence=fence)


@pytest.mark.parametrize(
    ("attempt", "kind", "value"),
    [
        (lambda: open_half(BLOB, spec="00" * 32), WrongSpec, None),
        (lambda: open_half(BLOB, visit=8), WrongVisit, 7),
        (lambda: open_half(BLOB, fence=41), OldFence, 40),
        (lambda: open_half(BLOB, fence=39), FutureFence, 40),
        (lambda: open_half(BLOB, epochs=FIRST), WrongEpoch, None),
        (lambda: open_half(seal_half(epochs=FIRST), min_epoch=2), WrongEpoch, 1),
        (lambda: open_half(BLOB, epochs=create_secrets("others").add_epoch()), TamperedHalf, None),
        (lambda: open_half(BLOB[:-1]), TamperedHalf, None),
        (lambda: open_half(BLOB + b"\0"), TamperedHalf, None),
        (lambda: open_half(BLOB[: OVERHEAD - 1]), TamperedHalf, f"{OVERHEAD - 1} bytes"),
        (lambda: open_half(b""), TamperedHalf, "0 bytes"),
        (lambda: open_half(HALF), TamperedHalf, f"{len(HALF)} bytes"),
        (lambda: seal_half(visit=-1), OutOfRange, -1),
        (lambda: seal_half(fence=2**64), OutOfRange, 2**64),
        (lambda: seal(HALF, SECOND, spec_hash="", visit=0, fence=0), InputError, None),
        (lambda: seal(HALF, SECOND, spec_hash=SPEC, visit=0, fence=0, epoch=1), WrongEpoch, 1),
    ],
)
def test_each_error_has_its_own_class(attempt: Callable[[], bytes], kind: type[SplitrelayError], value: object) -> None:
    with pytest.raises(kind) as caught:
        attempt()
    assert type(caught.value) is kind and caught.value.value == value


def test_label_of_other_half_raises_error() -> None:
    other = seal_half(b"other", visit=8)
    forged = BLOB[:80] + other[80:]
    with pytest.raises(TamperedHalf):
        open_half(forged)


def test_changed_label_raises_error() -> None:
    """The server could write visit 8 over visit 7 in a well-formed label."""
    forged = seal_half(visit=8)[:56] + BLOB[56:]
    assert read_label(forged).visit == 8 and read_label(forged).nonce == read_label(BLOB).nonce
    with pytest.raises(TamperedHalf):
        open_half(forged, visit=8)


def test_old_epoch_opens_and_newest_epoch_seals() -> None:
    old = seal_half(epochs=FIRST)
    assert open_half(old, epochs=SECOND) == HALF
    assert read_label(seal_half(epochs=SECOND)).epoch == 2


def test_two_seals_of_same_half_differ() -> None:
    blobs = {seal_half() for _ in range(20)}
    assert len(blobs) == 20 and len({blob[80:] for blob in blobs}) == 20


def test_spec_hash_can_be_bytes_or_text() -> None:
    blob = seal(HALF, FIRST, spec_hash=bytes.fromhex(SPEC), visit=1, fence=1)
    assert unseal(blob, FIRST, spec_hash=SPEC.upper(), visit=1, fence=1) == HALF


def test_sealed_half_contains_no_plaintext() -> None:
    assert not any(HALF[start : start + 4] in BLOB for start in range(0, 256, 4))


def test_repr_contains_no_secret() -> None:
    epochs = create_secrets("clinics").add_epoch()
    text = repr(epochs) + str(read_label(seal_half(epochs=epochs)))
    assert "clinics" in text
    assert not any(repr(secret)[2:-1] in text or secret.hex() in text for secret in epochs.secrets.values())
    assert sorted(epochs.secrets) == [1, 2] and b"secret" not in format_secrets(epochs)


def test_stored_half_can_be_opened() -> None:
    """If this fails, sealed halves on disk can no longer be opened."""
    assert open_half(bytes.fromhex(STORED_HALF), epochs=SECOND, visit=3, fence=5) == b"half"
