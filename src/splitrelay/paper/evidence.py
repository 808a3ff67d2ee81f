"""Read the records of the studies in a folder, and make every table and figure of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from splitrelay.atomic_files import write_text
from splitrelay.errors import InputError
from splitrelay.reports.head_to_head import Comparison, find_comparisons, judge_together
from splitrelay.runs.records import has_runs, runs_under

DEVICES, TUNED, SILOS, CLIPPING = "cells", "tuned/best", "silos/best", "clipping"
SEARCH, SMALL_NET, LANDSCAPE = "tuned/search", "cnncifar/best", "landscape/best"
CONTESTS = (DEVICES, TUNED, LANDSCAPE, SILOS, SMALL_NET, "vgg11")  # studies with SSL and FedAvg
OPEN = "not run yet"


class Evidence:
    """The comparisons of SSL and FedAvg in a folder of records, corrected together for the number of all of them.

    Attributes:
        studies: The comparisons of each study. A list is empty if one of the two algorithms was not run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        found: dict[str, list[Comparison]] = {name: [] for name in CONTESTS}
        for name in found:
            with suppress(InputError):
                found[name] = find_comparisons(runs_under(folder / name))[0]
        judged = iter(judge_together([pair for pairs in found.values() for pair in pairs]))
        self.studies = {name: [next(judged) for _ in pairs] for name, pairs in found.items()}

    @property
    def tests(self) -> int:
        """Return the number of comparisons that could be tested, over which Holm's procedure corrects."""
        return sum(pair.judgement.spread > 0 for pairs in self.studies.values() for pair in pairs)

    def select(self, study: str, **factors: object) -> list[Comparison]:
        """Return the comparisons of a study with these values of C, K or data."""
        pairs = self.studies[study]
        return [pair for pair in pairs if factors.items() <= {**pair.factors, "data": pair.place.data}.items()]


@dataclass(frozen=True)
class Finding:
    """The answer to a question, and its numbers."""

    holds: str  # yes, no, in part, undecided, or not run yet
    seen: str


def summarise_answers(answers: Sequence[bool | None], words: Sequence[str]) -> Finding:
    """Return the answer over all settings. None is an undecided setting."""
    if not answers:
        return Finding(OPEN, "")
    decided = [answer for answer in answers if answer is not None]
    if not decided:
        verdict = "undecided"
    elif any(decided):
        verdict = "yes" if all(decided) and len(decided) == len(answers) else "in part"
    else:
        verdict = "no" if len(decided) == len(answers) else "no where decided"
    return Finding(verdict, "; ".join(words))


def summarise_means(answers: Sequence[bool], words: Sequence[str]) -> Finding:
    """Return the answer to a question on means over seeds that were not tested."""
    found = summarise_answers(answers, words)
    return found if found.holds == OPEN else Finding(f"{found.holds} (means)", found.seen)


BLOCK = re.compile(r"(<!-- shown: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class View:
    """`splitrelay COMMAND KIND FOLDERS OPTIONS --out NAME`: what it needs, and what it is called."""

    name: str  # the file, with its ending
    command: str  # table or figure
    kind: str
    folders: tuple[str, ...]
    options: tuple[str, ...] = ()
    smooth: bool = False  # where curves are long

    def words(self, source: Path, out: Path) -> list[str] | None:
        """The command's words; None where none of its folders is there."""
        found = [source / folder for folder in self.folders if has_runs(source / folder)]
        if not found:
            return None
        calm = CALM if self.smooth and all(is_long(folder) for folder in found) else ()
        return [self.kind, *map(str, found), *self.options, *calm, "--out", str(out / self.name)]


PAPER = ("--beside", "paper")
LONG, CALM = 100, ("--smooth", "10")  # curves with more evaluations vary so much that they hide each other
BEST_STUDIES = ("tuned/best", "silos/best", "landscape/best", "cnncifar/best")
VIEWS = (
    View("cells.md", "table", "accuracy", ("cells",), PAPER),
    View("cells-winners.md", "table", "winners", ("cells",)),
    View("cells.png", "figure", "curves", ("cells",), smooth=True),
    View("tuned.md", "table", "accuracy", ("tuned/best",), PAPER),
    View("tuned-winners.md", "table", "winners", ("tuned/best",)),
    View("followup.md", "table", "winners", ("followup",)),
    View("tuned-rates.md", "table", "rates", ("tuned/search",), PAPER),
    View("tuned.png", "figure", "curves", ("tuned/best",), smooth=True),
    View("tuned-rates.png", "figure", "rates", ("tuned/search",)),
    View("silos.md", "table", "accuracy", ("silos/best",)),
    View("silos-winners.md", "table", "winners", ("silos/best",)),
    View("silos-classes.md", "table", "classes", ("silos/best",)),
    View("silos-memory.png", "figure", "memory", ("silos/best",), ("--last", "60")),
    View("silos-rates.md", "table", "rates", ("silos/search",)),
    View("silos.png", "figure", "curves", ("silos/best",), smooth=True),
    View("landscape.md", "table", "winners", ("landscape/best",)),
    View("family-rates.md", "table", "rates", ("family/search",)),
    View("cnncifar.md", "table", "accuracy", ("cnncifar/best",)),
    View("cnncifar-winners.md", "table", "winners", ("cnncifar/best",)),
    View("cnncifar.png", "figure", "curves", ("cnncifar/best",)),
    View("vgg11.md", "table", "accuracy", ("vgg11",), PAPER),
    View("vgg11.png", "figure", "curves", ("vgg11",)),
    View("rates.md", "table", "rates", ("rates",), PAPER),
    View("rates.png", "figure", "rates", ("rates",)),
    View("clipping.md", "table", "runs", ("clipping",)),
    View("clipping.png", "figure", "clipping", ("clipping",), smooth=True),
    View("cuts.md", "table", "runs", ("cuts",)),
    View("reasons.md", "table", "runs", ("reasons",)),
    View("winners.png", "figure", "winners", (*BEST_STUDIES, "followup")),
)


def is_long(folder: Path) -> bool:
    """Return whether every run in a folder has so many evaluations that its curve should be smoothed."""
    return all(len(run.rows) > LONG for run in runs_under(folder))


def fill_blocks(page: str, shown: Mapping[str, str]) -> str:
    """Return a page whose blocks `<!-- shown: NAME -->` ... `<!-- end -->` contain the table of that name."""

    def block(found: re.Match[str]) -> str:
        if found[2] not in shown:
            raise InputError(f"the page shows {found[2]}, which these records do not make", limit=", ".join(shown))
        return f"{found[1]}\n{shown[found[2]].strip()}\n\n{found[3]}"

    return BLOCK.sub(block, page)


def fill_page(page: Path, out: Path) -> None:
    """Update the tables of a page from the files in a folder."""
    shown = {path.name: path.read_text(encoding="utf-8") for path in sorted(out.glob("*.md"))}
    write_text(page, fill_blocks(page.read_text(encoding="utf-8"), shown))
