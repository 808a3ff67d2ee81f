"""Can a deployed run be simulated here? Its clients must hold the data that its spec deals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from splitrelay.data import load
from splitrelay.data.images import DataSet
from splitrelay.data.partition import Partition
from splitrelay.deploy.client_records import SALT, SALT_BYTES
from splitrelay.deploy.data_digest import combine_digests, compute_digest, load_secret
from splitrelay.errors import InputError
from splitrelay.runs.build import build_partition
from splitrelay.runs.client_records import ClientRecord, RunClients
from splitrelay.runs.records import Run


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
    data = load(run.spec.data.name)
    partition = build_partition(run.spec, data)
    for one in found.clients:
        if one.samples:  # else it never came, or was left out: verify does without it
            _check_count(one, len(partition.indices[one.client]))
    pinned = [one for one in found.clients if one.digest]
    salt = _read_salt(run.path)
    if salt is None:
        return DataCheck(0, len(pinned))
    secret = load_secret(keys)
    same = {one.client: one.digest in _digests(one.client, data, partition, salt, secret) for one in pinned}
    if keys is not None or any(same.values()):  # else the digests were made with a secret that is not here
        _check_digests(same)
    return DataCheck(sum(same.values()), len(same) - sum(same.values()))


def _check_count(one: ClientRecord, dealt: int) -> None:
    if one.samples != dealt:
        raise _other_data(f"client {one.client} had {one.samples} samples, the spec deals it {dealt}")


def _check_digests(same: Mapping[int, bool]) -> None:
    wrong = [m for m, is_same in same.items() if not is_same]
    if wrong:
        raise _other_data(f"other digest: client {', '.join(map(str, wrong))}")


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
