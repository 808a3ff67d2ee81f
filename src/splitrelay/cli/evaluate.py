"""`splitrelay evaluate`."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path

import click

from splitrelay.cli.lazy import Command
from splitrelay.cli.output import Table, emit, format_option


@click.command(cls=Command, example="splitrelay evaluate results/run --model lenet-small --data digits")
@click.argument("weights", type=click.Path(path_type=Path))
@click.option("--model", default="lenet-small", show_default=True, help="What the weights belong to.")
@click.option("--data", "source", default="digits", show_default=True, help="A set by name, or your own by path.")
@click.option("--part", type=click.Choice(["test", "train"]), default="test", show_default=True, help="Which images.")
@click.option("--loss", default="cross-entropy", show_default=True, help="By name, or module:function.")
@format_option
def evaluate(weights: Path, model: str, source: str, part: str, loss: str, shape: str) -> None:
    """Score a saved model: a .safetensors file, or the folder of a run that holds one."""
    from splitrelay.data import load
    from splitrelay.experiments.scoring import score_file, weights_at

    path = weights_at(weights)
    data = load(source)
    images = data.test if part == "test" else data.train
    score = score_file(path, model, images, loss)
    rows: list[tuple[str, float | None]] = [("all", score.accuracy)]
    rows += [(name, None if math.isnan(a) else a) for name, a in zip(images.classes, score.per_class, strict=True)]
    title = f"{path}: {model} on {data.name}, {part}, {len(images)} images, loss {score.loss:.4f}"
    emit(Table(("class", "accuracy"), rows, title), asdict(score), shape)
