"""The figures say what the partition says."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes

from splitrelay.data.partition import Partition
from splitrelay.data.partition_schemes import draw_partition
from splitrelay.reports.partition_figure import bubbles, heat_map, panels
from splitrelay.reports.style import save_figure

LABELS = np.repeat(np.arange(10), 60)


def drawn(M: int, C: int = 2, alpha: float = 10.0) -> Partition:
    return draw_partition("exdir", LABELS, M=M, C=C, alpha=alpha)


def written(axes: Axes) -> dict[tuple[int, int], int]:
    """What stands in the cells: (client, label): count."""
    return {tuple(map(int, text.get_position())): int(text.get_text()) for text in axes.texts}


def cells(partition: Partition) -> dict[tuple[int, int], int]:
    return {(int(m), int(c)): int(partition.counts[m, c]) for m, c in np.argwhere(partition.counts)}


def test_the_heat_map_writes_every_count_into_its_cell() -> None:
    assert written(heat_map(drawn(20)).axes[0]) == cells(drawn(20))


def test_above_twenty_clients_no_counts_are_written() -> None:
    assert not list(heat_map(drawn(21)).axes[0].texts)


@pytest.mark.parametrize("M", [30, 100])
def test_the_shades_are_the_counts(M: int) -> None:
    shades = np.asarray(heat_map(drawn(M)).axes[0].collections[0].get_array())
    if M == 30:
        assert np.array_equal(shades, drawn(M).counts.T)
    assert sorted(map(tuple, shades.T.tolist())) == sorted(map(tuple, drawn(M).counts.tolist()))


def test_many_clients_are_ordered_by_their_main_label() -> None:
    shades = np.asarray(heat_map(drawn(100)).axes[0].collections[0].get_array())
    main = shades.argmax(axis=0)
    assert (np.diff(main) >= 0).all()


def test_a_bubble_is_as_large_as_its_count() -> None:
    partition = drawn(12)
    discs = bubbles(partition).axes[0].collections[0]
    area = {tuple(map(int, at)): size for at, size in zip(discs.get_offsets(), discs.get_sizes(), strict=True)}
    ratios = [area[cell] / count for cell, count in cells(partition).items()]
    assert len(area) == len(cells(partition))
    assert ratios == pytest.approx([ratios[0]] * len(ratios))


def test_the_panels_stand_C_down_and_alpha_across_on_one_scale() -> None:
    parts = {(C, alpha): drawn(10, C, alpha) for C in (1, 2, 5, 10) for alpha in (100.0, 10.0, 1.0)}
    *grid, scale = panels(parts).axes
    assert [axes.get_title() for axes in grid][:4] == ["ExDir(1, 100)", "ExDir(1, 10)", "ExDir(1, 1)", "ExDir(2, 100)"]
    for axes, partition in zip(grid, parts.values(), strict=True):
        assert written(axes) == cells(partition)
    assert {axes.collections[0].norm.vmax for axes in grid} == {60}
    assert scale.get_ylim() == (0, 60)


@pytest.mark.parametrize("draw", [heat_map, bubbles])
def test_the_same_partition_gives_the_same_bytes(draw: type, tmp_path: Path) -> None:
    first, again = (save_figure(draw(drawn(8)), tmp_path / f"{name}.pdf").read_bytes() for name in ("first", "again"))
    assert first == again
