"""Summarise in one table which algorithm is ahead, by study, data set and classes per client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from splitrelay.errors import InputError
from splitrelay.paper.evidence import DEVICES, LANDSCAPE, SILOS, SMALL_NET, TUNED, Evidence
from splitrelay.reports.head_to_head import Comparison, build_judgement_record
from splitrelay.reports.labels import DATA, find_place, get_algorithm_label, get_data_label
from splitrelay.reports.statistics import EVEN, MARGIN, UNDECIDED
from splitrelay.table import Cell, Heading, Piece, Table

STUDIES = {
    DEVICES: "500 clients, the paper's rates",
    TUNED: "500 clients, tuned",
    LANDSCAPE: "500 clients, tuned, S = 3, 10, 30 and α = 1, 10, 100",
    SILOS: "ten clients, tuned",
    SMALL_NET: "500 clients, a small network, tuned",
    "vgg11": "VGG-11, the paper's rates, a few rounds",
}


def build_summary_table(folder: Path) -> Table:
    """Build one row per study and data set, with one column per number of classes per client."""
    records = Evidence(folder)
    found = {
        (study, data): {C: records.select(study, data=data, C=C) for C in _find_classes(records.studies[study])}
        for study in STUDIES
        for data in sorted(
            {pair.place.data for pair in records.studies[study]}, key=lambda name: find_place(DATA, name)
        )
    }
    if not found:
        raise InputError(f"no study in {folder} has both SSL and FedAvg", limit=f"folders {', '.join(STUDIES)}")
    classes = sorted({C for by_class in found.values() for C in by_class})
    heads = [Heading("study", is_label=True), Heading("data", is_label=True), *(Heading(f"C = {C}") for C in classes)]
    rows = [
        _build_summary_row(study, data, [by_class.get(C, []) for C in classes])
        for (study, data), by_class in found.items()
    ]
    caption = (
        "The algorithm that is ahead, and the gap SSL minus FedAvg in points of test accuracy, mean over seeds (the "
        "range, if a study has several settings: K, S, α). Ahead: after Holm's correction for the "
        f"{records.tests} comparisons of this table that have several seeds. Even: within {MARGIN:g} points. Gaps of "
        "undecided settings are not shown."
    )
    return Table(heads, rows, caption=caption, name="glance", records=_build_records(found))


def _find_classes(pairs: Sequence[Comparison]) -> list[int]:
    return sorted({int(pair.factors["C"]) for pair in pairs})


def _build_summary_row(study: str, data: str, by_class: Sequence[Sequence[Comparison]]) -> list[Cell]:
    return [STUDIES[study], get_data_label(data), *(describe_gaps(pairs) for pairs in by_class)]


def describe_gaps(pairs: Sequence[Comparison]) -> Cell:
    """Return 'SSL +24.6 to +35.3', or the number of settings for each verdict; an empty cell if nothing was run."""
    words = []
    for name in ("ssl", "fedavg"):
        ahead = [pair for pair in pairs if pair.winner == name]
        if ahead and len(ahead) == len(pairs):
            return Piece(get_algorithm_label(name), bold=True), Piece(f" {format_range(ahead)}")
        words += [f"{get_algorithm_label(name)} in {len(ahead)} ({format_range(ahead)})"] if ahead else []
    for verdict in (EVEN, UNDECIDED):
        number = sum(pair.judgement.verdict == verdict for pair in pairs)
        words += [verdict if number == len(pairs) else f"{verdict} in {number}"] * bool(number)
    one_seed = bool(pairs) and max(len(pair.gaps) for pair in pairs) == 1
    return ", ".join(words) + " (one seed)" * one_seed


def format_range(pairs: Sequence[Comparison]) -> str:
    """Return the range of gaps, for example '+24.6 to +35.3'."""
    gaps = [pair.gap for pair in pairs]
    return f"{gaps[0]:+.1f}" if len(gaps) == 1 else f"{min(gaps):+.1f} to {max(gaps):+.1f}"


def _build_records(found: dict[tuple[str, str], dict[int, list[Comparison]]]) -> list[dict[str, object]]:
    return [
        {"study": study, "data": data, "C": C, **pair.factors, **build_judgement_record(pair.judgement)}
        for (study, data), by_class in found.items()
        for C, pairs in by_class.items()
        for pair in pairs
    ]
