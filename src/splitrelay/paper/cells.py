"""The cells of the paper's section 5 and appendix, with the best rates and results that the paper prints."""

from __future__ import annotations

from dataclasses import dataclass

from splitrelay.errors import UnknownName

MODELS = {"mnist": "lenet5", "fashion-mnist": "lenet5", "cifar10": "vgg11"}


@dataclass(frozen=True)
class Printed:
    """One algorithm in one cell: its rate, test accuracy and spread in percent, rounds to the goal (None: never)."""

    eta: float
    accuracy: float
    spread: float
    rounds: int | None


@dataclass(frozen=True)
class Cell:
    """A setting of the paper's tables. The goal is 30 % where each client has one class, 75 % where it has two."""

    setting: str  # cross-device or cross-silo
    data: str
    C: int
    K: int
    fedavg: Printed
    ssl: Printed

    @property
    def name(self) -> str:
        """Return the name in presets and tables."""
        return f"{self.setting}-{self.data}-c{self.C}-k{self.K}"

    @property
    def M(self) -> int:
        """Return the number of clients."""
        return 500 if self.setting == "cross-device" else 10

    @property
    def R(self) -> int:
        """Return the number of rounds. Each round has ten visits."""
        if self.data == "cifar10":
            return 4000
        return 1000 if self.C == 1 else 400

    @property
    def goal(self) -> float:
        """Return the accuracy whose first round is reported."""
        return 0.30 if self.C == 1 else 0.75

    @property
    def clip(self) -> float | None:
        """Return the clipping norm, or None."""
        return 10.0 if self.C == 2 else None


# (setting, data, C, K), then FedAvg and SSL: best rate, accuracy, spread, rounds to the goal.
_ROWS: tuple[tuple[str, str, int, int, tuple[float, ...], tuple[float, ...]], ...] = (
    ("cross-device", "mnist", 1, 10, (0.001, 56.43, 11.54, 274), (0.01, 98.84, 0.19, 16)),
    ("cross-device", "mnist", 1, 20, (0.0005, 51.86, 10.66, 274), (0.01, 98.85, 0.12, 14)),
    ("cross-device", "mnist", 2, 10, (0.05, 98.15, 0.13, 25), (0.05, 98.57, 0.36, 10)),
    ("cross-device", "mnist", 2, 20, (0.05, 98.35, 0.14, 18), (0.05, 98.56, 0.33, 8)),
    ("cross-device", "fashion-mnist", 1, 10, (0.001, 39.90, 6.08, 492), (0.01, 80.38, 2.80, 19)),
    ("cross-device", "fashion-mnist", 1, 20, (0.0005, 38.78, 6.51, 490), (0.01, 76.39, 3.15, 25)),
    ("cross-device", "fashion-mnist", 2, 10, (0.1, 81.77, 1.15, 127), (0.1, 78.25, 2.28, 162)),
    ("cross-device", "fashion-mnist", 2, 20, (0.1, 83.55, 1.13, 87), (0.05, 76.58, 3.18, 103)),
    ("cross-device", "cifar10", 1, 5, (0.1, 29.06, 6.46, 3666), (0.01, 81.34, 1.35, 604)),
    ("cross-device", "cifar10", 1, 10, (0.1, 14.00, 5.66), (0.01, 82.20, 1.33, 483)),
    ("cross-device", "cifar10", 1, 20, (0.1, 10.00, 0.00), (0.005, 80.60, 1.62, 673)),
    ("cross-device", "cifar10", 2, 5, (0.5, 75.92, 1.17, 3210), (0.05, 84.57, 0.90, 1004)),
    ("cross-device", "cifar10", 2, 10, (0.1, 81.17, 0.55, 2153), (0.05, 82.95, 1.70, 966)),
    ("cross-device", "cifar10", 2, 20, (0.1, 81.26, 0.60, 1614), (0.01, 85.24, 0.79, 998)),
    ("cross-device", "cifar10", 2, 30, (0.1, 80.47, 0.69, 1618), (0.01, 84.52, 0.86, 966)),
    ("cross-silo", "cifar10", 1, 5, (0.5, 69.28, 3.02, 956), (0.01, 84.79, 0.45, 495)),
    ("cross-silo", "cifar10", 1, 10, (0.1, 50.01, 4.06, 2254), (0.01, 85.64, 0.45, 401)),
    ("cross-silo", "cifar10", 1, 20, (0.1, 25.30, 2.72, 3516), (0.01, 84.75, 0.51, 712)),
    ("cross-silo", "cifar10", 1, 30, (0.1, 32.07, 5.95, 3119), (0.005, 83.19, 0.79, 920)),
    ("cross-silo", "cifar10", 2, 5, (0.1, 80.51, 0.47, 2413), (0.05, 85.52, 0.58, 883)),
    ("cross-silo", "cifar10", 2, 10, (0.1, 80.91, 0.58, 1743), (0.05, 84.33, 0.66, 897)),
    ("cross-silo", "cifar10", 2, 20, (0.1, 81.24, 0.44, 1236), (0.01, 86.43, 0.44, 1096)),
    ("cross-silo", "cifar10", 2, 30, (0.1, 81.09, 0.52, 996), (0.01, 85.48, 0.61, 1186)),
)


def _parse_printed(row: tuple[float, ...]) -> Printed:
    eta, accuracy, spread, *rounds = row
    return Printed(eta, accuracy, spread, int(rounds[0]) if rounds else None)


CELLS = {
    found.name: found
    for setting, data, C, K, fedavg, ssl in _ROWS
    for found in (Cell(setting, data, C, K, _parse_printed(fedavg), _parse_printed(ssl)),)
}


def cell(name: str) -> Cell:
    """Return the cell of that name."""
    if name not in CELLS:
        raise UnknownName("cell", name, CELLS)
    return CELLS[name]
