"""`splitrelay partition exdir|iid|dirichlet|pathological|shards`: draw a partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.key_values import Key, parsed, settings_argument
from splitrelay.cli.partition.options import (
    ALPHA,
    CLASSES,
    CLIENTS,
    DATA,
    DEFAULTS,
    FORM,
    MIN_SIZE,
    SEED,
    SHARDS,
    bubbles_option,
    deliver,
    figure_option,
    file_option,
    training_set,
)
from splitrelay.cli.table_output import format_option

if TYPE_CHECKING:
    from splitrelay.data.partition import Partition


def _command(kind: str, about: str, keys: tuple[Key, ...], example: str) -> click.Command:
    @click.command(kind, cls=Command, keys=keys, help=about, example=f"splitrelay partition {kind} {example}")
    @settings_argument(keys)
    @file_option("--out", "Save it: .npz, or the authors' JSON as .json or .txt.")
    @figure_option
    @bubbles_option
    @format_option
    def command(
        settings: Sequence[str], out: Path | None, figure: Path | None, bubbles: Path | None, shape: str
    ) -> None:
        deliver(_drawn(kind, keys, settings), shape, figure, bubbles, out)

    return command


def _drawn(kind: str, keys: Sequence[Key], settings: Sequence[str]) -> Partition:
    from splitrelay.data.partition_schemes import draw_partition, settings_of

    given = {name: values[0] for name, values in parsed(settings, keys).items()}
    data = given.pop("data", "digits")
    wanted = {name: DEFAULTS[name] for name in settings_of(kind) if name in DEFAULTS} | given
    found = draw_partition(kind, training_set(data).y, **wanted)
    return replace(found, settings={"data": data, **found.settings})


exdir = _command(
    "exdir",
    "The paper's ExDir(C, alpha): every client draws C classes, given that every class has a holder; every class is "
    "dealt to its holders by Dirichlet(alpha).",
    (DATA, CLIENTS, CLASSES, ALPHA, FORM, SEED, MIN_SIZE),
    "data=digits M=10 C=2 alpha=10 form=paper seed=1 --out p.json",
)
iid = _command("iid", "M random parts of equal size.", (DATA, CLIENTS, SEED), "data=digits M=10 seed=1")
dirichlet = _command(
    "dirichlet",
    "Every class is dealt to all clients by Dirichlet(alpha): ExDir with C = all classes.",
    (DATA, CLIENTS, ALPHA, SEED, MIN_SIZE),
    "data=digits M=10 alpha=0.5 seed=1",
)
pathological = _command(
    "pathological",
    "C classes a client, every class in equal shares to its holders: ExDir for alpha to infinity.",
    (DATA, CLIENTS, CLASSES, SEED),
    "data=digits M=10 C=2 seed=1 --out p.npz",
)
shards = _command(
    "shards",
    "The set sorted by label and cut into M * shards even pieces, dealt at random.",
    (DATA, CLIENTS, SHARDS, SEED),
    "data=digits M=10 shards=2 seed=1",
)
