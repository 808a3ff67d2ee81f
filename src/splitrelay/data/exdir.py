"""ExDir(C, alpha), the paper's Extended Dirichlet partition, in two forms.

paper: every client draws C classes, given that every class has a holder; p_c ~ Dir(alpha q_c) over its holders.
balanced: what the authors' later code does beyond that. Each class has at least max(C*M // classes // 5, 1) holders;
classes are dealt in order, and a client that already holds N/M samples gets none of the next class; the shares (not
the classes) are redrawn until every client has `min_size` samples. Where all holders of a class are full their code
divides 0 by 0; here it is dealt over all its holders.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from splitrelay.data.allocation import Bools, covering, covering_often
from splitrelay.data.dealing import class_sizes, cut, dirichlet_weights, owners, redrawn, shares
from splitrelay.data.partition import Ints, Labels, Partition, from_owners, whole
from splitrelay.errors import OutOfRange, UnknownName
from splitrelay.randomness import Purpose, rng

FORMS = ("paper", "balanced")
MIN_SIZE = 10  # the authors' constant


def exdir(
    labels: Labels, *, M: int, C: int, alpha: float, form: str = "paper", seed: int = 1, min_size: int | None = None
) -> Partition:
    """The partition ExDir(C, alpha) over M clients; `min_size` belongs to the balanced form, where it is 10."""
    sizes = class_sizes(labels)
    M = whole("M", M, 1)
    C = whole("C", C, 1, len(sizes), "the number of classes")
    settings = {"M": M, "C": C, "alpha": float(alpha), "form": form, "seed": seed}
    generator = rng(seed, Purpose.PARTITION)
    if form == "paper":
        refuse_min_size(min_size)
        counts = shares(covering(M, C, len(sizes), generator), sizes, alpha, generator)
    elif form == "balanced":
        least = MIN_SIZE if min_size is None else whole("min_size", min_size, 0)
        settings["min_size"] = least
        counts = _balanced(M, C, alpha, sizes, least, generator)
    else:
        raise UnknownName("form", form, FORMS)
    return from_owners(owners(counts, labels, generator), M, labels, "exdir", settings)


def refuse_min_size(min_size: int | None) -> None:
    """The paper's form has no smallest size, and 0 asks for none."""
    if min_size:
        raise OutOfRange(
            "form=paper asks no smallest size of its clients",
            value=f"min_size={min_size}",
            hint="Use form=balanced.",
        )


def _balanced(M: int, C: int, alpha: float, sizes: Ints, least: int, generator: np.random.Generator) -> Ints:
    n, N = len(sizes), int(sizes.sum())
    holds = covering_often(M, C, n, max(C * M // n // 5, 1), generator)
    draw = partial(_balanced_shares, holds, sizes, alpha, generator)
    return redrawn(draw, least, N, M, f"the balanced ExDir({C}, {alpha:g})")


def _balanced_shares(holds: Bools, sizes: Ints, alpha: float, generator: np.random.Generator) -> Ints:
    """Class after class: who holds N/M samples or more is left out, unless all holders of the class do."""
    counts = np.zeros(holds.shape, dtype=np.int64)
    held = np.zeros(len(holds), dtype=np.int64)
    for c, n in enumerate(sizes):
        holders = np.flatnonzero(holds[:, c])
        room = held[holders] * len(holds) < sizes.sum()
        takers = holders[room] if room.any() else holders
        counts[takers, c] = cut(
            dirichlet_weights(alpha, len(takers), generator), n
        )  # a Dirichlet, renormalised, is one
        held += counts[:, c]
    return counts
