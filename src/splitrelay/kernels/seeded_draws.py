"""Named generators inside the kernels: numpy's own numbers, without Python; numpy is asked once whether it agrees."""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from splitrelay.errors import InputError
from splitrelay.kernels.ctypes_structs import NameC, address
from splitrelay.kernels.faults import check_call
from splitrelay.randomness import Purpose, rng

Integers = npt.NDArray[np.int64]
WORDS = 4  # a root seed is padded to as many words of 32 bits
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
        """What names a visit's randomness; the root must be kept as long."""
        return NameC(self.at, self.number, r, m, i)


@lru_cache(maxsize=16)
def root(seed: int) -> Root:
    """The root of a run: every visit names it."""
    return Root(seed)


def positions(
    kernels: c.CDLL, name: NameC, held: Integers, sizes: Sequence[int], size: int, *, again: bool
) -> Integers:
    """What client m uses in a visit: batches of up to `size` in shuffled passes, or each image drawn again."""
    held, n = np.ascontiguousarray(held, np.int64), len(held)
    room = np.empty(n + sum(sizes), np.int64)  # for a pass, then for what is drawn
    at = address(room)
    drawn = kernels.draw(
        c.addressof(name), Purpose.BATCHES, again, address(held), n, len(sizes), size, at, at + n * room.itemsize,
        len(room) - n,
    )  # fmt: skip
    check_call(drawn)
    return room[n : n + drawn]


def batch_sizes(n: int, K: int, size: int, *, again: bool) -> list[int]:
    """Of K steps: in passes, the last of each is short."""
    whole, rest = divmod(n, size)
    one_pass = [size] if again else [size] * whole + [rest] * (rest > 0)
    return (one_pass * (K // len(one_pass) + 1))[:K]


def order(kernels: c.CDLL, seed: int, M: int, number: int) -> npt.NDArray[np.uint32]:
    """The clients 0, ..., M-1 as the permutation of this number has them."""
    own, room = root(seed), np.empty(2 * M, np.uint32)
    check_call(kernels.draw_order(own.at, own.number, Purpose.ORDER, number, M, address(room), len(room)))
    return room[M:]


def uniform(kernels: c.CDLL, name: NameC, more: Sequence[int], n: int) -> npt.NDArray[np.float32]:
    """Dropout's numbers for step and layer."""
    found, words = np.empty(n, np.float32), (c.c_int64 * len(more))(*more)
    check_call(kernels.draw_uniform(c.addressof(name), Purpose.DROPOUT, words, len(more), n, found.ctypes.data))
    return found


def agree(kernels: c.CDLL) -> bool:
    """Whether this numpy still draws as the kernels do: shuffled passes, again and again, orders, dropout's masks."""
    seed, r, m, i = TRIED
    own, held = Root(seed), np.arange(50)
    name = own.name(r, m, i)
    shuffled = rng(seed, Purpose.BATCHES, r, m, i).permutation(50)
    again = rng(seed, Purpose.BATCHES, r, m, i).integers(50, size=60)
    masks = rng(seed, Purpose.DROPOUT, r, m, i, 4, 5).random(9, dtype=np.float32)
    return (
        np.array_equal(positions(kernels, name, held, [20, 20, 10], 20, again=False), shuffled)
        and np.array_equal(positions(kernels, name, held, [20] * 3, 20, again=True), again)
        and np.array_equal(order(kernels, seed, 50, r), rng(seed, Purpose.ORDER, r).permutation(50))
        and np.array_equal(uniform(kernels, name, (4, 5), 9), masks)
    )
