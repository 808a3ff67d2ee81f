"""Is what `cost` promises what a run records?"""

from pathlib import Path

import pytest
from relay_kit import simulated, small_spec

from splitrelay.deploy.cost import prices


@pytest.mark.parametrize("words", ["clip=1", "placement=whole algorithm=fedavg", "algorithm=scaffold tau=proportional"])
def test_a_round_costs_what_was_promised(words: str, tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "R=1", *words.split())
    row = simulated(spec, tmp_path / "run").seen()[-1]
    (price,) = [price for price in prices(spec) if price.chosen]
    M = spec.partition.M
    assert (row["bytes_up"], row["bytes_down"]) == (round(M * price.up), round(M * price.down))
