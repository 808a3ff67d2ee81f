"""What the paper's own tables say to the sentences of its section 5: in places the two disagree."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from splitrelay.paper.cells import CELLS, Cell

Test = Callable[[list[float]], bool]


def rises_then_falls(ends: Sequence[float]) -> bool:
    """Up from the first to the second, down by the last."""
    return ends[0] < ends[1] and ends[1] > ends[-1]


def falls_far(ends: Sequence[float]) -> bool:
    """Five points and more below the first, in the end."""
    return ends[-1] < ends[0] - 5


def falls_throughout(ends: Sequence[float]) -> bool:
    """Each below the one before."""
    return list(ends) == sorted(ends, reverse=True)


def rises_throughout(ends: Sequence[float]) -> bool:
    """Each above the one before."""
    return list(ends) == sorted(ends)


def along_K(algorithm: str, C: int, holds: Test) -> str:
    """'no: 80.5 80.9 81.2 81.1': its accuracies among ten clients, as K grows."""
    cells = sorted(printed("cross-silo", C), key=lambda cell: cell.K)
    ends = [float(getattr(cell, algorithm).accuracy) for cell in cells]
    return f"{_yes(holds(ends))}: {' '.join(f'{end:.1f}' for end in ends)}"


def gaps(cells: Sequence[Cell], holds: Callable[[float], bool]) -> str:
    """'yes: +37.6 to +72.2': SSL minus FedAvg."""
    found = sorted(cell.ssl.accuracy - cell.fedavg.accuracy for cell in cells)
    return f"{_yes(all(map(holds, found)))}: {found[0]:+.1f} to {found[-1]:+.1f}"


def sooner(cells: Sequence[Cell]) -> str:
    """Whether SSL reaches the goal in fewer rounds in every cell."""
    rounds = [(cell.ssl.rounds, cell.fedavg.rounds) for cell in cells]
    return _yes(all(ssl is not None and (fedavg is None or ssl < fedavg) for ssl, fedavg in rounds))


def better_in_silos(algorithm: str, C: int) -> str:
    """Whether an algorithm does better among ten clients than with 10 of 500, at every K that both have."""
    silos = {cell.K: getattr(cell, algorithm).accuracy for cell in printed("cross-silo", C)}
    devices = {cell.K: getattr(cell, algorithm).accuracy for cell in printed("cross-device", C, "cifar10")}
    both = [(silos[K], devices[K]) for K in silos if K in devices]
    return f"{_yes(all(silo > device for silo, device in both))}: {_against(both)}"


def worse_at_one() -> str:
    """Whether SSL among ten clients is worse at C = 1 than at C = 2, at every K."""
    ones, twos = ({cell.K: cell.ssl.accuracy for cell in printed("cross-silo", C)} for C in (1, 2))
    both = [(ones[K], twos[K]) for K in ones]
    return f"{_yes(all(one < two for one, two in both))}: {_against(both)}"


def printed(setting: str, C: int, *sets: str) -> list[Cell]:
    """The cells of a setting; on all sets unless said."""
    return [
        cell for cell in CELLS.values() if (cell.setting, cell.C) == (setting, C) and (not sets or cell.data in sets)
    ]


def _against(both: Sequence[tuple[float, float]]) -> str:
    return ", ".join(f"{one:.1f} against {two:.1f}" for one, two in both)


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"
