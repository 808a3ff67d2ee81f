"""Small tables for tests: wards with a few patients, two classes that can be learned, and a real number."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from splitrelay.randomness import Purpose, rng

WARDS = ("north", "south", "east")


def build_columns(N: int = 120) -> dict[str, list[Any]]:
    """Return the columns age, pressure, sex, ward, died and days."""
    generator = rng(3, Purpose.INSTANCES)
    age, pressure = generator.normal(60, 15, N), generator.normal(120, 20, N)
    risk = (age - 60) / 15 + (pressure - 120) / 40 + 0.3 * generator.normal(size=N)
    return {
        "age": [round(value, 3) for value in age.tolist()],
        "pressure": [round(value, 3) for value in pressure.tolist()],
        "sex": ["f" if value < 0.5 else "m" for value in generator.random(N).tolist()],
        "ward": [WARDS[k] for k in generator.integers(0, len(WARDS), N).tolist()],
        "died": ["yes" if value > 0 else "no" for value in risk.tolist()],
        "days": [round(3 + 2 * value, 3) for value in risk.tolist()],
    }


def write_table(path: Path, columns: dict[str, list[Any]] | None = None) -> Path:
    """Write columns as a CSV file."""
    columns = build_columns() if columns is None else columns
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def build_arrays(N: int = 60, d: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Return features (N, d) and classes (N,)."""
    generator = rng(4, Purpose.INSTANCES)
    x = generator.normal(size=(N, d))
    return x, (x[:, 0] > 0).astype(np.int64)
