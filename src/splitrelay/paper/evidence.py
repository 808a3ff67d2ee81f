"""What a folder of records holds, study by study, and what an answer from it looks like."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from splitrelay.errors import InputError
from splitrelay.reports.head_to_head import Contest, find_contests
from splitrelay.runs.records import runs_under

DEVICES, TUNED, SILOS, CLIPPING = "cells", "tuned/best", "silos/best", "clipping"
SEARCH, SMALL_NET = "tuned/search", "cnncifar/best"
OPEN = "not run yet"


class Evidence:
    """The contests in a folder of records, by study."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.study = cache(self._study)

    def _study(self, name: str) -> list[Contest]:
        """None where nothing has been run there yet, or one algorithm alone."""
        with suppress(InputError):
            return find_contests(runs_under(self.folder / name))[0]
        return []

    def of(self, study: str, **factors: object) -> list[Contest]:
        """Contests of a study with these values: C, K, data."""
        return [pair for pair in self.study(study) if factors.items() <= _get_factors(pair).items()]


def _get_factors(pair: Contest) -> dict[str, object]:
    return {**pair.factors, "data": pair.place.data}


@dataclass(frozen=True)
class Finding:
    """Whether it holds here, and the numbers."""

    holds: str  # yes, no, in part, or not run yet
    seen: str


def summarise_answers(answers: Sequence[bool], words: Sequence[str]) -> Finding:
    """Yes where all hold, in part where some do."""
    if not answers:
        return Finding(OPEN, "")
    verdict = "yes" if all(answers) else "in part" if any(answers) else "no"
    return Finding(verdict, "; ".join(words))
