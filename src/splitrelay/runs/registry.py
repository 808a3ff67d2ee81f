"""Every algorithm by name: how to make it, its source, and hand-worked rounds that no other algorithm passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction as Q

from splitrelay.algorithms import (
    SFLG,
    SSL,
    FedAvg,
    FedSeq,
    MinibatchSGD,
    RandomReshuffling,
    Scaffold,
    SplitFedV2,
    SplitFedV3,
)
from splitrelay.algorithms.base import AlgorithmFactory
from splitrelay.algorithms.golden import Golden, Pair
from splitrelay.errors import UnknownName


@dataclass(frozen=True)
class Entry:
    """One built-in algorithm."""

    name: str
    make: AlgorithmFactory
    source: str
    goldens: Sequence[Golden]


# The runs are worked in the docstrings of the algorithms; most are on this problem, two local steps, one round.
PAIR = Golden(h=(1, 1), a=(1, -1), eta=Q(1, 2), K=2, x0=Q(2), orders=[(0, 1)], models=[])

ENTRIES = (
    Entry(
        "ssl",
        lambda it: SSL(it.step, it.K, it.gamma),
        "Gupta & Raskar 2018; the paper's Algorithm 1",
        [
            replace(PAIR, models=[Q(11, 16)]),
            replace(PAIR, models=[Q(-5, 8)], gamma=Q(2)),
            replace(PAIR, models=[Q(3, 8)], K=(2, 1)),
        ],
    ),
    Entry(
        "fedavg",
        lambda it: FedAvg(it.step, it.K, it.gamma, it.sizes),
        "McMahan et al. 2017; the paper's Algorithm 2",
        [
            replace(PAIR, models=[Q(1, 2)]),
            replace(PAIR, models=[Q(1, 8)], sizes=(3, 1)),
            replace(PAIR, models=[Q(-1)], gamma=Q(2)),
            replace(PAIR, orders=[(1, 1)], models=[Q(5, 4)]),
        ],
    ),
    Entry(
        "minibatch-sgd",
        lambda it: MinibatchSGD(it.step, it.K),
        "Dekel et al. 2012; the first row of the paper's Table 1",
        [replace(PAIR, models=[Q(1)])],
    ),
    Entry(
        "random-reshuffling",
        lambda it: RandomReshuffling(it.step),
        "Mishchenko et al. 2020; the paper's special case K = 1",
        [replace(PAIR, K=1, orders=[(1, 0)], models=[Q(1, 4)])],
    ),
    Entry(
        "scaffold",
        lambda it: Scaffold(it.step, it.K, it.M, it.gamma),
        "Karimireddy et al. 2020, option II",
        [Golden((2, 0), (1, -1), Q(1, 4), 2, Q(2), orders=[(0, 1), (0, 1)], models=[Q(21, 16), Q(47, 64)])],
    ),
    Entry(
        "fedseq",
        lambda it: FedSeq(it.step, it.K, it.G, it.gamma),
        "Zaccone et al. 2022",
        [Golden((1, 1, 1), (1, -1, 1), Q(1, 2), 1, Q(2), orders=[(0, 1, 2)], models=[Q(5, 8)], G=2)],
    ),
    Entry(
        "splitfed-v2",
        lambda it: SplitFedV2(it.step, it.K, it.cut),
        "Thapa et al. 2020",
        [replace(PAIR, K=1, x0=Pair(Q(2), Q(4)), models=[Pair(Q(1), Q(3, 2))])],
    ),
    Entry(
        "splitfed-v3",
        lambda it: SplitFedV3(it.step, it.K, it.cut),
        "Gawali et al. 2021",
        [
            Golden(
                (2, 0),
                (1, -1),
                Q(1, 4),
                1,
                Pair(Q(2), Q(4)),
                orders=[(0, 1), (0, 1)],
                models=[Pair(Q(3, 2), Q(3)), Pair(Q(21, 16), Q(9, 4))],
            ),
        ],
    ),
    Entry(
        "sflg",
        lambda it: SFLG(it.step, it.K, it.cut, it.G),
        "Gao et al. 2021",
        [
            Golden(
                (1, 1, 1),
                (1, -1, 1),
                Q(1, 2),
                1,
                Pair(Q(2), Q(4)),
                orders=[(0, 1, 2)],
                models=[Pair(Q(5, 6), Q(5, 4))],
                G=2,
            ),
        ],
    ),
)

ALGORITHMS = {entry.name: entry for entry in ENTRIES}


def algorithm(name: str) -> Entry:
    """Return the entry with this name."""
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise UnknownName("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name]
