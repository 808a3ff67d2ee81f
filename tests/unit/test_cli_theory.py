"""`splitrelay theory`: what is asked is what the calculator answers, in every shape; what is wrong gets one line."""

import csv
import io
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from splitrelay import theory
from splitrelay.cli.main import app
from splitrelay.cli.theory import keys as theory_keys
from splitrelay.cli.theory.check import refuse_surprises
from splitrelay.cli.theory.rate import RATES
from splitrelay.cli.theory.weights import power
from splitrelay.errors import SplitrelayError, WorkError
from splitrelay.experiments.check import Row

BASE = "L=2 mu=1 sigma2=1 zeta2=4 M=10 K=5 D2=1"
PROBLEM = theory.Problem(L=2, mu=1, sigma2=1, zeta2=4, M=10, K=5, D2=1, R=100, S=2, A=1, B2=0.5)


def asked(line: str) -> Result:
    return CliRunner().invoke(app, ["theory", *line.split()])


def printed(line: str) -> str:
    answer = asked(line)
    assert answer.exit_code == 0, answer.exception
    return answer.output


def json_of(line: str) -> Any:
    return json.loads(printed(f"{line} --format json"))


def rows_of(line: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(printed(f"{line} --format csv"))))


def refusal(line: str) -> str:
    """The one line of an error that leaves with code 2."""
    error = asked(line).exception
    assert isinstance(error, SplitrelayError), error
    assert error.exit_code == 2
    assert "\n" not in str(error)
    return str(error)


# The names that the command line writes again


def test_the_words_are_the_calculators() -> None:
    assert theory_keys.ALGORITHMS == theory.ALGORITHMS
    assert theory_keys.CASES == theory.CASES
    assert theory_keys.CONSTANTS == theory.CONSTANTS
    assert theory_keys.HORIZONS == theory.HORIZONS
    assert set(RATES) == set(theory.RATES)


def test_every_quantity_of_a_problem_has_a_key() -> None:
    keys = {key.name for key in (*theory_keys.QUANTITIES, *theory_keys.STARRED, *theory_keys.STEPS)}
    assert keys == set(theory.MEANING)


# bound


def test_the_json_of_a_bound_has_the_promised_fields_first() -> None:
    answer = json_of(f"bound ssl strongly-convex {BASE} R=100 eta_tilde=1/12")
    assert list(answer)[:6] == ["total", "terms", "eta", "eta_tilde", "conditions", "vacuous"]
    assert list(answer["terms"]) == ["optimization", "noise", "noise drift", "heterogeneity drift"]


@pytest.mark.parametrize("algorithm", theory.ALGORITHMS)
@pytest.mark.parametrize("constants", theory.CONSTANTS)
def test_the_json_of_a_bound_has_the_calculators_numbers(algorithm: Any, constants: Any) -> None:
    answer = json_of(f"bound {algorithm} strongly-convex {BASE} S=2 R=100 eta_tilde=1/12 constants={constants}")
    found = theory.bound(algorithm, "strongly-convex", PROBLEM, eta_tilde=1 / 12, constants=constants)
    assert answer["total"] == found.total
    assert answer["terms"] == found.terms
    assert (answer["eta"], answer["eta_tilde"]) == (found.eta, found.eta_tilde)


@pytest.mark.parametrize("horizon", theory.HORIZONS)
def test_the_horizon_reaches_the_calculator(horizon: Any) -> None:
    answer = json_of(f"bound fedavg general-convex {BASE} R=100 eta=0.001 horizon={horizon}")
    assert answer["total"] == theory.bound("fedavg", "general-convex", PROBLEM, eta=0.001, horizon=horizon).total


def test_a_condition_shows_its_two_sides() -> None:
    first, *_ = json_of(f"bound ssl strongly-convex {BASE} R=100 eta_tilde=1/12")["conditions"]
    assert first == {"name": "R >= 6 L/mu", "left": 100.0, "relation": ">=", "right": 12.0, "holds": True}


def test_many_settings_are_a_list_with_their_settings_the_last_key_fastest() -> None:
    answers = json_of(f"bound ssl strongly-convex {BASE} R=100,200 eta_tilde=1/12,1/20")
    assert [(a["settings"]["R"], a["settings"]["eta_tilde"]) for a in answers] == [
        (100, 1 / 12),
        (100, 1 / 20),
        (200, 1 / 12),
        (200, 1 / 20),
    ]


@pytest.mark.parametrize("key", ["R=50:500:log:7", "K=1,5,20", "eta_tilde=0.03:0.08:lin:4", "sigma2=0,1", "L=1,2"])
def test_many_settings_agree_with_one_at_a_time(key: str) -> None:
    name, _, _ = key.partition("=")
    given = {word.partition("=")[0]: word for word in f"{BASE} R=100 eta_tilde=1/13".split()} | {name: key}
    for answer in json_of("bound ssl strongly-convex " + " ".join(given.values())):
        one = given | {name: f"{name}={answer['settings'][name]!r}"}
        alone = json_of("bound ssl strongly-convex " + " ".join(one.values()))
        assert alone["total"] == pytest.approx(answer["total"], rel=1e-15)
        assert alone["settings"] == answer["settings"]


def test_of_many_settings_those_outside_carry_null_and_say_why() -> None:
    outside, inside = json_of(f"bound ssl strongly-convex {BASE} R=5,100 eta_tilde=1/12")
    assert outside["total"] is None
    assert set(outside["terms"].values()) == {None}
    assert outside["why_not"] == "needs R >= 6 L/mu = 12; got 5"
    assert (inside["why_not"], inside["applicable"]) == (None, True)


def test_the_table_of_many_settings_has_what_varies_first_and_the_rest_in_its_title() -> None:
    title, fixed, _, head, *_ = printed(f"bound ssl strongly-convex {BASE} R=5,100 eta_tilde=1/12").splitlines()
    assert title == "SSL: Theorem 1, strongly convex, proved constants"
    assert fixed == "L=2, mu=1, sigma2=1, zeta2=4, M=10, K=5, D2=1, eta_tilde=0.083333"
    assert head.split()[:2] == ["R", "total"]


def test_a_rate_that_varies_keeps_its_column() -> None:
    rows = rows_of(f"bound ssl strongly-convex {BASE} R=100 eta=0.001,0.0015")
    assert [row["eta"] for row in rows] == ["0.001", "0.0015"]
    assert [float(row["eta_tilde"]) for row in rows] == pytest.approx([0.05, 0.075])


def test_the_csv_of_nothing_applicable_has_the_columns_of_everything_applicable() -> None:
    nowhere, somewhere = (rows_of(f"bound ssl strongly-convex {BASE} R={R} eta_tilde=1/12") for R in ("2,3", "99,100"))
    assert list(nowhere[0]) == list(somewhere[0])
    assert nowhere[0]["total"] == ""


def test_the_table_of_one_setting_fits_into_eighty_columns() -> None:
    everything = f"bound fedavg-swor strongly-convex {BASE} S=2 A=1 B2=1 zeta2_star=4 R=100 eta_tilde=1/12 horizon=R+1"
    for line in (
        everything,
        everything.replace("bound fedavg-swor", "stepsize fedavg-swor").replace(" eta_tilde=1/12", ""),
    ):
        assert max(map(len, printed(line).splitlines())) <= 80


@pytest.mark.parametrize(
    ("case", "level", "vacuous"),
    [
        ("strongly-convex R=100 eta_tilde=1/12", "L D2 / 2 = 1", False),
        ("strongly-convex R=100 eta_tilde=1/12 A=0.1", "A = 0.1", True),
        ("general-convex R=3 eta_tilde=1/12", "L D2 / 2 = 1", True),
        ("non-convex R=1000 eta_tilde=1/24 A=1 B2=1", "2 L A = 4", False),
        ("non-convex R=5 eta_tilde=1/24 A=1 B2=1", "2 L A = 4", True),
    ],
)
def test_vacuous_in_words_and_in_json_agree(case: str, level: str, vacuous: bool) -> None:
    line = f"bound ssl {case} {BASE}"
    assert json_of(line)["vacuous"] is vacuous
    verdict = printed(line).splitlines()[-1] if not vacuous else printed(line)
    assert ("Vacuous: the bound is not below " if vacuous else "Not vacuous: the bound is below ") + level in verdict


def test_the_shares_of_the_terms_are_of_the_total() -> None:
    assert "optimization         0.046512   45.9%" in printed(f"bound ssl strongly-convex {BASE} R=100 eta_tilde=1/12")


def test_verbose_shows_the_formula_of_every_term() -> None:
    done = process(f"theory bound ssl strongly-convex {GOOD} -v")
    assert "heterogeneity drift  15/2 L eta_tilde^2 zeta2/M" in done.stdout


def test_the_last_iterate_needs_no_minimum_of_rounds() -> None:
    answer = json_of(f"last-iterate ssl {BASE} R=2 eta_tilde=1/12")
    found = theory.last_iterate(
        "ssl", theory.Problem(L=2, mu=1, sigma2=1, zeta2=4, M=10, K=5, D2=1, R=2), eta_tilde=1 / 12
    )
    assert answer["total"] == found.total
    assert "below D2 = 1" in printed(f"last-iterate ssl {BASE} R=9 eta_tilde=1/12")


# rate


@pytest.mark.parametrize("name", theory.RATES)
def test_every_rate_has_the_calculators_numbers(name: str) -> None:
    answer = json_of(f"rate {name} {BASE} S=2 R=100")
    found = theory.rate(name, "strongly-convex", PROBLEM)
    assert (answer["total"], answer["terms"], answer["decay"]) == (found.total, found.terms, found.decay)


@pytest.mark.parametrize("constants", theory.CONSTANTS)
def test_the_non_convex_rate_depends_on_the_constants(constants: Any) -> None:
    answer = json_of(f"rate ssl non-convex {BASE} A=1 B2=1/2 R=100 constants={constants}")
    assert answer["total"] == theory.rate("ssl", "non-convex", PROBLEM, constants=constants).total


def test_table_one_has_five_rows_side_by_side() -> None:
    rows = rows_of(f"rate table-one {BASE} zeta2_star=1 sigma2_star=0.5 R=100")
    found = theory.table_one(
        theory.Problem(L=2, mu=1, sigma2=1, zeta2=4, M=10, K=5, D2=1, R=100, zeta2_star=1, sigma2_star=0.5)
    )
    assert [row["name"] for row in rows] == list(found)
    assert [float(row["total"]) for row in rows] == [one.total for one in found.values()]


def test_rates_over_a_range_show_their_totals() -> None:
    rows = rows_of(f"rate ssl,fedavg {BASE} R=100,1000")
    assert [list(row) for row in rows] == [["R", "ssl", "fedavg"]] * 2
    assert float(rows[0]["ssl"]) == theory.rate("ssl", "strongly-convex", PROBLEM).total


# stepsize


@pytest.mark.parametrize("case", theory.CASES)
def test_each_rule_has_the_calculators_step_and_bound(case: Any) -> None:
    answer = json_of(f"stepsize ssl {case} {BASE} A=1 B2=1/2 R=100")
    for rule, found in theory.stepsizes("ssl", case, PROBLEM).items():
        assert (answer["rules"][rule]["eta_tilde"], answer["rules"][rule]["total"]) == (
            found.eta_tilde,
            found.bound.total,
        )


def test_the_printed_rule_is_seen_to_stall_without_noise() -> None:
    rows = rows_of("stepsize ssl strongly-convex L=2 mu=1 sigma2=0 zeta2=100 M=4 K=1 D2=1 R=1e3,1e4,1e5")
    assert len({f"{float(row['printed bound']):.5g}" for row in rows}) == 1
    assert [f"{float(row['mended bound']):.2g}" for row in rows] == ["0.068", "0.0019", "3.7e-05"]


def test_steps_outside_say_why() -> None:
    outside, inside = json_of(f"stepsize ssl strongly-convex {BASE} R=5,100")
    assert outside["rules"]["best"]["eta_tilde"] is None
    assert outside["why_not"] == "needs R >= 6 L/mu = 12; got 5"
    assert inside["applicable"]


# compare


def test_a_comparison_has_every_side() -> None:
    answer = json_of(f"compare strongly-convex {BASE} S=2 R=1000")
    assert list(answer["equal_rounds"]) == ["ssl", "fedavg", "minibatch-sgd"]
    assert list(answer["equal_compute"]) == ["ssl", "fedavg-swor", "fedavg-swr"]
    assert answer["equal_compute"]["ssl"]["rounds"] == 200
    assert {"equal rounds", "equal compute, without replacement"} < set(answer["smaller"])


@pytest.mark.parametrize("constants", theory.CONSTANTS)
def test_a_comparison_has_the_calculators_numbers(constants: Any) -> None:
    answer = json_of(f"compare strongly-convex {BASE} S=2 R=100 constants={constants}")
    found = theory.compare("strongly-convex", PROBLEM, constants=constants)
    for name, side in found.equal_rounds.items():
        assert side.bound is not None
        assert answer["equal_rounds"][name]["total"] == side.bound.total
    assert answer["useful_K"] == found.useful_K
    assert answer["smaller"] == found.smaller


def test_the_constants_of_the_paper_make_fedavg_look_better_and_it_is_said() -> None:
    plain = f"compare strongly-convex {BASE} R=27"
    assert json_of(plain)["smaller"]["equal rounds"] == "fedavg"
    assert "with constants=tight it is never smaller" in " ".join(printed(plain).split())
    assert json_of(f"{plain} constants=tight")["smaller"]["equal rounds"] == "ssl"


def test_the_comparison_does_not_say_who_wins() -> None:
    text = " ".join(printed(f"compare strongly-convex {BASE} S=2 R=1000").split())
    assert "they do not say who wins on a given problem" in text
    assert "What may not: that an algorithm is worse on your problem" in text
    assert "SSL's drift is below FedAvg's sampling term" in text


def test_a_comparison_without_a_bound_says_so_and_gives_no_number() -> None:
    side = json_of(f"compare strongly-convex {BASE} S=2 R=20")["equal_compute"]["ssl"]
    assert (side["total"], side["why_not"]) == (None, "needs R >= 6 L/mu = 12; got 4")


def test_less_than_one_round_at_equal_compute_is_named() -> None:
    side = json_of(f"compare strongly-convex {BASE} S=2 R=4")["equal_compute"]["ssl"]
    assert (side["total"], side["why_not"]) == (None, "S R / M is less than one round")


# weights, lemmas, errata, check


def test_weights_at_a_million_rounds_are_finite_and_sum_to_one() -> None:
    answer = json_of("weights mu=1 eta_tilde=1/12 R=1e6")
    assert answer["log_W"] == theory.weights(1, 1 / 12, 10**6).log_W
    assert answer["rounds"][-1]["r"] == 10**6
    assert math.isfinite(answer["rounds"][-1]["log_w"])
    assert sum(
        row["share"] for row in json_of("weights mu=1 eta_tilde=1/12 R=50 rounds=all")["rounds"]
    ) == pytest.approx(1)


@pytest.mark.parametrize(
    ("log", "text"), [(0.0, "1"), (math.log(1234.5), "1234.5"), (math.log(2) + 400 * math.log(10), "2.0000e+400")]
)
def test_a_power_too_large_for_a_double_is_written_out(log: float, text: str) -> None:
    assert power(log) == text


def test_half_of_equal_weights_is_half_of_the_iterates() -> None:
    assert "Half of the weight lies on the last 5 iterates" in printed("weights mu=0 eta_tilde=1/12 R=9")


def test_lemmas_are_those_that_the_quantities_allow() -> None:
    names = [(row["group"], row["name"]) for row in json_of("lemmas M=10 K=5 zeta2=4")]
    assert ("technical lemma", "exact") in names
    assert not [group for group, _ in names if "recursion" in group]
    more = json_of(f"lemmas {BASE} S=2 R=100 B2=1 eta_tilde=1/12 r2=1 DF=0.5 G2=1 E=0.1 E_mean=0.1")
    assert {"recursion", "drift", "simplified recursion"} < {row["group"] for row in more}


def test_errata_are_twenty_eight() -> None:
    assert [row["number"] for row in json_of("errata")] == [f"E{number}" for number in range(1, 29)]
    assert "E28" in printed("errata")


@pytest.mark.parametrize("number", ["E5", "E7", "E11", "E13", "E14", "E19", "E26"])
def test_an_erratum_brings_its_counter_example_computed_now(number: str) -> None:
    entry = theory.erratum(number)
    assert entry.counterexample is not None
    assert json_of(f"errata {number}")["counterexample"] == entry.counterexample()
    assert "computed now" in printed(f"errata {number}")


def test_an_erratum_without_an_example_is_shown_too() -> None:
    assert printed("errata e24").startswith("E24: ")


def test_check_holds_every_statement_and_shows_the_false_one_failing() -> None:
    statements = json_of("check instances=1 seed=1")["statements"]
    assert all(row["as_expected"] for row in statements)
    assert [row for row in statements if row["violations"]] == [row for row in statements if row["known_false"]]
    assert {"statement", "checks", "violations", "smallest", "median"} < set(statements[0])


def test_the_table_of_checks_fits_into_eighty_columns() -> None:
    text = printed("check instances=1 seed=1")
    assert max(map(len, text.splitlines())) <= 80
    assert "false as printed, shown failing" in text


def test_a_statement_that_surprises_is_failed_work() -> None:
    fine = Row("Theorem 1", 10, 0, 1.5, 3.0)
    refuse_surprises([fine])
    with pytest.raises(WorkError, match="1 of 2 statements did not do as expected: Theorem 2"):
        refuse_surprises([fine, Row("Theorem 2", 10, 1, 0.9, 3.0)])


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
    assert printed(f"{line} --figure {target}") == f"figure: {target}\n"
    assert target.read_bytes().startswith(b"%PDF")


def test_a_figure_beside_json_leaves_the_json_alone(tmp_path: Path) -> None:
    answer = asked(
        f"bound ssl strongly-convex {BASE} R=20,40 eta_tilde=1/12 --format json --figure {tmp_path / 'a.svg'}"
    )
    assert len(json.loads(answer.stdout)) == 2
    assert answer.stderr.startswith("figure: ")


# Wrong in many ways

GOOD = f"{BASE} R=100 eta_tilde=1/12"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"bound sssl strongly-convex {GOOD}", "unknown algorithm 'sssl'. Did you mean 'ssl'?"),
        (f"bound ssl strongly {GOOD}", "unknown case 'strongly'. Did you mean 'strongly-convex'?"),
        (f"bound ssl {GOOD}", "the case is missing before 'L=2'. One of: strongly-convex, general-convex, non-convex."),
        (f"bound ssl strongly-convex {GOOD} eta_tidle=1", "unknown key 'eta_tidle'. Did you mean 'eta_tilde'?"),
        (f"bound fedavg-swor strongly-convex {GOOD} S=11", "S must not exceed M; got S=11, M=10"),
        (
            f"bound ssl strongly-convex {GOOD.replace('sigma2=1', 'sigma2=nan')}",
            "sigma2 must be a finite number; got 'nan'",
        ),
        (
            f"bound ssl strongly-convex {GOOD.replace('sigma2=1', 'sigma2=-1')}",
            "must not be negative; needs sigma2 >= 0; got -1",
        ),
        (f"bound ssl strongly-convex {GOOD.replace('K=5', 'K=0')}", "K must be a whole number; needs K >= 1; got 0"),
        (f"bound ssl strongly-convex {GOOD.replace('R=100', 'R=10')}", "needs R >= 6 L/mu = 12"),
        (f"bound ssl strongly-convex {GOOD.replace('1/12', '1/2')}", "needs 0.01 <= eta_tilde <= 0.0833"),
        (f"bound fedavg-swr non-convex {GOOD}", "the paper prints no bound for fedavg-swr non-convex"),
        (f"bound ssl strongly-convex {GOOD} constants=printd", "Did you mean 'printed'?"),
        (f"bound ssl strongly-convex {GOOD} constants=printed,tight", "constants takes one value"),
        (f"bound ssl strongly-convex {GOOD} R=1", "R is given twice"),
        (f"rate sll {GOOD}", "unknown rate 'sll'. Did you mean 'ssl'?"),
        (f"rate ssl convex {BASE} R=100", "unknown case 'convex'"),
        (f"rate fedavg-swr non-convex {BASE} R=100", "the paper prints no rate for fedavg-swr non-convex"),
        (f"stepsize ssl strongly-convex {GOOD}", "eta_tilde has no place here. This command finds the step"),
        (f"stepsize ssl strongly-convex {BASE}", "needs R, the number of rounds"),
        (f"stepsize ssl strongly-convex {BASE} R=3", "needs R >= 6 L/mu = 12"),
        (f"compare {BASE}", "the case is missing before 'L=2'"),
        (f"compare strongly-convex {BASE} R=100 eta=0.1", "One eta is another step in each algorithm"),
        (f"compare strongly-convex {BASE} R=100 S=11", "S must not exceed M"),
        (f"last-iterate ssl {BASE} R=10", "neither eta nor eta_tilde is given; needs eta_tilde <= 1/(6 L) = 0.083333"),
        (f"last-iterate ssl {BASE} R=10 eta=1", "needs eta_tilde <= 0.0833"),
        (f"last-iterate sgd {GOOD}", "unknown algorithm 'sgd'"),
        ("weights mu=1 R=10", "theory weights needs eta_tilde"),
        ("weights mu=1 eta_tilde=3 R=10", "0 <= mu eta_tilde / 2 < 1"),
        ("weights mu=-1 eta_tilde=1 R=10", "mu must not be negative"),
        ("weights mu=1 eta_tilde=1 R=1e9", "needs R <= 1e+07"),
        ("lemmas", "no lemma can be evaluated from these"),
        ("lemmas M=0", "M must be a whole number"),
        ("lemmas M=3 K=2 r2=1 DF=1", "need eta_tilde"),
        ("errata E99", "unknown erratum 'E99'"),
        ("check instances=0", "needs instances >= 1; got 0"),
        ("check seed=-1", "needs seed >= 0; got -1"),
        ("check instance=3", "Did you mean 'instances'?"),
        (f"rate all {BASE} S=2 R=1:100 --figure a.pdf", "a figure shows at most 9 panels; got 13"),
        (f"bound ssl strongly-convex {GOOD} --figure a.doc", "must end in .pdf, .png or .svg; got a.doc"),
    ],
)
def test_wrong_input_gets_one_line(line: str, words: str) -> None:
    assert words in refusal(line)


def test_too_many_panels_name_the_keys_to_leave_alone() -> None:
    varied = "bound ssl strongly-convex L=2 mu=1 sigma2=1:4:lin:4 zeta2=1:4:lin:4 M=10 K=5 D2=1 R=12:99 eta_tilde=1/12"
    assert refusal(f"{varied} --figure a.pdf").endswith("got 16. Vary fewer of: sigma2, zeta2.")


def test_without_a_step_the_allowed_range_is_shown() -> None:
    words = refusal(f"bound ssl strongly-convex {BASE} R=100")
    assert "eta_tilde >= 1/(mu R) = 0.01, eta_tilde <= 1/(6 L) = 0.083333; eta is eta_tilde/50" in words
    assert "splitrelay theory stepsize" in words
    assert "needs R >= 6 L/mu, eta_tilde >= 1/(mu R)" in refusal(f"bound ssl strongly-convex {BASE} R=100,200")


def test_an_unknown_command_gets_the_nearest() -> None:
    assert "Did you mean 'bound'?" in asked("bond").output


# Through the door that users take


def process(line: str) -> subprocess.CompletedProcess[str]:
    script = "from splitrelay.cli.main import run; run()"
    return subprocess.run([sys.executable, "-c", script, *line.split()], capture_output=True, text=True, check=False)


def test_a_process_that_succeeds_is_silent_on_stderr() -> None:
    done = process(f"theory bound ssl strongly-convex {GOOD} --format json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["vacuous"] is False


@pytest.mark.parametrize("line", [f"bound ssl strongly-convex {GOOD.replace('1/12', '0.9')}", "bond", "bound"])
def test_a_process_that_is_refused_says_one_line_and_leaves_with_two(line: str) -> None:
    done = process(f"theory {line}")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("splitrelay: ")
    assert done.stderr.count("\n") == 1


def test_a_figure_that_cannot_be_written_is_refused_before_anything_is_printed(tmp_path: Path) -> None:
    done = process(f"theory bound ssl strongly-convex {GOOD} --format json --figure {_taken(tmp_path)}")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("splitrelay: cannot write ")


def _taken(folder: Path) -> Path:
    taken = folder / "a.pdf"
    taken.mkdir()
    return taken
