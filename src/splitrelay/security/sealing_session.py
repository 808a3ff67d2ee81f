"""Seal and open the halves of one client during a run, and reject halves of the past.

A sealed half starts with its history: the last visit of every client that it has passed through.

    count 4 | count times: client 4, visit 8 | half

Integers are little-endian. Rules:

- A client that has opened epoch e has the secret of e, and seals in e or later. So epochs never decrease along the
  committed visits. A half with an older epoch was sealed with an old secret, perhaps by a revoked client.
- Visits never decrease either. A half that is older than a committed one is rejected.
- A half whose history lacks the last committed visit of this client is rejected: the server has left the visit out.

All of this is known since the program started, and is not stored.
"""

from __future__ import annotations

import struct
from pathlib import Path

from splitrelay.security.encryption import (
    MAX_HALF,
    OVERHEAD,
    Label,
    MissingVisit,
    OldHalf,
    TamperedHalf,
    load_secrets,
    read_label,
    seal,
    unseal,
)

COUNT, ENTRY = struct.Struct("<I"), struct.Struct("<IQ")
HINT = "The server sent an old half. If it was set back on purpose, start this client again."


class Sealer:
    """Seals and opens the halves of one run. The secrets are read from the folder each time.

    Args:
        folder: The client's folder of keys.
        spec_hash: The hash of the spec.
        m: The client's number; None for the evaluator and the fed server.
        chain: Whether each visit starts from the half of the visit before. Otherwise it starts from an average.
        clients: The number of clients. A half that lists others is rejected: with enough of them, the half of the next
            client would be too long. None: not checked.
    """

    def __init__(
        self, folder: Path, spec_hash: str, m: int | None = None, *, chain: bool = True, clients: int | None = None
    ) -> None:
        self.folder, self.spec_hash, self.m, self.chain, self.clients = folder, spec_hash, m, chain, clients
        self._epoch_starts: dict[int, int] = {}  # epoch: the first visit that is known to be sealed in it
        self._newest = (0, 0)  # visit and fence of the newest half that is known to be committed
        self._own_visit = 0  # the last committed visit of this client
        self._history: dict[int, int] = {}  # client: its last visit, from the half that was opened last

    def seal(self, half: bytes, *, visit: int, fence: int) -> bytes:
        """Seal the half after a visit of this client, in the newest key epoch."""
        history = self._history if self.m is None else {**self._history, self.m: visit}
        header = COUNT.pack(len(history)) + b"".join(ENTRY.pack(*pair) for pair in sorted(history.items()))
        return seal(header + half, load_secrets(self.folder), spec_hash=self.spec_hash, visit=visit, fence=fence)

    def unseal(self, sealed: bytes, *, visit: int, fence: int, committed: bool = True) -> bytes:
        """Open the half that a visit has produced.

        Args:
            sealed: The sealed half.
            visit: The expected visit.
            fence: The expected fence.
            committed: Whether the visit is committed. If not, it may still be repeated.

        Raises:
            RejectedHalf: The half was changed, is too old, or lacks a visit of this client.
            WrongEpoch: Its key epoch is too old, or its secret is not known.
            SecretUnavailable: The secrets cannot be read.
        """
        self._check_not_older(visit, fence)
        history, half = self.inspect(sealed, visit=visit, fence=fence)
        if self.m is not None and history.get(self.m, 0) < self._own_visit:
            raise MissingVisit(
                f"the half does not include the committed visit {self._own_visit} of this client", hint=HINT
            )
        self._history = history
        if committed:
            self.confirm(sealed)
        return half

    @property
    def newest(self) -> tuple[int, int]:
        """Visit and fence of the newest half that is known to be committed."""
        return self._newest

    def go_back(self, newest: tuple[int, int]) -> None:
        """Return to an older half after a failed visit, because the newest half may be the reason of the failure.

        The record of this client's visits and of the key epochs stays.
        """
        self._newest = newest

    def inspect(self, sealed: bytes, *, visit: int, fence: int) -> tuple[dict[int, int], bytes]:
        """Open a half without changing the state of this session; return its history and the half."""
        opened = unseal(
            sealed,
            load_secrets(self.folder),
            spec_hash=self.spec_hash,
            visit=visit,
            fence=fence,
            min_epoch=self.get_min_epoch(visit),
        )
        history, half = _split_history(opened)
        if max(history.values(), default=0) > visit:  # it would hide that visits of other clients are missing
            value, limit = max(history.values()), f"at most visit {visit}"
            raise TamperedHalf("the half lists a visit that is still to come", value=value, limit=limit)
        if self.clients is not None and max(history, default=0) >= self.clients:
            limit = f"clients 0 to {self.clients - 1}"
            raise TamperedHalf("the half lists a client that does not exist", value=max(history), limit=limit)
        return history, half

    def confirm(self, sealed: bytes) -> None:
        """Record that an opened half is committed."""
        self._record(read_label(sealed))

    def confirm_own(self, sealed: bytes) -> None:
        """Record that the server has committed a half that this client has sealed."""
        label = read_label(sealed)
        if self.chain:
            self._record(label)
            self._own_visit = max(self._own_visit, label.visit)

    def begin(self) -> None:
        """Start a run without a half. Raises OldHalf if a committed half is known."""
        self._check_not_older(0, 0)
        self._history = {}

    def find_writer(self, visit: int) -> int | None:
        """Return the client whose last visit is `visit` in the history of the last opened half, or None."""
        return next((m for m, last in self._history.items() if last == visit), None)

    def get_min_epoch(self, visit: int) -> int:
        """Return the oldest key epoch that a half of this visit may have."""
        return max((epoch for epoch, start in self._epoch_starts.items() if start <= visit), default=1)

    def _record(self, label: Label) -> None:
        self._epoch_starts[label.epoch] = min(label.visit, self._epoch_starts.get(label.epoch, label.visit))
        self._newest = max(self._newest, (label.visit, label.fence))

    def _check_not_older(self, visit: int, fence: int) -> None:
        newest_visit, newest_fence = self._newest
        if visit < newest_visit:
            limit = f"visit {newest_visit} or later"
            raise OldHalf("the half is older than a committed one", value=visit, limit=limit, hint=HINT)
        if fence != newest_fence if visit == newest_visit else fence <= newest_fence:
            limit = f"fence {newest_fence}" + " or later" * (visit > newest_visit)
            what = f"the half of visit {visit} is not the committed one"
            raise OldHalf(what, value=f"fence {fence}", limit=limit, hint=HINT)


def list_sealed_sizes(half: int) -> range:
    """Return the possible lengths of a sealed half of so many bytes, with a history of 0, 1, 2, ... clients."""
    return range(OVERHEAD + COUNT.size + half, MAX_HALF, ENTRY.size)


def _split_history(opened: bytes) -> tuple[dict[int, int], bytes]:
    """Split the content of a sealed half into its history and the half."""
    try:
        (count,) = COUNT.unpack_from(opened)
        start = COUNT.size + count * ENTRY.size
        return dict(ENTRY.iter_unpack(opened[COUNT.size : start])), opened[start:]
    except struct.error:
        raise TamperedHalf("the content is not a half", hint="The visit must be repeated.") from None
