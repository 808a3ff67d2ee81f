"""What a server records of its clients: the salt of the run, the outcome of every visit, and `clients.json`.

Everything here can be made again after a crash. The skipped visits of a row are those of its rounds, however often
the server was restarted: skipped visits answer from the journal. `clients.json` is counted from the rows
and from the order of clients in each round.

Can a deployed run be simulated here? Its clients must hold the data that its spec deals.
"""

from __future__ import annotations

import os
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from splitrelay.algorithms.base import Clients, Outcome, Skipped, Visit
from splitrelay.atomic_files import write_text
from splitrelay.data.images import DataSet
from splitrelay.data.partition import Partition
from splitrelay.deploy.client_data import combine_digests, compute_digest, load_secret
from splitrelay.errors import InputError, OutputError
from splitrelay.network.server_connection import EVALUATOR_NUMBER
from splitrelay.runs.build import build_partition, load_data
from splitrelay.runs.client_records import CLIENTS, ClientRecord, RunClients, format_clients, make_printable
from splitrelay.runs.records import Run

SALT = "salt"
SALT_BYTES = 32
PAUSE = 1.0  # seconds between two writes of clients.json while rows come faster


def load_salt(folder: Path, pinned: bool) -> bytes:
    """Return the salt of the run; make it where there is none.

    `pinned`: digests of this run are known already, so the salt must be there. Raises InputError where it is not, or
    where the file is damaged.
    """
    path = folder / SALT
    try:
        salt = path.read_bytes()
    except FileNotFoundError:
        if not pinned:
            return _make_salt(path)
        salt = b""
    except OSError as error:
        raise InputError(f"cannot read {path}", value=error.strerror, hint="Make it readable.") from None
    if len(salt) != SALT_BYTES:
        hint = f"Bring it back from a copy; without it no client can show that its data are the same. {_START}"
        raise InputError(f"{path} is lost or damaged", value=len(salt), limit=f"{SALT_BYTES} bytes", hint=hint)
    return salt


_START = "Or begin another run with another --out."


def _make_salt(path: Path) -> bytes:
    """Write a new salt that only this user can read, whole or not at all."""
    salt, temporary = secrets.token_bytes(SALT_BYTES), path.with_name(f".{SALT}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(salt)
            file.flush()
            os.fsync(descriptor)
        temporary.replace(path)
    except OSError as error:
        raise OutputError(f"cannot write {path}", value=error.strerror, hint="Free disk space.") from None
    finally:
        with suppress(OSError):
            temporary.unlink()
    return salt


class RecordedClients:
    """Clients whose skipped visits are remembered, for the rows."""

    def __init__(self, clients: Clients[Any]) -> None:
        self.clients = clients
        self.rounds = 0  # rows reach so far
        self._skipped: dict[tuple[int, int, int], str] = {}  # since then

    def run(self, visit: Visit[Any], /) -> Outcome[Any]:
        """Run one visit."""
        return self._add(visit, self.clients.run(visit))

    def run_all(self, visits: Iterable[Visit[Any]], /) -> Iterator[Outcome[Any]]:
        """Run many visits."""
        asked = list(visits)
        return map(self._add, asked, self.clients.run_all(asked))

    def take_row(self, r: int) -> dict[str, Any]:
        """Return the fields of a row after r rounds: the visits that were skipped since the row before it."""
        found = {visit: why for visit, why in self._skipped.items() if self.rounds <= visit[0] < r}
        self.rounds = r
        self._skipped = {visit: why for visit, why in self._skipped.items() if visit[0] >= r}
        visits = [[*visit, why] for visit, why in sorted(found.items())]
        return {"skipped": len(visits), **({"skipped_visits": visits} if visits else {})}

    def _add(self, visit: Visit[Any], outcome: Outcome[Any]) -> Outcome[Any]:
        if isinstance(outcome, Skipped):
            self._skipped[visit.r, visit.m, visit.i] = make_printable(outcome.why)
        return outcome


class ClientsFile:
    """`clients.json` of a run, kept up to its rows."""

    def __init__(
        self,
        directory: Path,
        order: Callable[[int], Sequence[int]],
        records: Callable[[], Mapping[int, ClientRecord]],
        server: Mapping[str, str],
    ) -> None:
        self.path, self.order, self.records, self.server = directory / CLIENTS, order, records, server
        self.round = 0
        self._asked, self._skipped = Counter[int](), Counter[int]()
        self._reasons: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self._saved = -PAUSE

    def add_row(self, row: Mapping[str, Any]) -> None:
        """Count the visits of the rounds before this row; write the file now and then."""
        for r in range(self.round, row["round"]):
            self._asked.update(self.order(r))
        self.round = max(self.round, row["round"])
        for _, m, _, why in row.get("skipped_visits", ()):
            self._skipped[m] += 1
            self._reasons[m][why] += 1
        if time.monotonic() - self._saved >= PAUSE:
            self.save()

    def save(self) -> None:
        """Write the file."""
        known = self.records()
        numbers = sorted({m for m in known if m < EVALUATOR_NUMBER} | set(self._asked))
        clients = tuple(self._count(known.get(m, ClientRecord(m))) for m in numbers)
        others = tuple(one for m, one in sorted(known.items()) if m >= EVALUATOR_NUMBER)
        write_text(self.path, format_clients(RunClients(self.round, self.server, clients, others)))
        self._saved = time.monotonic()

    def _count(self, record: ClientRecord) -> ClientRecord:
        m = record.client
        made = self._asked[m] - self._skipped[m]
        return replace(record, visits=made, skipped=self._skipped[m], reasons=dict(self._reasons[m]))


def format_now() -> str:
    """Return the time of this host, in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


@dataclass(frozen=True)
class DataCheck:
    """How many clients have the data of the partition, by their digests, and of how many that is not known."""

    same: int
    unknown: int


def check_data(run: Run, found: RunClients, keys: Path | None = None) -> DataCheck:
    """Compare what clients told of their data with the partition of the spec.

    `keys` is a client's folder of keys: digests of a run with keys can be computed only with its sealing secret.
    Raises InputError where the data of a client are not those of the partition.
    """
    data = load_data(run.spec.data)
    partition = build_partition(run.spec, data)
    for one in found.clients:
        if one.samples:  # else it never came, or was left out: verify does without it
            expected = len(partition.indices[one.client])
            if one.samples != expected:
                raise _other_data(f"client {one.client} had {one.samples} samples, the spec assigns it {expected}")
    pinned = [one for one in found.clients if one.digest]
    salt = _read_salt(run.path)
    if salt is None:
        return DataCheck(0, len(pinned))
    secret = load_secret(keys)
    same = {one.client: one.digest in _digests(one.client, data, partition, salt, secret) for one in pinned}
    if keys is not None or any(same.values()):  # else the digests were made with a secret that is not here
        wrong = [m for m, is_same in same.items() if not is_same]
        if wrong:
            raise _other_data(f"other digest: client {', '.join(map(str, wrong))}")
    return DataCheck(sum(same.values()), len(same) - sum(same.values()))


def _other_data(value: str) -> InputError:
    what = "this run cannot be simulated: its clients did not train on the partition of its spec"
    hint = "Only a run whose clients hold what splitrelay partition export deals can be run again on one machine."
    return InputError(what, value=value, hint=hint)


def _read_salt(run: Path) -> bytes | None:
    try:
        salt = (run / "relay" / SALT).read_bytes()
    except OSError:
        return None
    return salt if len(salt) == SALT_BYTES else None


def _digests(m: int, data: DataSet, partition: Partition, salt: bytes, secret: bytes) -> set[str]:
    """Return the digest of a client's share, and that of the share with the test set, if it is the evaluator."""
    train = compute_digest(data.train.part(partition.indices[m]), salt=salt, secret=secret, client=m)
    test = compute_digest(data.test, salt=salt, secret=secret, client=m, test=True)
    return {train.hex(), combine_digests(train, test, secret).hex()}
