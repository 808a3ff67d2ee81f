"""Named random numbers drawn by the kernels. They are numpy's own numbers; `agree` checks this once."""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from splitrelay.errors import InputError
from splitrelay.kernels.ctypes_structs import Integers, NameC, address, check_call
from splitrelay.randomness import Purpose, rng

WORDS = 4  # of 32 bits, to which a root seed is padded
TRIED = 2**32 + 7, 3, 2**33, 1  # a seed and a client of two words


class Root:
    """A root seed as SeedSequence splits it: words of 32 bits, the lowest first."""

    def __init__(self, seed: int) -> None:
        if seed < 0:
            raise InputError("a seed must be a whole number from 0 up", value=seed)
        words = [seed >> shift & 0xFFFFFFFF for shift in range(0, max(seed.bit_length(), 32 * WORDS), 32)]
        self.words = (c.c_uint32 * len(words))(*words)
        self.at, self.number = c.addressof(self.words), len(words)

    def name(self, r: int, m: int, i: int) -> NameC:
        """Return the name of a visit's random numbers. The root must live as long as the name."""
        return NameC(self.at, self.number, r, m, i)


@lru_cache(maxsize=16)
def get_root(seed: int) -> Root:
    """Return the root of a run, which every visit names."""
    return Root(seed)


def draw_positions(
    kernels: c.CDLL, name: NameC, held: Integers, sizes: Sequence[int], size: int, *, replace: bool
) -> Integers:
    """Draw the images of a visit: batches of up to `size` in shuffled passes, or with replacement."""
    held, n = np.ascontiguousarray(held, np.int64), len(held)
    buffer = np.empty(n + sum(sizes), np.int64)  # for a pass, then for the result
    at = address(buffer)
    drawn = kernels.draw(
        c.addressof(name), Purpose.BATCHES, replace, address(held), n, len(sizes), size, at, at + n * buffer.itemsize,
        len(buffer) - n,
    )  # fmt: skip
    check_call(drawn)
    return buffer[n : n + drawn]


def get_batch_sizes(n: int, K: int, size: int, *, replace: bool) -> list[int]:
    """Return the sizes of K batches. In passes, the last batch of each pass may be short."""
    whole, rest = divmod(n, size)
    one_pass = [size] if replace else [size] * whole + [rest] * (rest > 0)
    return (one_pass * (K // len(one_pass) + 1))[:K]


def draw_permutation(kernels: c.CDLL, seed: int, M: int, number: int) -> npt.NDArray[np.uint32]:
    """Draw the permutation of 0, ..., M-1 with this number."""
    root, buffer = get_root(seed), np.empty(2 * M, np.uint32)
    check_call(kernels.draw_order(root.at, root.number, Purpose.ORDER, number, M, address(buffer), len(buffer)))
    return buffer[M:]


def draw_uniform(kernels: c.CDLL, name: NameC, more: Sequence[int], n: int) -> npt.NDArray[np.float32]:
    """Draw n numbers for dropout; `more` is the step and the layer."""
    numbers, words = np.empty(n, np.float32), (c.c_int64 * len(more))(*more)
    check_call(kernels.draw_uniform(c.addressof(name), Purpose.DROPOUT, words, len(more), n, numbers.ctypes.data))
    return numbers


def agree(kernels: c.CDLL) -> bool:
    """Return whether this numpy draws the numbers of the kernels: passes, replacement, permutations, dropout masks."""
    seed, r, m, i = TRIED
    root, held = Root(seed), np.arange(50)
    name = root.name(r, m, i)
    shuffled = rng(seed, Purpose.BATCHES, r, m, i).permutation(50)
    drawn = rng(seed, Purpose.BATCHES, r, m, i).integers(50, size=60)
    masks = rng(seed, Purpose.DROPOUT, r, m, i, 4, 5).random(9, dtype=np.float32)
    return (
        np.array_equal(draw_positions(kernels, name, held, [20, 20, 10], 20, replace=False), shuffled)
        and np.array_equal(draw_positions(kernels, name, held, [20] * 3, 20, replace=True), drawn)
        and np.array_equal(draw_permutation(kernels, seed, 50, r), rng(seed, Purpose.ORDER, r).permutation(50))
        and np.array_equal(draw_uniform(kernels, name, (4, 5), 9), masks)
    )
