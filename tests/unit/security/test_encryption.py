"""Does a sealed half open for those it is meant for, in its place, and for nobody else?"""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitrelay.errors import InputError, OutOfRange, SplitrelayError
from splitrelay.security.encryption import (
    OVERHEAD,
    FutureFence,
    OldFence,
    OtherSpec,
    OtherVisit,
    Tampered,
    label_of,
    seal,
    unseal,
)
from splitrelay.security.sealing_keys import Epochs, WrongEpoch, epochs_file, first_epoch

SPEC = "9f" * 32
HALF = bytes(range(256)) * 3
FIRST = Epochs("clinics", {1: b"1" * 32})
SECOND = Epochs("clinics", {1: b"1" * 32, 2: b"2" * 32})
NUMBER = st.integers(0, 2**64 - 1)
repeatable = settings(derandomize=True, deadline=None, database=None, max_examples=200)


def sealed(half: bytes = HALF, epochs: Epochs = SECOND, visit: int = 7, fence: int = 40) -> bytes:
    return seal(half, epochs, spec_hash=SPEC, visit=visit, fence=fence)


def opened(
    blob: bytes, epochs: Epochs = SECOND, spec: str = SPEC, visit: int = 7, fence: int = 40, least_epoch: int = 1
) -> bytes:
    return unseal(blob, epochs, spec_hash=spec, visit=visit, fence=fence, least_epoch=least_epoch)


BLOB = sealed()
LAID_DOWN = (
    "53524831182854d3f745f5d7d30f64ef6a903514c59dd270b7ac6d25e3f7990ef899d27d0300000000000000050000000000"
    "000002000000000102030405060708090a0b0c0d0e0f101112131415161781698e47c74e33460c71213a032e18fe45969899"
)


@repeatable
@given(half=st.binary(max_size=300), visit=NUMBER, fence=NUMBER, spec=st.text(min_size=1, max_size=9))
def test_what_is_sealed_opens(half: bytes, visit: int, fence: int, spec: str) -> None:
    blob = seal(half, SECOND, spec_hash=spec, visit=visit, fence=fence)
    assert len(blob) == len(half) + OVERHEAD
    assert unseal(blob, SECOND, spec_hash=spec, visit=visit, fence=fence) == half


@repeatable
@given(bit=st.integers(0, 8 * len(BLOB) - 1))
def test_any_flipped_bit_is_refused(bit: int) -> None:
    changed = bytearray(BLOB)
    changed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(SplitrelayError) as caught:
        opened(bytes(changed))
    assert "\n" not in str(caught.value)


def test_every_flipped_bit_of_the_label_is_refused() -> None:
    for bit in range(8 * 80):
        changed = bytearray(BLOB)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SplitrelayError):
            opened(bytes(changed))


@repeatable
@given(visit=NUMBER, fence=NUMBER, spec=st.sampled_from([SPEC, "9e" * 32, "9f" * 31]))
def test_another_place_is_refused(visit: int, fence: int, spec: str) -> None:
    if (visit, fence, spec) != (7, 40, SPEC):
        with pytest.raises((OtherSpec, OtherVisit, OldFence, FutureFence)):
            opened(BLOB, spec=spec, visit=visit, fence=fence)


@pytest.mark.parametrize(
    ("attempt", "kind", "words"),
    [
        (lambda: opened(BLOB, spec="00" * 32), OtherSpec, "another spec"),
        (lambda: opened(BLOB, visit=8), OtherVisit, "needs visit 8; got 7"),
        (lambda: opened(BLOB, fence=41), OldFence, "given up; needs fence 41; got 40"),
        (lambda: opened(BLOB, fence=39), FutureFence, "later attempt; needs fence 39; got 40"),
        (lambda: opened(BLOB, epochs=FIRST), WrongEpoch, "sealed in epoch 2; this client has 1"),
        (lambda: opened(sealed(epochs=FIRST), least_epoch=2), WrongEpoch, "an epoch that is over"),
        (lambda: opened(BLOB, epochs=first_epoch("others").rotated()), Tampered, "not as it was sealed"),
        (lambda: opened(BLOB[:-1]), Tampered, "not as it was sealed"),
        (lambda: opened(BLOB + b"\0"), Tampered, "not as it was sealed"),
        (lambda: opened(BLOB[: OVERHEAD - 1]), Tampered, "no sealed half"),
        (lambda: opened(b""), Tampered, "no sealed half"),
        (lambda: opened(HALF), Tampered, "no sealed half"),
        (lambda: sealed(visit=-1), OutOfRange, "visit does not fit"),
        (lambda: sealed(fence=2**64), OutOfRange, "fence does not fit"),
        (lambda: seal(HALF, SECOND, spec_hash="", visit=0, fence=0), InputError, "its hash is empty"),
        (lambda: seal(HALF, SECOND, spec_hash=SPEC, visit=0, fence=0, epoch=1), WrongEpoch, "only epoch 2 seals"),
    ],
)
def test_each_refusal_is_of_its_own_kind(attempt: Callable[[], bytes], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        attempt()
    assert type(caught.value) is kind


def test_a_label_moved_to_another_half_is_refused() -> None:
    other = sealed(b"other", visit=8)
    forged = BLOB[:80] + other[80:]
    with pytest.raises(Tampered):
        opened(forged)


def test_a_relabelled_half_is_refused() -> None:
    """The relay may write visit 8 over visit 7, in a header that is well formed."""
    forged = sealed(visit=8)[:56] + BLOB[56:]
    assert label_of(forged).visit == 8 and label_of(forged).nonce == label_of(BLOB).nonce
    with pytest.raises(Tampered):
        opened(forged, visit=8)


def test_an_old_epoch_opens_and_the_newest_seals() -> None:
    old = sealed(epochs=FIRST)
    assert opened(old, epochs=SECOND) == HALF
    assert label_of(sealed(epochs=SECOND)).epoch == 2


def test_the_same_half_is_never_sealed_the_same_way() -> None:
    blobs = {sealed() for _ in range(20)}
    assert len(blobs) == 20 and len({blob[80:] for blob in blobs}) == 20


def test_the_hash_may_come_as_bytes_or_as_text() -> None:
    blob = seal(HALF, FIRST, spec_hash=bytes.fromhex(SPEC), visit=1, fence=1)
    assert unseal(blob, FIRST, spec_hash=SPEC.upper(), visit=1, fence=1) == HALF


def test_a_sealed_half_shows_nothing_of_what_is_inside() -> None:
    assert not any(HALF[start : start + 4] in BLOB for start in range(0, 256, 4))


def test_no_secret_is_shown() -> None:
    epochs = first_epoch("clinics").rotated()
    text = repr(epochs) + str(label_of(sealed(epochs=epochs)))
    assert "clinics" in text
    assert not any(repr(secret)[2:-1] in text or secret.hex() in text for secret in epochs.secrets.values())
    assert sorted(epochs.secrets) == [1, 2] and b"secret" not in epochs_file(epochs)


def test_the_format_of_today_opens_tomorrow() -> None:
    """A half sealed when the format was laid down; if this fails, deposits on disk can no longer be opened."""
    assert opened(bytes.fromhex(LAID_DOWN), epochs=SECOND, visit=3, fence=5) == b"half"
