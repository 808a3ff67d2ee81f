"""`splitrelay run`."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.console import note, say
from splitrelay.cli.lazy import Command
from splitrelay.cli.output import finite, format_option
from splitrelay.cli.settings import Key, choice, count, keys_help, number, parsed, seed, settings_argument, words

if TYPE_CHECKING:
    from splitrelay.data.images import DataSet
    from splitrelay.data.partition import Partition
    from splitrelay.experiments.learning import Learning, Look, Trial


def _flag(name: str, text: str) -> bool:
    return choice("yes", "no")(name, text) == "yes"


KEYS = tuple(
    Key(name, read, help, many=False)
    for name, read, help in (
        ("data", words, "digits, mnist, fashion-mnist, cifar10, or your own: a path (default digits)"),
        ("model", words, "see splitrelay model (default lenet-small), or your own: module:function"),
        ("cut", words, "last layer of the client's half: a name or a number (default the usual one)"),
        ("placement", choice("cut", "whole"), "the model cut in two, or whole at the client (default cut)"),
        ("algorithm", words, "ssl fedavg splitfed-v2 splitfed-v3 sflg scaffold fedseq ... (default ssl)"),
        ("order", words, "permutation sampled consumed fixed replacement (default permutation)"),
        ("partition", words, "exdir iid dirichlet pathological shards (default exdir)"),
        ("M", count, "clients (default 10)"),
        ("S", count, "clients a round (default all)"),
        ("C", count, "classes a client, for exdir and pathological (default 2)"),
        ("alpha", number, "of the Dirichlet law (default 10)"),
        ("form", choice("paper", "balanced"), "of exdir (default paper)"),
        ("K", count, "local steps a visit (default 5)"),
        ("R", count, "rounds (default 20)"),
        ("eta", number, "learning rate (default 0.1)"),
        ("clip", number, "largest norm of the whole model's gradient (default none)"),
        ("weight_decay", number, "(default 1e-4)"),
        ("momentum", number, "within a visit (default 0)"),
        ("gamma", number, "global step (default 1)"),
        ("G", count, "groups of sflg and fedseq (default 1)"),
        ("weighted", _flag, "yes: FedAvg weighs clients by their samples (default no)"),
        ("batch", count, "images a step (default 20)"),
        ("draw", choice("passes", "replacement", "full"), "how batches are drawn (default passes)"),
        ("augment", _flag, "crops and flips where the set has them (default yes)"),
        ("loss", words, "cross-entropy, mse, or your own: module:function"),
        ("init", words, "a .safetensors file to start from"),
        ("validation", number, "share of each client's samples to score on instead of the test set"),
        ("dtype", choice("float32", "float64"), "(default float32)"),
        ("device", words, "cpu, cuda, mps (default cpu)"),
        ("seed", seed, "root of all randomness (default 1234)"),
        ("partition_seed", seed, "of the partition alone (default seed)"),
        ("every", count, "rounds between two looks at the test set (default 1)"),
        ("workers", count, "clients trained at once where the algorithm allows (default 1)"),
    )
)


@click.command(cls=Command, example="splitrelay run algorithm=ssl C=1 R=5 K=5 eta=0.1", help=f"""Train on images.

    One algorithm, one model, one partition of one data set; a row for every round. With --out the rows and the final
    model are kept: DIR/rounds.jsonl and DIR/model.safetensors, which plain torch loads.

    {keys_help(KEYS)}""")  # fmt: skip
@settings_argument(KEYS)
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the rows and the final model.")
@format_option
def run(settings: Sequence[str], out: Path | None, shape: str) -> None:
    from splitrelay.data import load
    from splitrelay.experiments.learning import Learning

    given = {name: values[0] for name, values in parsed(settings, KEYS).items()}
    data = load(given.get("data", "digits"))
    learning = Learning(_trial(given), data, _partition(given, data), workers=given.get("workers", 1))
    R, every = given.get("R", 20), given.get("every", 1)
    rows, model = [], learning.x0()
    try:
        for look, state in _shown(learning.run(R, every), R, shape):
            rows.append(_row(look))
            model = learning.algorithm.model(state)
    finally:  # nothing is lost on Ctrl-C or NaN
        if out is not None and rows:
            _keep(out, rows, learning, model)
    if shape == "json":
        say(json.dumps({"settings": given, "rounds": rows}, indent=2))


def _trial(given: dict[str, Any]) -> Trial:
    from splitrelay.experiments.learning import Trial
    from splitrelay.objectives.batches import Batches

    known = {field.name for field in fields(Trial)} - {"batches"}
    trial = Trial(**{name: value for name, value in given.items() if name in known})
    return replace(trial, batches=Batches(given.get("batch", 20), given.get("draw", "passes")))


def _partition(given: dict[str, Any], data: DataSet) -> Partition:
    from splitrelay.data.schemes import SCHEMES, draw_partition, settings_of
    from splitrelay.errors import UnknownName

    kind = given.get("partition", "exdir")
    if kind not in SCHEMES:
        raise UnknownName("partition", kind, SCHEMES)
    wanted: dict[str, Any] = {"M": 10, "C": 2, "alpha": 10.0}
    wanted.update((name, given[name]) for name in ("M", "C", "alpha", "form") if name in given)
    wanted["seed"] = given.get("partition_seed", given.get("seed", 1234))  # it follows the seed unless set
    partition = draw_partition(kind, data.train.y, **{k: v for k, v in wanted.items() if k in settings_of(kind)})
    if partition.empty:
        note(f"{len(partition.empty)} of {partition.M} clients hold no samples and never train: {partition.empty}")
    return partition


def _shown(looks: Iterator[tuple[Look, Any]], R: int, shape: str) -> Iterator[tuple[Look, Any]]:
    """Each look as a line, with the time that is left."""
    started = time.perf_counter()
    if shape == "csv":
        say("round,test_accuracy,test_loss,train_loss,bytes_up,bytes_down,seconds")
    elif shape != "json":
        say("round  accuracy  test loss  train loss   MB up  MB down  seconds     left")
    for look, state in looks:
        left = (time.perf_counter() - started) / look.r * (R - look.r) if look.r else math.nan
        if shape == "csv":
            say(",".join(str(value) for value in _row(look).values()))
        elif shape != "json":
            say(_line(look, left))
        yield look, state


def _line(look: Look, left: float) -> str:
    trained = "-" if math.isnan(look.train_loss) else f"{look.train_loss:.4f}"
    numbers = f"{look.r:>5} {look.score.accuracy:>9.2%} {look.score.loss:>10.4f} {trained:>11}"
    remaining = "" if math.isnan(left) else f"{left:>7.0f} s"
    return f"{numbers} {look.up / 1e6:>7.1f} {look.down / 1e6:>8.1f} {look.seconds:>8.1f} {remaining}".rstrip()


def _row(look: Look) -> dict[str, Any]:
    row = {
        "round": look.r,
        "test_accuracy": look.score.accuracy,
        "test_loss": look.score.loss,
        "train_loss": look.train_loss,
        "bytes_up": look.up,
        "bytes_down": look.down,
        "seconds": look.seconds,
    }
    return {name: finite(value) for name, value in row.items()}


def _keep(out: Path, rows: list[dict[str, Any]], learning: Learning, model: Any) -> None:
    from splitrelay.models.files import save_text, save_weights

    save_weights(out / "model.safetensors", learning.blueprint.layout(learning.network.dtype), model)
    save_text(out / "rounds.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    note(f"kept: {out / 'rounds.jsonl'}, {out / 'model.safetensors'}")
