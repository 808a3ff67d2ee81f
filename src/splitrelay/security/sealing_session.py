"""One client's sealing and opening from visit to visit: new epochs are seen at once, and nothing ever goes back.

What is sealed is the half, and before it the last visit of every client that it has been through:

    count 4 | count times: client 4, visit 8 | half

Integers are little-endian. A client whose own last visit is not in there has been left out by the server.
"""

from __future__ import annotations

import struct
from pathlib import Path

from splitrelay.security.encryption import (
    LARGEST,
    OVERHEAD,
    Label,
    LeftOut,
    OldHalf,
    Tampered,
    label_of,
    seal,
    unseal,
)
from splitrelay.security.sealing_keys import load_epochs

COUNT, ENTRY = struct.Struct("<I"), struct.Struct("<IQ")
WAY_OUT = "Somebody hands out the past. If the server was set back on purpose, start this client again."


class Sealer:
    """Seals and opens the halves of one spec with the secrets in a client's folder, which are read every time.

    Whoever opened epoch e holds it, and seals in e or a later one: along the visits that were committed, epochs never
    fall. What falls all the same was made with a secret that is over, perhaps by a client that was revoked. Visits
    never fall either: a half older than one that is known to be committed is refused, and so is one that has not been
    through this client's own last visit. All of this is known since the program was started, and kept nowhere.
    """

    def __init__(self, folder: Path, spec_hash: str, m: int | None = None, *, chain: bool = True) -> None:
        self.folder, self.spec_hash, self.m = folder, spec_hash, m
        self.chain = chain  # each visit begins from the one before; else from what a fed server made of many
        self._since: dict[int, int] = {}  # epoch: the first visit that is known to have been sealed in it
        self._newest = (0, 0)  # visit and fence of the newest half that is known to be committed
        self._own = 0  # our own last visit that was committed
        self._last: dict[int, int] = {}  # client: its last visit, as the half has it that was opened last

    def seal(self, half: bytes, *, visit: int, fence: int) -> bytes:
        """The half after this visit, in the newest epoch."""
        last = self._last if self.m is None else {**self._last, self.m: visit}
        history = COUNT.pack(len(last)) + b"".join(ENTRY.pack(*pair) for pair in sorted(last.items()))
        return seal(history + half, load_epochs(self.folder), spec_hash=self.spec_hash, visit=visit, fence=fence)

    def unseal(self, sealed: bytes, *, visit: int, fence: int, committed: bool = True) -> bytes:
        """The half that this visit left, if its epoch is not over and nothing newer is known.

        A half that comes straight from a peer is not committed yet: its visit may still be made again.
        """
        self._refuse_older(visit, fence)
        opened = unseal(
            sealed,
            load_epochs(self.folder),
            spec_hash=self.spec_hash,
            visit=visit,
            fence=fence,
            least_epoch=self.least_epoch(visit),
        )
        last, half = _taken_apart(opened)
        self._refuse_left_out(last)
        self._last = last
        if committed:
            self._known(label_of(sealed))
        return half

    def confirm(self, sealed: bytes) -> None:
        """Remember that this half, which was opened, is the one that counts."""
        self._known(label_of(sealed))

    def inspect(self, sealed: bytes, *, visit: int, fence: int) -> tuple[dict[int, int], bytes]:
        """Open a half for a check: return the last visit of each client, and the half. Nothing is remembered."""
        epochs, least = load_epochs(self.folder), self.least_epoch(visit)
        opened = unseal(sealed, epochs, spec_hash=self.spec_hash, visit=visit, fence=fence, least_epoch=least)
        return _taken_apart(opened)

    def writer(self, visit: int) -> int | None:
        """Name the client that sealed this visit's half, as the half that was opened last says; None if it does not."""
        return next((m for m, last in self._last.items() if last == visit), None)

    def begin(self) -> None:
        """Before the first visit there is no half; if one is known to be committed, that is the past."""
        self._refuse_older(0, 0)
        self._last = {}

    def committed(self, sealed: bytes) -> None:
        """This half of our own is what its visit left: the server has said so."""
        label = label_of(sealed)
        if self.chain:
            self._known(label)
            self._own = max(self._own, label.visit)

    def least_epoch(self, visit: int) -> int:
        """The lowest epoch that a half of this visit may have; a visit that is replayed starts from an older half."""
        return max((epoch for epoch, since in self._since.items() if since <= visit), default=1)

    def _known(self, label: Label) -> None:
        self._since[label.epoch] = min(label.visit, self._since.get(label.epoch, label.visit))
        self._newest = max(self._newest, (label.visit, label.fence))

    def _refuse_older(self, visit: int, fence: int) -> None:
        newest, known = self._newest
        if visit < newest:
            limit = f"visit {newest} or later"
            raise OldHalf("the half is older than one that was committed", value=visit, limit=limit, hint=WAY_OUT)
        if fence != known if visit == newest else fence <= known:
            limit = f"fence {known}" + " or later" * (visit > newest)
            what = f"the half of visit {visit} is not the one that was committed"
            raise OldHalf(what, value=f"fence {fence}", limit=limit, hint=WAY_OUT)

    def _refuse_left_out(self, last: dict[int, int]) -> None:
        if self.m is not None and last.get(self.m, 0) < self._own:
            what = f"the half has not been through visit {self._own}, which this client made and the server committed"
            raise LeftOut(what, hint=WAY_OUT)


def sealed_sizes(half: int) -> range:
    """Return the lengths that a sealed half of so many bytes can have: it lists 0, 1, 2, ... clients."""
    return range(OVERHEAD + COUNT.size + half, LARGEST, ENTRY.size)


def _taken_apart(opened: bytes) -> tuple[dict[int, int], bytes]:
    """(the last visit of each client, the half)."""
    try:
        (count,) = COUNT.unpack_from(opened)
        start = COUNT.size + count * ENTRY.size
        return dict(ENTRY.iter_unpack(opened[COUNT.size : start])), opened[start:]
    except struct.error:
        raise Tampered("what was sealed is no half", hint="Have the visit replayed.") from None
