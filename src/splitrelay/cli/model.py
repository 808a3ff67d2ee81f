"""`splitrelay model NAME`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import emit, format_option, say
from splitrelay.cli.key_values import Key, count, parse_settings, settings_argument
from splitrelay.errors import InputError
from splitrelay.table import Table
from splitrelay.tensor_types import TensorType

if TYPE_CHECKING:
    from splitrelay.models.summary import CutRow, LayerRow, Summary


def _parse_input(name: str, text: str) -> TensorType:
    sides, colon, dtype = text.lower().partition(":")
    try:
        shape = tuple(int(side) for side in sides.split("x"))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        hint = "Write the sides of one sample, as in 1x28x28 or 16:int64."
        raise InputError(f"{name} must be a shape", value=repr(text), hint=hint)
    return TensorType(shape, dtype if colon else "float32")


KEYS = (
    Key(
        "shape",
        _parse_input,
        "of one sample: 1x28x28, 16:int64, or 16:int64,16:bool for two inputs (default: of its data)",
    ),
    Key("classes", count, "number of classes (default 10)", many=False),
    Key("batch", count, "samples per step (default 20)", many=False),
)
MEANT_FOR = {"vgg11": (3, 32, 32), "cnncifar": (3, 32, 32), "lenet-small": (1, 8, 8)}
BAR = 24  # columns of the picture


@click.command(cls=Command, keys=KEYS, example="splitrelay model lenet5")
@click.argument("name", required=False)
@settings_argument(KEYS)
@format_option
def model(name: str | None, settings: Sequence[str], shape: str) -> None:
    """Print the layers of a model and the cost of each cut.

    NAME is a built-in model, or module:function for a function of yours that returns an nn.Module. Without NAME, list
    the built-in models.
    """
    from splitrelay.models import MODELS, get_model_spec
    from splitrelay.models.summary import summarize_model

    given = parse_settings(settings, KEYS)
    classes, batch = given.get("classes", [10])[0], given.get("batch", [20])[0]
    if name is None:
        specs = {known: get_model_spec(known, _get_inputs(known, given), classes) for known in MODELS}
        rows = [(known, *_summarize(summarize_model(spec))) for known, spec in specs.items()]
        payload = [dict(zip(("model", "parameters", "client share", "FLOPs"), row, strict=True)) for row in rows]
        emit(Table(("model", "parameters", "client share", "FLOPs"), rows, "Built-in models"), payload, shape)
        return
    summary = summarize_model(get_model_spec(name, _get_inputs(name, given), classes), batch)
    if shape == "json":
        emit(
            Table((), ()),
            {
                "model": name,
                **asdict(summary),
                "parameters": summary.parameters,
                "frozen": summary.frozen,
                "flops": summary.flops,
            },
            shape,
        )
        return
    emit(_build_layer_table(name, summary.layers, summary), None, shape)
    say("")
    emit(_build_cut_table(summary.cuts, summary.layers, batch, picture=shape == "table"), None, shape)


def _get_inputs(name: str, given: dict[str, list[TensorType]]) -> tuple[TensorType, ...]:
    return tuple(given.get("shape", [TensorType(MEANT_FOR.get(name, (1, 28, 28)))]))


def _summarize(summary: Summary) -> tuple[int, str, int]:
    share = next((cut.bottom_share for cut in summary.cuts if cut.usual), 0.0)
    return summary.parameters, f"{share:.2%}", summary.flops


def _build_layer_table(name: str, layers: Sequence[LayerRow], summary: Summary) -> Table:
    rows: list[tuple[object, ...]] = [
        (row.index, row.name, row.kind, "x".join(map(str, row.shape)), row.parameters, row.flops) for row in layers
    ]
    columns = ["#", "layer", "kind", "output", "parameters", "FLOPs"]
    title = f"{name}: {summary.parameters:,} parameters, {summary.flops:,} FLOPs forward for one image"
    if summary.frozen:
        columns.append("frozen")
        rows = [(*row, layer.frozen) for row, layer in zip(rows, layers, strict=True)]
        title += f", and {summary.frozen:,} frozen parameters, which every host has"
    if any(row.inside for row in layers):
        columns.append("no cut after")
        rows = [
            (*row, ", ".join(layer.inside) if len(layer.inside) < 3 else f"{layer.inside[0]} ... {layer.inside[-1]}")
            for row, layer in zip(rows, layers, strict=True)
        ]
    return Table(tuple(columns), rows, title)


def _build_cut_table(cuts: Sequence[CutRow], layers: Sequence[LayerRow], batch: int, picture: bool) -> Table:
    """Build the table of cuts with bars for the bytes of a step, and mark the default cut."""
    widest = max((cut.step_bytes for cut in cuts), default=1)
    rows = []
    for cut in cuts:
        after = cut.after if not cut.after.isdigit() else f"({layers[cut.layers - 1].kind})"  # no name to cut by
        mark = f"{after} *" if cut.usual else after
        bar = ("#" * max(1, round(BAR * cut.step_bytes / widest)),) if picture else ()
        shares = (f"{cut.bottom_share:.2%}", f"{cut.flops_share:.1%}")
        rows.append((cut.layers, mark, *shares, cut.step_bytes, cut.handover_bytes, *bar))
    columns = ("cut", "after", "client share", "FLOPs", "bytes a step", "handover", *(("",) if picture else ()))
    notes = [
        f"bytes a step: smashed data of a batch of {batch}, and the same amount back; * the default cut.",
        "cut= takes the number of the client's layers, or the name of its last one.",
    ]
    if not cuts:
        notes = [
            "The model cannot be cut: nowhere does exactly one float tensor of the batch cross. Use placement=whole."
        ]
    return Table(columns, rows, "What each cut costs", notes)
