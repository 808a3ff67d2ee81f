"""`splitrelay theory`: steps, comparisons, weights, lemmas, errata, checks and figures."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from splitrelay import theory
from splitrelay.cli.theory.check import check_expectations
from splitrelay.cli.theory.weights import format_exp
from splitrelay.errors import WorkError
from splitrelay.paper.theory_check import Row
from tests.support.error_fields import expect_error
from tests.support.theory_problems import BASE, PROBLEM, get_json, get_output, get_rows, run_theory

# stepsize


@pytest.mark.parametrize("case", theory.CASES)
def test_each_rule_has_the_calculators_step_and_bound(case: Any) -> None:
    answer = get_json(f"stepsize ssl {case} {BASE} A=1 B2=1/2 R=100")
    for rule, found in theory.stepsizes("ssl", case, PROBLEM.with_all_clients()).items():
        assert (answer["rules"][rule]["eta_tilde"], answer["rules"][rule]["total"]) == (
            found.eta_tilde,
            found.bound.total,
        )


def test_the_printed_rule_is_seen_to_stall_without_noise() -> None:
    rows = get_rows(
        "stepsize ssl strongly-convex L=2 mu=1 sigma2=0 zeta2=100 M=4 K=1 D2=1 R=1e3,1e4,1e5 constants=proved"
    )
    assert len({f"{float(row['printed bound']):.5g}" for row in rows}) == 1
    assert [f"{float(row['mended bound']):.2g}" for row in rows] == ["0.068", "0.0019", "3.7e-05"]


def test_steps_outside_say_why() -> None:
    outside, inside = get_json(f"stepsize ssl strongly-convex {BASE} R=5,100 constants=proved")
    assert outside["rules"]["best"]["eta_tilde"] is None
    assert outside["why_not"] == "needs R >= 6 L/mu = 12; got 5"
    assert inside["applicable"]


# compare


def test_a_comparison_has_every_side() -> None:
    answer = get_json(f"compare strongly-convex {BASE} S=2 R=1000")
    assert list(answer["equal_rounds"]) == ["ssl", "fedavg", "minibatch-sgd"]
    assert list(answer["equal_compute"]) == ["ssl", "ssl-swor", "fedavg-swor", "fedavg-swr"]
    assert answer["equal_compute"]["ssl"]["rounds"] == 200
    assert {"equal rounds", "equal compute, without replacement"} < set(answer["smaller"])


@pytest.mark.parametrize("constants", theory.CONSTANTS)
def test_a_comparison_has_the_calculators_numbers(constants: Any) -> None:
    answer = get_json(f"compare strongly-convex {BASE} S=2 R=100 constants={constants}")
    found = theory.compare("strongly-convex", PROBLEM, constants=constants)
    for name, side in found.equal_rounds.items():
        assert side.bound is not None
        assert answer["equal_rounds"][name]["total"] == side.bound.total
    assert answer["useful_K"] == found.useful_K
    assert answer["smaller"] == found.smaller


def test_the_constants_of_the_paper_make_fedavg_look_better_and_it_is_said() -> None:
    plain = f"compare strongly-convex {BASE} R=27"
    assert get_json(f"{plain} constants=proved")["smaller"]["equal rounds"] == "fedavg"
    assert "With constants=tight it is never smaller" in " ".join(get_output(f"{plain} constants=proved").split())
    assert get_json(f"{plain} constants=tight")["smaller"]["equal rounds"] == "ssl"


def test_the_comparison_does_not_say_who_wins() -> None:
    text = " ".join(get_output(f"compare strongly-convex {BASE} S=2 R=1000").split())
    assert "They do not say which algorithm or which step is better on a given problem" in text
    assert "You may not conclude: that an algorithm is worse on your problem" in text
    assert "SSL's drift is below the sampling term of FedAvg without replacement" in text


def test_a_comparison_without_a_bound_says_so_and_gives_no_number() -> None:
    side = get_json(f"compare strongly-convex {BASE} S=2 R=20 constants=proved")["equal_compute"]["ssl"]
    assert (side["total"], side["why_not"]) == (None, "needs R >= 6 L/mu = 12; got 4")


def test_less_than_one_round_at_equal_compute_is_named() -> None:
    side = get_json(f"compare strongly-convex {BASE} S=2 R=4")["equal_compute"]["ssl"]
    assert (side["total"], side["why_not"]) == (None, "S R / M is less than one round")


def test_the_papers_setting_has_an_answer() -> None:
    """M = 500, S = 10, kappa = 100, R = 1000: Theorem 1 would need 30,000 rounds."""
    answer = get_json("compare strongly-convex L=100 mu=1 sigma2=1 zeta2=4 M=500 S=10 K=5 R=1000 D2=1")
    sides = [*answer["equal_rounds"].values(), *answer["equal_compute"].values()]
    assert all(side["applicable"] for side in sides)
    assert "none" not in answer["smaller"].values()


def test_advice_names_no_ratio_of_the_tuned_rates() -> None:
    text = " ".join(get_output(f"compare strongly-convex {BASE} S=2 R=1000").split())
    assert "divided by M" not in text
    assert "how the best eta of the two relate" in text


def test_with_all_clients_no_condition_is_infinite() -> None:
    conditions = get_json(f"compare strongly-convex {BASE} S=10 R=1000 constants=proved")["conditions"]
    assert all(condition["right"] is not None and math.isfinite(condition["right"]) for condition in conditions)


@pytest.mark.parametrize("constants", ["sharp", "proved"])
def test_a_bound_that_underflows_stays_above_zero(constants: str) -> None:
    problem = "L=2 mu=1 sigma2=0 zeta2=0 M=10 K=5 R=1e6 D2=1 eta_tilde=1/12"
    assert get_json(f"bound ssl strongly-convex {problem} constants={constants}")["total"] > 0
    assert "<= 0 " not in get_output(f"bound ssl strongly-convex {problem} constants={constants}")


def test_a_fraction_may_have_decimals() -> None:
    assert get_json(f"bound ssl strongly-convex {BASE} R=100 eta_tilde=0.1/1.8")["eta_tilde"] == pytest.approx(
        0.1 / 1.8
    )


# weights, lemmas, errata, check


def test_weights_at_a_million_rounds_are_finite_and_sum_to_one() -> None:
    answer = get_json("weights mu=1 eta_tilde=1/12 R=1e6")
    assert answer["log_W"] == theory.weights(1, 1 / 12, 10**6).log_W
    assert answer["rounds"][-1]["r"] == 10**6
    assert math.isfinite(answer["rounds"][-1]["log_w"])
    assert sum(
        row["share"] for row in get_json("weights mu=1 eta_tilde=1/12 R=50 rounds=all")["rounds"]
    ) == pytest.approx(1)


@pytest.mark.parametrize(
    ("log", "text"), [(0.0, "1"), (math.log(1234.5), "1234.5"), (math.log(2) + 400 * math.log(10), "2.0000e+400")]
)
def test_a_power_too_large_for_a_double_is_written_out(log: float, text: str) -> None:
    assert format_exp(log) == text


def test_half_of_equal_weights_is_half_of_the_iterates() -> None:
    assert "Half of the weight lies on the last 5 iterates" in get_output("weights mu=0 eta_tilde=1/12 R=9")


def test_lemmas_are_those_that_the_quantities_allow() -> None:
    names = [(row["group"], row["name"]) for row in get_json("lemmas M=10 K=5 zeta2=4")]
    assert ("technical lemma", "exact") in names
    assert not [group for group, _ in names if "recursion" in group]
    more = get_json(f"lemmas {BASE} S=2 R=100 B2=1 eta_tilde=1/24 r2=1 DF=0.5 G2=1 E=0.1 E_mean=0.1")
    assert {"recursion", "drift", "simplified recursion"} < {row["group"] for row in more}


def test_errata_are_thirty_and_counted_by_kind() -> None:
    assert [row["number"] for row in get_json("errata")] == [f"E{number}" for number in range(1, 31)]
    assert "30 entries: 12 misprint, 13 gap, 5 looser than stated" in get_output("errata")


@pytest.mark.parametrize("number", ["E5", "E7", "E11", "E13", "E14", "E19", "E26"])
def test_an_erratum_brings_its_counter_example_computed_now(number: str) -> None:
    entry = theory.erratum(number)
    assert entry.counterexample is not None
    assert get_json(f"errata {number}")["counterexample"] == entry.counterexample()
    assert "computed now" in get_output(f"errata {number}")


def test_an_erratum_without_an_example_is_shown_too() -> None:
    assert get_output("errata e24").startswith("E24: ")


def test_check_holds_every_statement_and_shows_the_false_one_failing() -> None:
    statements = get_json("check instances=1 seed=1")["statements"]
    assert all(row["as_expected"] for row in statements)
    assert [row for row in statements if row["violations"]] == [row for row in statements if row["known_false"]]
    assert {"statement", "checks", "violations", "smallest", "median"} < set(statements[0])


def test_the_table_of_checks_fits_into_eighty_columns() -> None:
    text = get_output("check instances=1 seed=1")
    assert max(map(len, text.splitlines())) <= 80
    assert "false as printed, fails as expected" in text


def test_a_statement_that_surprises_is_failed_work() -> None:
    fine = Row("Theorem 1", 10, 0, 1.5, 3.0)
    check_expectations([fine])
    with expect_error(WorkError, what=("1 of 2", "Theorem 2")):
        check_expectations([fine, Row("Theorem 2", 10, 1, 0.9, 3.0)])


# Figures by the way


@pytest.mark.parametrize(
    "line",
    [
        f"bound ssl strongly-convex {BASE} R=5:1e4:log eta_tilde=1/12",
        f"rate ssl,fedavg {BASE} R=5:1e4:log",
        f"stepsize ssl strongly-convex {BASE} R=1000",
        f"compare strongly-convex {BASE} R=5:1e4:log",
    ],
)
def test_a_figure_alone_prints_where_it_is(line: str, tmp_path: Path) -> None:
    target = tmp_path / "new" / "out.pdf"
    assert get_output(f"{line} --figure {target}") == f"figure: {target}\n"
    assert target.read_bytes().startswith(b"%PDF")


def test_a_figure_beside_json_leaves_the_json_alone(tmp_path: Path) -> None:
    answer = run_theory(
        f"bound ssl strongly-convex {BASE} R=20,40 eta_tilde=1/12 --format json --figure {tmp_path / 'a.svg'}"
    )
    assert len(json.loads(answer.stdout)) == 2
    assert answer.stderr.startswith("figure: ")
