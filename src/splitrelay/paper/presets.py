"""Define presets: the paper's cells and figures, and the two protocols in which they can be run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from splitrelay.errors import InputError, UnknownName
from splitrelay.paper.cells import CELLS, MODELS, Cell
from splitrelay.runs.presets import set_preset_provider

Content = dict[str, Any]
PROTOCOLS = {
    "paper": "SSL uses up one permutation of all M, S at a time; FedAvg draws S; ExDir as in its text; unweighted",
    "authors": "their later code: S drawn each round for both, ExDir balanced, FedAvg weighted by size",
}


@dataclass(frozen=True)
class Preset:
    """A preset: its description, and the cell that provides its settings."""

    name: str
    words: str
    cell: Cell
    above: bool = False  # one rate above the best: the clipping figure
    clip: float | None = None


def _build_cell_preset(found: Cell) -> Preset:
    where = f"{found.data}, M={found.M}, ExDir({found.C}, 10), K={found.K}, {found.R} rounds"
    return Preset(f"paper/{found.name}", where, found, clip=found.clip)


def _build_clipping_preset(C: int, clip: float | None, above: bool) -> Preset:
    found = CELLS[f"cross-device-mnist-c{C}-k10"]
    name = f"paper/clipping-c{C}-{'max10' if clip else 'free'}-{'above' if above else 'best'}"
    norm = f"max norm {clip:g}" if clip else "no clipping"
    rate = "one rate above the best" if above else "the best rate"
    return Preset(name, f"the clipping figure: ExDir({C}, 10), {norm}, {rate}", found, above, clip)


PRESETS = {
    preset.name: preset
    for preset in (
        *map(_build_cell_preset, CELLS.values()),
        *(_build_clipping_preset(C, clip, above) for C in (2, 1) for clip in (10.0, None) for above in (False, True)),
    )
}
RATES = (0.0005, 0.001, 0.003, 0.005, 0.01, 0.03, 0.05, 0.1, 0.3, 0.5, 1.0)


def preset_content(name: str, algorithm: str, given: bool) -> Content:
    """Return the content of a spec. The rate is the paper's unless eta is `given`."""
    if name not in PRESETS:
        raise UnknownName("preset", name, PRESETS)
    preset = PRESETS[name]
    cell = preset.cell
    content: Content = {
        "placement": "cut",  # of all records, so that they keep their names; accuracies do not depend on it
        "S": 10,
        "K": cell.K,
        "R": cell.R,
        "data": {"name": cell.data},
        "partition": {"kind": "exdir", "M": cell.M, "C": cell.C, "alpha": 10.0},
        "model": {"name": MODELS[cell.data]},
        "optimiser": {"weight_decay": 1e-4, "clip": preset.clip, "momentum": 0.0, "batch": 20},
    }
    if not given:
        content["optimiser"]["eta"] = rate(preset, algorithm)
    return content


def protocol_content(name: str, algorithm: str, M_is_S: bool, kind: str = "exdir") -> Content:
    """Return the settings of a protocol: order, form of the partition, weights, drawing of batches."""
    if name not in PROTOCOLS:
        raise UnknownName("protocol", name, PROTOCOLS)
    authors = name == "authors"
    return {
        "order": "permutation" if M_is_S else "consumed" if algorithm == "ssl" and not authors else "sampled",
        "weighted": authors and algorithm == "fedavg",
        "partition": {"form": "balanced" if authors and kind == "exdir" else "paper"},
        "optimiser": {"draw": "passes"},
    }


def expand(content: Mapping[str, Any]) -> Content:
    """Return a spec's content with its preset and protocol replaced by the settings they stand for.

    Keys that the content sets itself win over the preset and the protocol.
    """
    own = dict(content)
    preset, protocol = own.pop("preset", None), own.pop("protocol", None)
    algorithm = str(own.get("algorithm", "ssl"))
    found: Content = {}
    if preset is not None:
        found = preset_content(str(preset), algorithm, "eta" in own.get("optimiser", {}))
        protocol = protocol or "paper"
    if protocol is not None:
        both = merge(found, own)
        everyone = both.get("S") is None or str(both["S"]) == str(both.get("partition", {}).get("M", 10))
        kind = str(both.get("partition", {}).get("kind", "exdir"))
        found = merge(found, protocol_content(str(protocol), algorithm, everyone, kind))
    return merge(found, own)


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> Content:
    """Merge two specs section by section. `above` overrides `below`."""
    result = dict(below)
    for name, value in above.items():
        under = result.get(name)
        result[name] = merge(under, value) if isinstance(value, Mapping) and isinstance(under, Mapping) else value
    return result


def rate(preset: Preset, algorithm: str) -> float:
    """Return the paper's best rate of ssl or fedavg."""
    if algorithm not in ("ssl", "fedavg"):
        hint = "Give one: eta=0.01, or find one with splitrelay grid."
        raise InputError(f"the paper has no rate for {algorithm}", hint=hint)
    best = (preset.cell.ssl if algorithm == "ssl" else preset.cell.fedavg).eta
    return RATES[RATES.index(best) + 1] if preset.above else best


set_preset_provider(__name__)
