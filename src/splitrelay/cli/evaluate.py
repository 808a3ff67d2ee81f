"""`splitrelay evaluate`."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.table_output import Table, emit, format_option


@click.command(cls=Command, example="splitrelay evaluate results/run")
@click.argument("weights", metavar="RUN|FILE", type=click.Path(path_type=Path))
@click.option("--model", help="What the weights belong to (default: the run's; of a file, lenet-small).")
@click.option("--data", "source", help="A set by name, or your own by path (default: the run's; of a file, digits).")
@click.option("--part", type=click.Choice(["test", "train", "validation"]), default="test", show_default=True,
              help="Which images; validation: those that the run's clients kept from training.")  # fmt: skip
@click.option("--loss", help="By name, or module:function (default: the run's; of a file, cross-entropy).")
@format_option
def evaluate(weights: Path, model: str | None, source: str | None, part: str, loss: str | None, shape: str) -> None:
    """Score a saved model: a .safetensors file, or the folder of a run, whose spec says the rest.

    The folder of a run is scored with its own model, data, loss, precision and engine, so the numbers are those of its
    last row, to the bit.
    """
    from splitrelay.runs.evaluate import images_of, score, subject_at

    subject = subject_at(weights, model=model, data=source, loss=loss)
    images = images_of(subject, part)
    found = score(subject, images)
    rows: list[tuple[str, float | None]] = [("all", found.accuracy)]
    rows += [(name, None if math.isnan(a) else a) for name, a in zip(images.classes, found.per_class, strict=True)]
    what = f"{subject.model} on {subject.data}, {part}, {len(images)} images"
    title = f"{subject.weights}: {what}, {subject.loss} {found.loss:.4f}"
    emit(Table(("class", "accuracy"), rows, title), asdict(found), shape)
