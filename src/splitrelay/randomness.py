"""Named random generators. The name is (seed, purpose, then round, client, occurrence, ... as the purpose needs).

No other code creates a generator. Therefore resuming at round r needs no replay, additional evaluations change
nothing, and a client on another host draws the same numbers.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from splitrelay.errors import InputError


class Purpose(IntEnum):
    """The use of the numbers. The values are part of every result: never renumber them."""

    INIT = 0  # ()
    PARTITION = 1  # ()
    ORDER = 2  # (r), or the number of the permutation for consumed orders
    BATCHES = 3  # (r, m, i)
    AUGMENT = 4  # (r, m, i)
    DROPOUT = 5  # (r, m, i, k, layer)
    NOISE = 6  # (r, m, i)
    EVALUATION = 7  # (r)
    INSTANCES = 8  # (number): random problems on which statements are checked
    VALIDATION = 9  # (m): the samples that a client does not use for training
    RESAMPLES = 10  # (n): resamples of n seeds, for intervals in tables


def rng(root: int, purpose: Purpose, *names: int) -> np.random.Generator:
    """Return the generator with this name."""
    if root < 0:
        raise InputError("a seed must be an integer from 0 up", value=root)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(root, spawn_key=(purpose, *names))))
