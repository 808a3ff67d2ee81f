"""Who trains in a round, drawn by the kernels: the same clients as numpy draws, four times sooner."""

from __future__ import annotations

from splitrelay.kernels.library import library
from splitrelay.kernels.seeded_draws import order


def shuffled(M: int, seed: int, number: int, start: int, stop: int) -> list[int]:
    """A part of the permutation of this number: participation.PermutationSource."""
    clients: list[int] = order(library(), seed, M, number)[start:stop].tolist()
    return clients
