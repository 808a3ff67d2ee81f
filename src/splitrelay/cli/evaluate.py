"""`splitrelay evaluate`."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import emit, format_option
from splitrelay.cli.spec_arguments import device_option
from splitrelay.table import Table


@click.command(cls=Command, example="splitrelay evaluate results/run")
@click.argument("weights", metavar="RUN|FILE", type=click.Path(path_type=Path))
@click.option("--model", help="The model of the weights (default: that of the run; for a file, lenet-small).")
@click.option("--data", "source", help="A data set by name or path (default: that of the run; for a file, digits).")
@click.option("--part", type=click.Choice(["test", "train", "validation"]), default="test", show_default=True,
              help="Which images. validation: the samples that the clients did not train on.")  # fmt: skip
@click.option("--loss", help="A loss by name or module:function (default: that of the run; for a file, cross-entropy).")
@device_option
@format_option
def evaluate(
    weights: Path, model: str | None, source: str | None, part: str, loss: str | None, device: str, shape: str
) -> None:
    """Evaluate a saved model: a .safetensors file, or the final model of a run directory.

    A run directory is evaluated with its own model, data, loss, precision and engine, so the numbers are bit-identical
    to its last row.
    """
    from splitrelay.data.images import ImageSet
    from splitrelay.runs.evaluate import images_of, score, subject_at

    subject = subject_at(weights, model=model, data=source, loss=loss)
    images = images_of(subject, part)
    found = score(subject, images, device)
    rows: list[tuple[str, float | None]] = [] if math.isnan(found.accuracy) else [("all", found.accuracy)]
    rows += [(name, None if math.isnan(a) else a) for name, a in zip(images.classes, found.per_class, strict=True)]
    kind = "images" if isinstance(images, ImageSet) else "samples"
    what = f"{subject.model} on {subject.data}, {part}, {len(images)} {kind}"
    title = f"{subject.weights}: {what}, {subject.loss} {found.loss:.4f}"
    notes = [f"{name} {value:.4f}" for name, value in found.metrics.items()]
    payload = {name: value for name, value in asdict(found).items() if name != "metrics" or value}
    emit(Table(("class", "accuracy"), rows, title, notes), payload, shape)
