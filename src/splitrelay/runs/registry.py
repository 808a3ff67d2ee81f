"""Every algorithm by name: how to make it, its source, and hand-worked rounds that no other algorithm passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction as Q
from functools import partial
from typing import Any

from splitrelay.algorithms import (
    SFLG,
    SSL,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedProx,
    FedSeq,
    MinibatchSGD,
    RandomReshuffling,
    Scaffold,
    SplitFedV2,
    SplitFedV3,
)
from splitrelay.algorithms.base import Algorithm, AlgorithmFactory, AlgorithmSettings
from splitrelay.algorithms.golden import Golden, Pair
from splitrelay.errors import InputError, UnknownName
from splitrelay.runs.user_parts import build_part, find_target, list_registered_names


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
            replace(PAIR, K=1, orders=[(0, 1)] * 2, models=[Q(1), Q(1, 2)]),
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
        "fedprox",
        lambda it: FedProx(it.step, it.K, it.prox, it.gamma, it.sizes),
        "Li et al. 2020",
        [replace(PAIR, prox=Q(1, 4), models=[Q(5, 8)])],
    ),
    Entry(
        "fedavgm",
        lambda it: FedAvgM(it.step, it.K, it.server_momentum, it.gamma, it.sizes),
        "Hsu et al. 2019",
        [replace(PAIR, K=1, server_momentum=Q(1, 2), orders=[(0, 1)] * 3, models=[Q(1), Q(0), Q(-1, 2)])],
    ),
    Entry(
        "fedadam",
        lambda it: FedAdam(it.step, it.K, it.server_momentum, it.server_beta2, it.server_epsilon, it.gamma, it.sizes),
        "Reddi et al. 2021",
        [
            replace(
                PAIR,
                K=1,
                server_momentum=Q(1, 2),
                server_beta2=Q(0),
                server_epsilon=Q(1, 2),
                orders=[(0, 1)] * 2,
                models=[Q(5, 3), Q(7, 6)],
            ),
            replace(
                PAIR,
                K=1,
                server_momentum=Q(0),
                server_beta2=Q(3, 4),
                server_epsilon=Q(1, 2),
                gamma=Q(2),
                models=[Q(0)],
            ),
        ],
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
    """Return the entry with this name: a built-in algorithm, or one of the user (see runs/user_parts.py)."""
    if isinstance(name, str) and name in ALGORITHMS:
        return ALGORITHMS[name]
    target = find_target("algorithm", name) if isinstance(name, str) else None
    if target is None:
        raise UnknownName("algorithm", name, [*ALGORITHMS, *list_registered_names("algorithm")])
    return Entry(name, partial(_make_user_algorithm, name), target, ())


def _make_user_algorithm(name: str, settings: AlgorithmSettings) -> Algorithm[Any, Any]:
    """Build an algorithm of the user from the settings that its parameters name."""
    made: Algorithm[Any, Any] = build_part("algorithm", name, {"settings": settings, **vars(settings)})
    missing = [method for method in ("init", "round", "model") if not callable(getattr(made, method, None))]
    if missing:
        hint = "An algorithm has the methods init, round and model. See docs/experiments.md."
        raise InputError(f"algorithm {name} lacks methods", value=", ".join(missing), hint=hint)
    return made
