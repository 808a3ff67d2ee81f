"""Read the records of the studies in a folder, and summarise answers from them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from splitrelay.errors import InputError
from splitrelay.reports.head_to_head import Comparison, find_comparisons
from splitrelay.runs.records import runs_under

DEVICES, TUNED, SILOS, CLIPPING = "cells", "tuned/best", "silos/best", "clipping"
SEARCH, SMALL_NET = "tuned/search", "cnncifar/best"
OPEN = "not run yet"


class Evidence:
    """The comparisons of SSL and FedAvg in a folder of records, by study."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.read_study = cache(self._read_study)

    def _read_study(self, name: str) -> list[Comparison]:
        """Return the comparisons of a study. The list is empty if one of the two algorithms was not run."""
        with suppress(InputError):
            return find_comparisons(runs_under(self.folder / name))[0]
        return []

    def select(self, study: str, **factors: object) -> list[Comparison]:
        """Return the comparisons of a study with these values of C, K or data."""
        return [pair for pair in self.read_study(study) if factors.items() <= _get_factors(pair).items()]


def _get_factors(pair: Comparison) -> dict[str, object]:
    return {**pair.factors, "data": pair.place.data}


@dataclass(frozen=True)
class Finding:
    """The answer to a question, and its numbers."""

    holds: str  # yes, no, in part, or not run yet
    seen: str


def summarise_answers(answers: Sequence[bool], words: Sequence[str]) -> Finding:
    """Return "yes" if all answers are true, "in part" if some are, else "no"."""
    if not answers:
        return Finding(OPEN, "")
    verdict = "yes" if all(answers) else "in part" if any(answers) else "no"
    return Finding(verdict, "; ".join(words))
