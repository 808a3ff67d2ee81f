"""One client's sealing and opening from visit to visit: new epochs are seen at once, and epochs never fall."""

from __future__ import annotations

from pathlib import Path

from splitrelay.wire.epochs import load_epochs
from splitrelay.wire.sealing import label_of, seal, unseal


class Sealer:
    """Seals and opens the halves of one spec with the secrets in a client's folder, which are read every time.

    Whoever opened epoch e holds it, and seals in e or a later one: along the visits that were committed, epochs never
    fall. What falls all the same was made with a secret that is over, perhaps by a client that was revoked.
    """

    def __init__(self, folder: Path, spec_hash: str) -> None:
        self.folder, self.spec_hash = folder, spec_hash
        self._since: dict[int, int] = {}  # epoch: the first visit that is known to have been sealed in it

    def seal(self, half: bytes, *, visit: int, fence: int) -> bytes:
        """The half after this visit, in the newest epoch."""
        return seal(half, load_epochs(self.folder), spec_hash=self.spec_hash, visit=visit, fence=fence)

    def unseal(self, sealed: bytes, *, visit: int, fence: int) -> bytes:
        """The half that this visit left, if its epoch is not over."""
        half = unseal(
            sealed,
            load_epochs(self.folder),
            spec_hash=self.spec_hash,
            visit=visit,
            fence=fence,
            least_epoch=self.least_epoch(visit),
        )
        self.committed(sealed)
        return half

    def committed(self, sealed: bytes) -> None:
        """This half is what its visit left: one that we opened, or our own when the server has said so."""
        label = label_of(sealed)
        self._since[label.epoch] = min(label.visit, self._since.get(label.epoch, label.visit))

    def least_epoch(self, visit: int) -> int:
        """The lowest epoch that a half of this visit may have; a visit that is replayed starts from an older half."""
        return max((epoch for epoch, since in self._since.items() if since <= visit), default=1)
