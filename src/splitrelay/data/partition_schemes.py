"""All partitions by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any

from splitrelay.data.classic import dirichlet, iid, pathological, shards
from splitrelay.data.exdir import exdir
from splitrelay.data.partition import Labels, Partition
from splitrelay.errors import InputError, UnknownName

SCHEMES: Mapping[str, Callable[..., Partition]] = {
    "exdir": exdir,
    "iid": iid,
    "dirichlet": dirichlet,
    "pathological": pathological,
    "shards": shards,
}


def draw_partition(kind: str, labels: Labels, **settings: Any) -> Partition:
    """The partition of this name and these settings; unknown and missing settings are named."""
    if kind not in SCHEMES:
        raise UnknownName("partition", kind, SCHEMES)
    keys = settings_of(kind)
    for name in settings:
        if name not in keys:
            raise UnknownName(f"setting of partition {kind}", name, keys)
    missing = [name for name, needed in keys.items() if needed and name not in settings]
    if missing:
        raise InputError(f"partition {kind} needs {', '.join(missing)}", hint=f"Settings: {', '.join(keys)}.")
    return SCHEMES[kind](labels, **settings)


def settings_of(kind: str) -> dict[str, bool]:
    """The settings of a partition, each with whether it must be given."""
    parameters = signature(SCHEMES[kind]).parameters.values()
    return {p.name: p.default is Parameter.empty for p in parameters if p.kind is Parameter.KEYWORD_ONLY}
