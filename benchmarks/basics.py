"""Time a million bounds, the quadratic study and --help."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Row, compared
from splitrelay.objectives.quadratic_groups import paper_groups
from splitrelay.paper.quadratics import Study, simulate
from splitrelay.paper.quadratics_figure import draw
from splitrelay.theory import Problem, bound, compare

MILLION, SAMPLE = 1_000_000, 300


def rows() -> Iterator[Row]:
    """Every comparison, as it is measured."""
    yield _bounds()
    yield _comparisons()
    yield _study()
    yield from _help()


def _bounds() -> Row:
    R = np.arange(1000, 1000 + MILLION)

    def at(rounds: Any) -> object:
        problem = Problem(L=2, mu=1, sigma2=1, zeta2=4, M=10, K=5, R=rounds, D2=1)
        return bound("ssl", "strongly-convex", problem, eta_tilde=1 / 12)

    return compared(
        "10^6 bounds in one call",
        lambda: at(R),
        lambda: [at(float(rounds)) for rounds in R[:: MILLION // SAMPLE][:SAMPLE]],
        f"one call for each (measured on {SAMPLE})",
        scale=MILLION / SAMPLE,
    )


def _comparisons() -> Row:
    R = np.arange(1000, 1000 + MILLION)

    def at(rounds: Any) -> object:
        problem = Problem(L=2, mu=1, sigma2=1, zeta2=4, M=10, S=5, K=5, R=rounds, D2=1)
        return compare("strongly-convex", problem, constants="proved")

    return compared(
        "10^6 comparisons in one call, six bounds each at its own best step",
        lambda: at(R),
        lambda: [at(float(rounds)) for rounds in R[:: MILLION // SAMPLE][:SAMPLE]],
        f"one call for each (measured on {SAMPLE})",
        scale=MILLION / SAMPLE,
    )


def _study() -> Row:
    study = Study(paper_groups(), K=10)
    single = Study(paper_groups()[:1], K=10, etas=study.etas[:1], seeds=study.seeds[:1])
    settings = len(study.groups) * len(study.etas) * len(study.seeds)

    def whole() -> None:
        with tempfile.TemporaryDirectory() as folder:
            draw(simulate(study), Path(folder) / "nine.pdf")

    what = f"the quadratic study, K=10, {settings} settings, with its figure"
    return compared(what, whole, lambda: simulate(single), "one setting at a time, no figure", scale=settings)


def _help() -> Iterator[Row]:
    program = str(Path(sys.executable).with_name("splitrelay"))
    for words in ([], ["theory", "bound"], ["quadratics"]):
        yield compared(
            " ".join(["splitrelay", *words, "--help"]),
            partial(subprocess.run, [program, *words, "--help"], check=True, capture_output=True),
            lambda: subprocess.run([sys.executable, "-c", "import numpy, matplotlib.figure"], check=True),
            "importing numpy and matplotlib",
            runs=5,
        )
