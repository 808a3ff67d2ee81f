"""The paper's simulations on quadratics: winners, the authors' saved numbers, exact values, and the figure."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from splitrelay.algorithms import SSL, FedAvg, Step
from splitrelay.cli.main import app
from splitrelay.engine import InProcess
from splitrelay.objectives.quadratic import ScalarQuadratics
from splitrelay.objectives.quadratic_groups import authors_groups, paper_groups, random_groups, with_noise
from splitrelay.paper.quadratics import Curves, Row, Study, exact, simulate
from splitrelay.paper.quadratics_figure import Panel, PanelFigure, draw
from splitrelay.participation import Permutation
from splitrelay.training import train


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return simulate(Study(paper_groups(), K=10))


def test_winners_are_the_papers(rows: list[Row]) -> None:
    assert [row.winner for row in rows] == ["fedavg"] * 3 + ["ssl"] * 6


def test_winners_are_the_same_with_two_local_steps() -> None:
    assert [row.winner for row in simulate(Study(paper_groups(), K=2))] == ["fedavg"] * 3 + ["ssl"] * 6


def test_best_rates(rows: list[Row]) -> None:
    assert [row.ssl.eta for row in rows] == [0.003] * 9
    assert [row.fedavg.eta for row in rows] == [0.3] * 3 + [0.003] * 6  # 0.3 and 0.6 both reach 0: the smaller is taken
    assert [row.fedavg.tied for row in rows] == [True] * 3 + [False] * 6
    assert all(row.ssl.on_edge for row in rows)


def test_fedavg_ends_where_the_closed_form_says(rows: list[Row]) -> None:
    expected = [0.004498, 0.04496, 0.4495, 0.01365, 0.1365, 1.365]
    assert [float(f"{row.fedavg.error:.4g}") for row in rows[3:]] == expected
    for row in rows[3:]:
        assert math.isclose(row.fedavg.error, exact(row).fedavg_rms, rel_tol=1e-12)


def test_exact_laws_are_the_reference_values(rows: list[Row]) -> None:
    absolute = [0.002088, 0.02088, 0.2088, 0.002118, 0.02118, 0.2118, 0.002356, 0.02356, 0.2356]
    rms = [0.002603, 0.02603, 0.2603, 0.002642, 0.02642, 0.2642, 0.002931, 0.02931, 0.2931]
    laws = [exact(row) for row in rows]
    assert [float(f"{law.ssl_mean_absolute:.4g}") for law in laws] == absolute
    assert [law.ssl_rms for law in laws] == pytest.approx(rms, rel=3e-4)
    assert laws[0].ssl_smallest < 1e-9 < laws[0].ssl_largest == pytest.approx(0.01502, rel=1e-3)


def test_every_simulated_end_is_inside_the_exact_range(rows: list[Row]) -> None:
    for row in rows:
        last, law = row.ssl.errors[:, row.ssl.best, -1], exact(row)
        assert (last >= law.ssl_smallest - 1e-12).all() and (last <= law.ssl_largest + 1e-12).all()


class AuthorsOrder:
    """The orders of the authors' script: one legacy generator a seed, drawn once a round."""

    def __init__(self, seed: int) -> None:
        generator = np.random.RandomState(seed)  # theirs, not ours
        self.orders = [generator.choice(range(2), 2, replace=False).tolist() for _ in range(500)]

    def __call__(self, r: int) -> list[int]:
        return self.orders[r]


def final_errors(groups, eta: float) -> np.ndarray:
    """|x^500| with the authors' orders, of shape (seeds, groups)."""
    clients, ends = InProcess(ScalarQuadratics.beside([group.problem for group in groups])), []
    for seed in (1, 12, 123, 1234, 12345):
        *_, (_, x) = train(SSL(Step(eta), K=10), np.full((9, 1), 10.0), AuthorsOrder(seed), clients, R=500)
        ends.append(np.abs(x[:, 0]))
    return np.array(ends)


def test_with_the_authors_orders_we_get_the_means_over_their_seeds() -> None:
    known = [0.002599, 0.02599, 0.2599, 0.002729, 0.02729, 0.2729, 0.00362, 0.0362, 0.362]
    assert [float(f"{mean:.4g}") for mean in final_errors(paper_groups(), 0.003).mean(0)] == known


def test_with_the_authors_orders_we_get_the_authors_saved_numbers() -> None:
    saved = [0.0004, 0.0042, 0.0428, 0.0004, 0.0045, 0.0473, 0.0004, 0.0074, 0.0777]
    to_four_decimals = np.round(final_errors(authors_groups(), 0.001), 4)  # as their files hold them
    assert np.round(to_four_decimals.mean(0), 4).tolist() == pytest.approx(saved, abs=1e-12)


def test_a_grid_from_a_diverging_rate_shows_it_and_does_not_choose_it() -> None:
    row = simulate(Study(paper_groups()[6:7], K=10, R=60, etas=(3.0, 0.01), seeds=(1,)))[0]
    assert math.isinf(row.ssl.final[0]) or row.ssl.final[0] > 1e20
    assert row.ssl.eta == 0.01


def test_ties_go_to_the_smallest_rate_wherever_it_stands() -> None:
    curves = Curves((0.5, 0.1, 0.3), np.array([[[1.0, 0.0], [1.0, 0.0], [1.0, 2.0]]]))
    assert curves.eta == 0.1 and curves.tied and curves.on_edge


@pytest.mark.parametrize("algorithm", [SSL, FedAvg])
@pytest.mark.parametrize("sigma2", [0.0, 0.5])
def test_seeds_side_by_side_are_to_the_bit_what_each_is_alone(algorithm: type, sigma2: float) -> None:
    """Three clients, so that the order of a sum shows in its last bits; orders and noise are each seed's own."""
    groups, seeds, x0 = with_noise(random_groups(3, 1, seed=4), sigma2), (1, 12, 123), np.full((3, 2), 10.0)
    row = {SSL: "ssl", FedAvg: "fedavg"}[algorithm]
    together = [getattr(found, row).errors for found in simulate(Study(groups, 4, 30, (0.01, 0.3), seeds))]
    objective = ScalarQuadratics.beside([group.problem for group in groups])
    for s, seed in enumerate(seeds):
        clients, order = InProcess(objective, seed), Permutation(3, seed)
        alone = [x for _, x in train(algorithm(Step(np.array([0.01, 0.3])), 4), x0, order, clients, R=30)]
        for g in range(3):
            expected = np.abs(np.stack(alone, axis=-1) - objective.x_star[..., np.newaxis])[g]
            assert (together[g][s] == expected).all()


def test_many_dimensions_and_noise_run_through_the_same_classes() -> None:
    noisy = simulate(Study(random_groups(3, 2, seed=1), K=3, R=30, seeds=(1, 2)))
    assert [row.ssl.errors.shape for row in noisy] == [(2, 8, 31)] * 3
    law = exact(noisy[0])
    assert law.ssl_mean_absolute is None and law.ssl_rms > 0


def test_with_noise_the_exact_rms_is_what_many_seeds_show() -> None:
    groups = with_noise(random_groups(3, 2, seed=1, number=1), 0.5)
    row = simulate(Study(groups, K=3, R=10, etas=(0.05,), seeds=range(400)))[0]
    for curves, rms in ((row.fedavg, exact(row).fedavg_rms), (row.ssl, exact(row).ssl_rms)):
        assert math.sqrt((curves.errors[:, 0, -1] ** 2).mean()) == pytest.approx(rms, rel=0.08)


def test_the_figure_says_when_a_curve_has_left_it(rows: list[Row], tmp_path: Path) -> None:
    nine = draw(rows, tmp_path / "nine.svg").read_text()
    assert "FedAvg is below from round 4 on" in nine and "Group 9" in nine
    assert draw(rows, tmp_path / "again.svg").read_text() == nine


def run(*words: str) -> str:
    result = CliRunner().invoke(app, ["quadratics", *words])
    assert result.exit_code == 0, result.output
    return result.output


def test_json_says_who_wins() -> None:
    groups = json.loads(run("K=10", "--format", "json"))["groups"]
    assert [group["group"] for group in groups] == list(range(1, 10))
    assert {group["K"] for group in groups} == {10}
    assert [group["winner"] for group in groups] == ["fedavg"] * 3 + ["ssl"] * 6
    assert groups[3]["fedavg"]["eta"] == 0.003 and groups[3]["ssl"]["error"] < groups[3]["fedavg"]["error"]
    assert [group["delta"] for group in groups[3:6]] == pytest.approx([0.375, 3.75, 37.5])
    assert groups[6]["delta"] == "inf"


def test_csv_holds_the_whole_grid() -> None:
    lines = run("K=2", "R=5", "--format", "csv").splitlines()
    assert lines[0] == "group,K,algorithm,eta,mean,min,max,best" and len(lines) == 1 + 9 * 2 * 8


def test_the_table_marks_edges_and_ties(tmp_path: Path) -> None:
    text = run("K=10", "--out", str(tmp_path))
    assert "0.3=" in text and "0.003*" in text and "grid's edge" in text
    assert (tmp_path / "quadratics-K10.png").exists() and (tmp_path / "quadratics-body-K10.png").exists()


def test_own_quadratics_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('[[groups]]\nname = "mine"\nH = [1, "4/3"]\nV = [1, -1]\n')
    groups = json.loads(run("--groups", str(tmp_path / "mine.toml"), "K=3", "R=9", "--format", "json"))["groups"]
    assert [group["group"] for group in groups] == ["mine"]


PANEL = Panel(left=1, bottom=2, width=4, height=3, last=500, low=1e-5, high=10)


def test_the_corners_are_the_ends_of_both_scales() -> None:
    assert (PANEL.x([0, 250, 500]) == [1, 3, 5]).all()
    assert PANEL.y([1e-5, 1e-2, 10]) == pytest.approx([2, 3.5, 5])


def test_ticks_stand_at_the_numbers_that_they_name() -> None:
    assert list(PANEL.ticks_across()) == [(1, "0"), (3, "250"), (5, "500")]
    assert [words for _, words in PANEL.ticks_up()] == ["$10^{-5}$", "$10^{-3}$", "$10^{-1}$", "$10^{1}$"]
    assert [y for y, _ in PANEL.ticks_up()] == pytest.approx([2, 3, 4, 5])


def test_one_round_has_whole_ticks() -> None:
    assert [words for _, words in Panel(0, 0, 1, 1, 1, 0.1, 10).ticks_across()] == ["0", "1"]


def test_a_band_ends_at_the_frame_also_where_a_run_diverged() -> None:
    sheet = PanelFigure(Figure())
    sheet.band(PANEL, [0, 500], [1e-9, 1e-2], [1e-3, np.inf], "black")
    (points, _), *_ = sheet.bands
    assert points[:, 1].min() == 2 and points[:, 1].max() == 5


def test_a_curve_is_cut_off_at_the_frame() -> None:
    sheet = PanelFigure(figure := Figure(dpi=100))
    sheet.curve(PANEL, [0, 500], [10, 1e-9], "black", "-")
    (line,) = figure.findobj(Line2D)
    assert line.get_clip_box().extents.tolist() == [100, 200, 500, 500]
