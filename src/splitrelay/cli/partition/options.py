"""What the partition commands have in common: keys, options, the data set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.console import note
from splitrelay.cli.key_values import Key, choice, count, number, seed
from splitrelay.errors import InputError

if TYPE_CHECKING:
    from splitrelay.data.images import ImageSet
    from splitrelay.data.partition import Partition


def word(name: str, text: str) -> str:
    """A name or a path, as it stands."""
    if not text:
        raise InputError(f"{name} is empty", hint=f"Say {name}=NAME.")
    return text


DATA = Key("data", word, "a data set's name, or a path to your own [digits]", many=False)
CLIENTS = Key("M", count, "number of clients [10]", many=False)
SEED = Key("seed", seed, "names the draw; the same seed gives the same partition [1]", many=False)
CLASSES = Key("C", count, "classes that a client draws [2]", many=False)
ALPHA = Key("alpha", number, "concentration: smaller is more uneven [10]", many=False)
FORM = Key("form", choice("paper", "balanced"), "paper, or balanced as in the authors' later code [paper]", many=False)
MIN_SIZE = Key("min_size", seed, "samples that every client must have [balanced: 10, else 0]", many=False)
SHARDS = Key("shards", count, "shards that a client gets [2]", many=False)

DEFAULTS: dict[str, Any] = {"M": 10, "C": 2, "alpha": 10.0, "form": "paper", "seed": 1, "shards": 2}


def file_option(flag: str, text: str, **more: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An option that names a file."""
    return click.option(flag, type=click.Path(path_type=Path), metavar="FILE", help=text, **more)


figure_option = file_option("--figure", "Also draw it as a heat map: the name ends in .pdf, .png or .svg.")
bubbles_option = file_option("--bubbles", "Also draw it as bubbles: the name ends in .pdf, .png or .svg.")


def training_set(data: str) -> ImageSet:
    """The training set of this name, fetched if need be."""
    from splitrelay.cli.data import Bars
    from splitrelay.data import load

    with Bars(data) as bars:
        return load(data, watch=bars.show).train


def deliver(found: Partition, shape: str, figure: Path | None, bubbles: Path | None, out: Path | None = None) -> None:
    """What was asked for is written first, so that a place that cannot be written to is the only thing said."""
    from splitrelay.cli.partition.report import report

    written = [*_saved(found, out), *_drawn(found, figure, bubbles)]
    report(found, shape)
    for line in written:
        note(line)


def _saved(found: Partition, out: Path | None) -> list[str]:
    if out is None:
        return []
    from splitrelay.data.partition_files import save_partition

    return [f"written: {save_partition(found, out)}"]


def _drawn(found: Partition, figure: Path | None, bubbles: Path | None) -> list[str]:
    if figure is None and bubbles is None:
        return []
    from splitrelay.reports import partition_figure
    from splitrelay.reports.style import save

    wanted = ((figure, partition_figure.heat_map), (bubbles, partition_figure.bubbles))
    return [f"figure: {save(draw(found), path)}" for path, draw in wanted if path is not None]
