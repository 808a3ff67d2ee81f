"""Randomness has a name: (root seed, purpose, then round, client, occurrence, ... as the purpose needs).

Nothing else makes a generator. So resuming at round r needs no replay, evaluating more often changes nothing,
and a client on another host draws the same numbers.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from splitrelay.errors import InputError


class Purpose(IntEnum):
    """What the numbers are for. The values are part of every result: never renumber."""

    INIT = 0  # ()
    PARTITION = 1  # ()
    ORDER = 2  # (r) or (number of the permutation that is being consumed)
    BATCHES = 3  # (r, m, i)
    AUGMENT = 4  # (r, m, i)
    DROPOUT = 5  # (r, m, i, k, layer)
    NOISE = 6  # (r, m, i)
    EVALUATION = 7  # (r)
    INSTANCES = 8  # (number): random problems on which statements are checked
    VALIDATION = 9  # (m): the samples a client keeps from training


def rng(root: int, purpose: Purpose, *names: int) -> np.random.Generator:
    """The generator that carries this name."""
    if root < 0:
        raise InputError("a seed must be a whole number from 0 up", value=root)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(root, spawn_key=(purpose, *names))))
