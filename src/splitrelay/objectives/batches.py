"""How a client draws its batches. Positions refer to the client's own list, so it draws the same on every host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from splitrelay.errors import InputError, OutOfRange, UnknownName

Positions = npt.NDArray[np.int64]
DRAWS = ("passes", "replacement", "full")


@dataclass(frozen=True)
class Batches:
    """The batch size and the way to draw.

    Attributes:
        size: The number of images of a batch.
        draw: "passes" makes shuffled passes over the data; a short last batch counts as a step, as in the authors'
            code. "replacement" draws independently, as in the theory. "full" uses all samples in every step.
        drop_last: Leave out the short last batch of a pass. A client with fewer samples than `size` still has one.
    """

    size: int = 20
    draw: str = "passes"
    drop_last: bool = False

    def __post_init__(self) -> None:
        if self.size < 1:
            raise OutOfRange("batch size", limit="size >= 1", value=self.size)
        if self.draw not in DRAWS:
            raise UnknownName("way to draw batches", self.draw, DRAWS)

    def count_steps(self, n: int) -> int:
        """Return the number of batches of one pass over n samples."""
        if self.draw == "full":
            return 1
        return n // self.size if self.drop_last and n > self.size else -(-n // self.size)

    def positions(self, n: int, K: int, generator: np.random.Generator) -> list[Positions]:
        """Draw K batches of positions from n samples."""
        if n == 0:
            raise InputError("a client without samples cannot train", hint="Leave it out of the order.")
        if self.draw == "full":
            return [np.arange(n)] * K
        if self.draw == "replacement":
            return list(generator.integers(n, size=(K, self.size)))
        return list(islice(self._draw_passes(n, generator), K))

    def _draw_passes(self, n: int, generator: np.random.Generator) -> Iterator[Positions]:
        while True:
            shuffled = generator.permutation(n)
            stop = n - n % self.size if self.drop_last and n > self.size else n
            for start in range(0, stop, self.size):
                yield shuffled[start : start + self.size]
