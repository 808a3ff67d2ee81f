"""An order, a partition and a schedule outside the package. A spec names them as examples.own_parts:Snake and so on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Snake:
    """All M clients: forwards in even rounds, backwards in odd rounds."""

    M: int

    def __call__(self, r: int, /) -> Sequence[int]:
        return range(self.M) if r % 2 == 0 else range(self.M - 1, -1, -1)


def deal(labels: Any, M: int) -> Any:
    """Sort the samples by their labels and give them to the clients one after another, like cards."""
    owner = np.empty(len(labels), dtype=int)
    owner[np.argsort(labels, kind="stable")] = np.arange(len(labels)) % M
    return owner


def halve(r: int) -> float:
    """Halve the learning rate after every ten rounds."""
    return 0.5 ** (r // 10)


def main() -> None:
    snake = Snake(M=3)
    print(*(list(snake(r)) for r in range(2)))
    print(deal([1, 0, 1, 0], M=2))


if __name__ == "__main__":
    main()
