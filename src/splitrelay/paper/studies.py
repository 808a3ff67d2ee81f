"""Questions beyond the paper's own runs, as data: what is set against what, at which rates, for how many rounds.

Every batch is a fair contest: each setting in it is tuned on the same grid with one seed, then its best runs with all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from splitrelay.sweeps.points import Settings

PAIR = ("ssl", "fedavg")
SMALL = ("mnist", "fashion-mnist")  # sets on which LeNet-5 runs in minutes
RATES = (0.003, 0.01, 0.03, 0.05, 0.1, 0.3)
FOUR = (0.003, 0.01, 0.03, 0.1)
EITHER, CLIPPED = ("10", "none"), ("10",)  # largest norms to choose from


@dataclass(frozen=True)
class Batch:
    """Settings to compare, each tuned over the rates and the norms; and how often one looks while tuning, and after."""

    study: str
    name: str
    settings: tuple[Settings, ...]
    rates: tuple[float, ...]
    clips: tuple[str, ...]
    look: int = 5
    final_look: int = 1


def said(*words: str) -> Settings:
    """'algorithm=ssl' and the like, as settings."""
    return tuple((name, text) for name, _, text in (word.partition("=") for word in words))


def tuned() -> Iterator[Batch]:
    """The paper's cells for MNIST and Fashion-MNIST with rates and clipping searched for both algorithms alike."""
    for K, data, C in product((10, 20), SMALL, (1, 2)):
        cell = f"cross-device-{data}-c{C}-k{K}"
        settings = tuple(said(f"preset=paper/{cell}", f"algorithm={name}") for name in PAIR)
        yield Batch("tuned", cell, settings, RATES, EITHER)


def silo(data: str, C: int, K: int) -> tuple[str, ...]:
    """Ten clients, all of them in every round."""
    return f"data={data}", "model=lenet5", "M=10", f"C={C}", "alpha=10", f"K={K}", "R=300", "protocol=paper"


def silos() -> Iterator[Batch]:
    """Ten clients, all in every round, on the small sets: the paper has silos for CIFAR-10 alone."""
    for data, K, C in product(SMALL, (5, 10, 20, 30), (1, 2)):
        settings = tuple(said(*silo(data, C, K), f"algorithm={name}") for name in PAIR)
        yield Batch("silos", f"{data}, ExDir({C}, 10), K={K}", settings, FOUR, CLIPPED)


VARIANTS = (  # of the family, in the cell ExDir(1, 10), K=10; each differs from SSL or FedAvg of the paper in one thing
    ("algorithm=ssl",),
    ("algorithm=ssl", "order=sampled"),
    ("algorithm=ssl", "tau=proportional"),
    ("algorithm=ssl", "form=balanced"),
    ("algorithm=ssl", "draw=replacement"),
    ("algorithm=fedavg",),
    ("algorithm=fedavg", "order=replacement"),
    ("algorithm=fedavg", "weighted=true"),
    ("algorithm=fedavg", "tau=proportional"),
    ("algorithm=fedavg", "form=balanced"),
    ("algorithm=fedavg", "draw=replacement"),
    ("algorithm=splitfed-v2",),
    ("algorithm=splitfed-v3",),
    ("algorithm=sflg", "G=2"),
    ("algorithm=fedseq", "G=2"),
    ("algorithm=scaffold",),
    ("algorithm=minibatch-sgd",),
)


AT_ONCE = 5  # settings that are searched together: one alone, on beyond its edge, would leave cores without work


def family() -> Iterator[Batch]:
    """Every algorithm and choice of the house on one telling cell of each small set.

    A fixed order of all clients is set against fresh permutations among ten: a round of 500 visits is no round.
    """
    for data in SMALL:
        cell, ten = (f"preset=paper/cross-device-{data}-c1-k10", "R=400"), silo(data, 1, 10)
        settings = [(*cell, *variant) for variant in VARIANTS]
        settings += [(*ten, "algorithm=ssl", f"order={order}") for order in ("permutation", "fixed")]
        for first in range(0, len(settings), AT_ONCE):
            some = tuple(said(*where) for where in settings[first : first + AT_ONCE])
            name = f"{data}, {first + 1} to {first + len(some)} of {len(settings)}"
            yield Batch("family", name, some, FOUR, CLIPPED, look=10, final_look=5)


def colours() -> Iterator[Batch]:
    """CIFAR-10 with a small net, for which a few hundred rounds are affordable: the four corners."""
    for C in (1, 2):
        where = (
            "data=cifar10",
            "model=cnncifar",
            "M=500",
            "S=10",
            f"C={C}",
            "alpha=10",
            "K=5",
            "R=400",
            "protocol=paper",
        )
        settings = tuple(said(*where, f"algorithm={name}") for name in PAIR)
        yield Batch("cnncifar", f"cifar10, ExDir({C}, 10), K=5", settings, FOUR, CLIPPED, look=10, final_look=5)


def devices(S: int, C: int, alpha: float) -> tuple[str, ...]:
    """500 clients, S of them in a round."""
    return "M=500", f"S={S}", f"C={C}", f"alpha={alpha:g}"


def landscape() -> Iterator[Batch]:
    """Who wins where: heterogeneity (C, alpha) and participation S, one at a time from the paper's cell."""
    places = [(C, 10.0, 10) for C in (1, 2, 5, 10)] + [(2, alpha, 10) for alpha in (1.0, 100.0)]
    places += [(C, 10.0, S) for C in (1, 2) for S in (3, 30)]
    for C, alpha, S in places:
        where = ("data=fashion-mnist", "model=lenet5", *devices(S, C, alpha), "K=10", "R=400", "protocol=paper")
        settings = tuple(said(*where, f"algorithm={name}") for name in PAIR)
        yield Batch("landscape", f"ExDir({C}, {alpha:g}), S={S}", settings, FOUR, CLIPPED, look=10, final_look=5)


STUDIES = {"tuned": tuned, "silos": silos, "family": family, "cnncifar": colours, "landscape": landscape}


def batches(study: str) -> list[Batch]:
    """All of one study, the most telling first."""
    return list(STUDIES[study]())
