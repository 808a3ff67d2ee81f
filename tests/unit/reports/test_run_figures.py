"""Figures of runs and partitions show the recorded numbers, and name what is missing."""

import json
from pathlib import Path
from shutil import rmtree

import numpy as np
import pytest
from click.testing import CliRunner, Result
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from splitrelay.cli.main import app
from splitrelay.data.partition import Partition
from splitrelay.data.partition_schemes import draw_partition
from splitrelay.errors import InputError, SplitrelayError, UnknownName
from splitrelay.reports.curves import draw_curves
from splitrelay.reports.learning_rate_figure import draw_clipping, draw_rates
from splitrelay.reports.line_plots import colours
from splitrelay.reports.partition_figure import bubbles, heat_map, panels
from splitrelay.reports.style import BLUE, VERMILION, save_figure
from splitrelay.runs.records import runs_under
from tests.support.error_fields import expect_error
from tests.support.run_directories import write_run


def asked(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def refused(*words: str) -> SplitrelayError:
    error = asked(*words).exception
    assert isinstance(error, SplitrelayError)
    return error


def get_curves(axes: Axes) -> dict[str, tuple[list[float], list[float]]]:
    """By label: what the lines of a panel go through."""
    return {
        str(line.get_label()): (np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist())
        for line in axes.lines
    }


def key(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """SSL and FedAvg on two partitions, two seeds each."""
    for C, algorithm, top in ((1, "ssl", 0.8), (1, "fedavg", 0.4), (2, "ssl", 0.9), (2, "fedavg", 0.8)):
        for seed, shift in ((1234, 0.0), (666, 0.1)):
            words = (f"C={C}", f"algorithm={algorithm}", f"seed={seed}", "eta=0.01")
            write_run(tmp_path / "runs" / f"{algorithm}-{C}-{seed}", [0.1, top / 2, top + shift], *words)
    return tmp_path / "runs"


def test_the_key_names_rates_only_where_every_line_has_one(tmp_path: Path) -> None:
    for C, K, eta in ((1, 5, 0.1), (2, 5, 0.1), (1, 10, 0.1), (2, 10, 0.3)):
        write_run(tmp_path / f"{C}-{K}", [0.1, 0.9], f"C={C}", f"K={K}", f"eta={eta}", "algorithm=ssl")
    assert key(draw_curves(runs_under(tmp_path)).figure) == ["SSL, $K=5$", "SSL, $K=10$"]


def test_a_panel_a_partition_and_in_it_the_mean_curves(folder: Path) -> None:
    figure = draw_curves(runs_under(folder)).figure
    assert [axes.get_title() for axes in figure.axes] == ["ExDir(1, 10)", "ExDir(2, 10)"]
    lines = get_curves(figure.axes[0])
    assert lines[r"SSL, $\eta=0.01$"] == ([0, 1, 2], pytest.approx([10, 40, 85]))
    assert lines[r"FedAvg, $\eta=0.01$"] == ([0, 1, 2], pytest.approx([10, 20, 45]))
    assert {axes.get_ylim() for axes in figure.axes} == {(0.0, 100.0)}


def test_the_band_is_one_deviation_over_seeds(folder: Path) -> None:
    figure = draw_curves(runs_under(folder)).figure
    low, high = (
        getattr(figure.axes[0].collections[0].get_datalim(figure.axes[0].transData), name) for name in ("y0", "y1")
    )
    spread = np.std([40, 50], ddof=1)  # FedAvg's last round
    assert high == pytest.approx(45 + spread) and low == pytest.approx(10)


def test_one_seed_has_no_band_and_is_said(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.1, 0.5])
    found = draw_curves(runs_under(tmp_path))
    assert len(found.figure.axes[0].collections) == 0
    assert "One seed instead of 3" in found.said[1]
    note = found.figure._supxlabel  # type: ignore[attr-defined]
    assert "One seed instead of 3" in note.get_text().replace("\n", " ")


def test_a_line_style_for_each_K(tmp_path: Path) -> None:
    for K in (5, 10, 20):
        for algorithm in ("ssl", "fedavg"):
            write_run(tmp_path / f"{algorithm}-{K}", [0.1, 0.5], f"K={K}", f"algorithm={algorithm}")
    figure = draw_curves(runs_under(tmp_path)).figure
    looks = {(line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines}
    assert looks == {(colour, style) for colour in (BLUE, VERMILION) for style in ("-", "--", ":")}
    assert len(key(figure)) == 6


def test_cifar_is_drawn_every_fifth_round_and_says_so(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.01 * r for r in range(13)], "data=cifar10", "model=vgg11")
    found = draw_curves(runs_under(tmp_path))
    assert np.asarray(found.figure.axes[0].lines[0].get_xdata()).tolist() == [0, 5, 10]
    assert "CIFAR-10: every 5th round is drawn." in found.said


def test_who_was_looked_at_less_often_is_drawn_whole(tmp_path: Path) -> None:
    write_run(tmp_path / "a", {r: 0.01 * r for r in range(0, 31, 10)}, "data=cifar10", "model=vgg11", "every=10")
    found = draw_curves(runs_under(tmp_path))
    assert np.asarray(found.figure.axes[0].lines[0].get_xdata()).tolist() == [0, 10, 20, 30]
    assert not any("round is drawn" in note for note in found.said)


def test_smoothing_is_never_silent(folder: Path) -> None:
    found = draw_curves(runs_under(folder), smooth=2)
    assert found.figure.axes[0].get_ylabel() == "test accuracy (%),\nmean of 2 evaluations"
    assert get_curves(found.figure.axes[0])[r"SSL, $\eta=0.01$"] == ([1, 2], pytest.approx([25, 62.5]))
    assert draw_curves(runs_under(folder)).figure.axes[0].get_ylabel() == "test accuracy (%)"


def test_smoothing_over_more_than_there_is_is_refused(folder: Path) -> None:
    with expect_error(InputError, what="smooth", value=4, limit="<= 3"):
        draw_curves(runs_under(folder), smooth=4)


def test_what_is_no_number_leaves_a_gap_that_is_said(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.1, float("nan"), 0.5])
    found = draw_curves(runs_under(tmp_path))
    assert np.isnan(np.asarray(found.figure.axes[0].lines[0].get_ydata())[1])
    assert "1 points are not numbers and leave gaps." in found.said


def test_an_unfinished_run_is_said(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.1, 0.5], "R=9")
    assert any("a (1 of 9)" in sentence for sentence in draw_curves(runs_under(tmp_path)).said)


def test_bytes_are_megabytes_both_ways(folder: Path) -> None:
    figure = draw_curves(runs_under(folder), by_bytes=True).figure
    assert get_curves(figure.axes[0])[r"SSL, $\eta=0.01$"][0] == pytest.approx([0, 1.5, 3.0])
    assert figure.axes[0].get_xlabel() == "MB between clients and server"
    assert figure.axes[0].get_xscale() == "linear"


def test_bytes_that_are_far_apart_share_a_log_axis(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.1, 0.5])
    write_run(tmp_path / "b", [0.1, 0.5], "algorithm=fedavg", bytes_up=10**9)
    assert draw_curves(runs_under(tmp_path), by_bytes=True).figure.axes[0].get_xscale() == "log"


@pytest.fixture
def searched(tmp_path: Path) -> Path:
    """Three rates with and without clipping; the best is 0.1 with it; 0.3 without it stopped in round 1."""
    for clip, shift in (("10", 0.1), ("none", 0.0)):
        for eta, end in ((0.01, 0.3), (0.1, 0.8), (0.3, 0.6)):
            rounds = [0.1, end + shift, end + shift] if (clip, eta) != ("none", 0.3) else [0.1, 0.15]
            write_run(tmp_path / "runs" / f"{clip}-{eta}", rounds, f"clip={clip}", f"eta={eta}", "R=2")
    return tmp_path / "runs"


def test_the_rates_are_on_a_log_axis_with_a_star_on_the_best(searched: Path) -> None:
    found = draw_rates(runs_under(searched))
    axes = found.figure.axes[0]
    assert axes.get_xscale() == "log" and axes.get_xlabel() == r"rate $\eta$"
    stars = [line for line in axes.lines if line.get_marker() == "*"]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in stars] == [(0.1, pytest.approx(90))]  # type: ignore[index]
    assert key(found.figure) == ["SSL, no clipping", "SSL, max norm 10"]


def test_what_the_paper_prints_is_a_hollow_diamond_at_its_rate_in_its_own_cells_alone(searched: Path) -> None:
    for number, words in enumerate((("C=1",), ("C=3",))):
        write_run(searched / str(number), [0.1, 0.9], "eta=0.1", "algorithm=fedavg", *words)
    found = draw_rates(runs_under(searched))
    seen = {(axes.get_title(), *point) for axes in found.figure.axes for point in _diamonds(axes)}
    assert seen == {("ExDir(1, 10)", 0.001, 56.43), ("ExDir(2, 10)", 0.05, 98.57)}
    assert "A hollow diamond: what the paper prints, at its rate." in found.said


def _diamonds(axes: Axes) -> list[tuple[float, float]]:
    lines = [line for line in axes.lines if line.get_marker() == "D"]
    return [(float(np.asarray(line.get_xdata())[0]), float(np.asarray(line.get_ydata())[0])) for line in lines]


def test_a_rate_that_was_not_run_to_its_end_is_a_cross(searched: Path) -> None:
    found = draw_rates(runs_under(searched))
    crosses = [line for line in found.figure.axes[0].lines if line.get_marker() == "x"]
    assert [np.asarray(line.get_xdata()).tolist() for line in crosses] == [[0.3]]
    assert any(sentence.startswith("A cross: not run to the last round") for sentence in found.said)


def test_clipping_is_drawn_at_the_best_rate_and_the_next_above(searched: Path) -> None:
    found = draw_clipping(runs_under(searched))
    axes = found.figure.axes[0]
    assert axes.get_title() == "SSL, ExDir(2, 10)\n$\\eta=$ 0.1 (solid), 0.3 (dashed)"
    assert len(axes.lines) == 4 and key(found.figure) == ["max norm 10", "no clipping"]
    assert any("the best by test accuracy and the next above it are drawn" in sentence for sentence in found.said)


def test_where_the_best_rate_is_the_highest_the_one_below_it_is_drawn(searched: Path) -> None:
    for run in searched.glob("*-0.3"):
        rmtree(run)
    found = draw_clipping(runs_under(searched))
    assert found.figure.axes[0].get_title().endswith("0.01 (solid), 0.1 (dashed)")


def test_clipping_needs_runs_with_and_without(folder: Path) -> None:
    with expect_error(InputError, hint=("clip=10", "clip=none")):
        draw_clipping(runs_under(folder))


def test_of_several_rates_the_best_is_drawn_unless_all_are_asked_for(searched: Path) -> None:
    best, all_rates = draw_curves(runs_under(searched)), draw_curves(runs_under(searched), every_rate=True)
    assert len(best.figure.axes[0].lines) == 1 and len(all_rates.figure.axes[0].lines) == 6
    assert any("If several rates were tried" in sentence for sentence in best.said)
    assert "SSL (eta=0.1, clip=10)" in get_curves(all_rates.figure.axes[0])


@pytest.mark.parametrize("count", [1, 3, 7, 20])
def test_every_line_has_a_colour_of_its_own(count: int) -> None:
    found = colours([("ssl", f"eta={j}") for j in range(count)] + [("fedavg", "")])
    assert len(set(found.values())) == count + 1


def test_the_legend_stands_above_all_panels(folder: Path) -> None:
    figure = draw_curves(runs_under(folder)).figure
    figure.draw_without_rendering()
    legend = figure.legends[0].get_window_extent()
    assert all(axes.get_tightbbox().y1 <= legend.y0 + 1 for axes in figure.axes)  # type: ignore[union-attr]


def test_panels_and_notes_do_not_overlap(folder: Path) -> None:
    figure = draw_curves(runs_under(folder)).figure
    figure.draw_without_rendering()
    boxes = [axes.get_tightbbox() for axes in figure.axes]
    note = figure._supxlabel.get_window_extent()  # type: ignore[attr-defined]
    assert boxes[0].x1 <= boxes[1].x0 + 1  # type: ignore[union-attr]
    assert all(box.y0 >= note.y1 - 1 for box in boxes)  # type: ignore[union-attr]
    assert note.x1 <= figure.bbox.x1


@pytest.mark.parametrize("ending", ["pdf", "png", "svg"])
def test_the_command_draws_and_says_from_what(folder: Path, tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"curves.{ending}"
    answer = asked("figure", "curves", str(folder), "--smooth", "2", "--out", str(out))
    assert answer.exit_code == 0, answer.output
    first = out.read_bytes()
    about = json.loads((tmp_path / f"curves.{ending}.json").read_text())
    assert sorted(run["seed"] for run in about["runs"]) == [666] * 4 + [1234] * 4
    assert {run["path"] for run in about["runs"]} == {str(run.path) for run in runs_under(folder)}
    assert all(run["hash"] and run["complete"] for run in about["runs"])
    assert asked(*about["command"].split()[1:]).exit_code == 0
    assert out.read_bytes() == first


@pytest.mark.parametrize(
    ("words", "kind", "says"),
    [
        (("curvs", "--out", "a.png"), UnknownName, "Did you mean 'curves'?"),
        (("curves", "--out", "a.bmp"), InputError, "must end in .pdf, .png, .svg"),
        (("rates", "--smooth", "3", "--out", "a.png"), InputError, "has no curves to smooth"),
        (("clipping", "--all-rates", "--out", "a.png"), InputError, "--all-rates"),
        (
            ("curves", "--tune", "validation", "--all-rates", "--out", "a.png", "nowhere"),
            InputError,
            "no folder nowhere",
        ),
    ],
)
def test_wrong_words_get_one_line(folder: Path, words: tuple[str, ...], kind: type, says: str) -> None:
    error = refused("figure", words[0], str(folder), *words[1:])
    assert isinstance(error, kind) and says in str(error) and "\n" not in str(error)


def test_the_same_runs_give_the_same_bytes(searched: Path, tmp_path: Path) -> None:
    files = [save_figure(draw_rates(runs_under(searched)).figure, tmp_path / f"{name}.svg") for name in "ab"]
    assert files[0].read_bytes() == files[1].read_bytes()


LABELS = np.repeat(np.arange(10), 60)


def draw_parts(M: int, C: int = 2, alpha: float = 10.0) -> Partition:
    return draw_partition("exdir", LABELS, M=M, C=C, alpha=alpha)


def get_texts(axes: Axes) -> dict[tuple[int, int], int]:
    """What stands in the cells: (client, label): count."""
    return {tuple(map(int, text.get_position())): int(text.get_text()) for text in axes.texts}


def cells(partition: Partition) -> dict[tuple[int, int], int]:
    return {(int(m), int(c)): int(partition.counts[m, c]) for m, c in np.argwhere(partition.counts)}


def test_the_heat_map_writes_every_count_into_its_cell() -> None:
    assert get_texts(heat_map(draw_parts(20)).axes[0]) == cells(draw_parts(20))


def test_above_twenty_clients_no_counts_are_written() -> None:
    assert not list(heat_map(draw_parts(21)).axes[0].texts)


@pytest.mark.parametrize("M", [30, 100])
def test_the_shades_are_the_counts(M: int) -> None:
    shades = np.asarray(heat_map(draw_parts(M)).axes[0].collections[0].get_array())
    if M == 30:
        assert np.array_equal(shades, draw_parts(M).counts.T)
    assert sorted(map(tuple, shades.T.tolist())) == sorted(map(tuple, draw_parts(M).counts.tolist()))


def test_many_clients_are_ordered_by_their_main_label() -> None:
    shades = np.asarray(heat_map(draw_parts(100)).axes[0].collections[0].get_array())
    main = shades.argmax(axis=0)
    assert (np.diff(main) >= 0).all()


def test_a_bubble_is_as_large_as_its_count() -> None:
    partition = draw_parts(12)
    discs = bubbles(partition).axes[0].collections[0]
    area = {tuple(map(int, at)): size for at, size in zip(discs.get_offsets(), discs.get_sizes(), strict=True)}
    ratios = [area[cell] / count for cell, count in cells(partition).items()]
    assert len(area) == len(cells(partition))
    assert ratios == pytest.approx([ratios[0]] * len(ratios))


def test_the_panels_stand_C_down_and_alpha_across_on_one_scale() -> None:
    parts = {(C, alpha): draw_parts(10, C, alpha) for C in (1, 2, 5, 10) for alpha in (100.0, 10.0, 1.0)}
    *grid, scale = panels(parts).axes
    assert [axes.get_title() for axes in grid][:4] == ["ExDir(1, 100)", "ExDir(1, 10)", "ExDir(1, 1)", "ExDir(2, 100)"]
    for axes, partition in zip(grid, parts.values(), strict=True):
        assert get_texts(axes) == cells(partition)
    assert {axes.collections[0].norm.vmax for axes in grid} == {60}
    assert scale.get_ylim() == (0, 60)


@pytest.mark.parametrize("draw", [heat_map, bubbles])
def test_the_same_partition_gives_the_same_bytes(draw: type, tmp_path: Path) -> None:
    first, again = (
        save_figure(draw(draw_parts(8)), tmp_path / f"{name}.pdf").read_bytes() for name in ("first", "again")
    )
    assert first == again
