"""`splitrelay theory`: bounds and rates in every format, and one line with exit code 2 for wrong input."""

import json
from pathlib import Path
from typing import Any

import pytest

from splitrelay import theory
from splitrelay.cli.theory import options
from splitrelay.cli.theory.rate import RATES
from splitrelay.errors import InputError, OutOfRange, UnknownName
from splitrelay.theory.rates import WITH_SAMPLING
from tests.support.theory_problems import (
    BASE,
    GOOD,
    PROBLEM,
    bound,
    get_error,
    get_json,
    get_output,
    get_rows,
    rate,
    run_process,
    run_theory,
    take_all_clients,
)

# The names that the command line writes again


def test_the_words_are_the_calculators() -> None:
    assert options.ALGORITHMS == theory.ALGORITHMS
    assert options.CASES == theory.CASES
    assert options.CONSTANTS == theory.CONSTANTS
    assert options.HORIZONS == theory.HORIZONS
    assert set(RATES) == set(theory.RATES)


def test_every_quantity_of_a_problem_has_a_key() -> None:
    keys = {
        key.name
        for key in (
            *options.QUANTITIES,
            *(options.ZETA2_STAR, options.SIGMA2_STAR, options.ETA, options.ETA_TILDE),
        )
    }
    assert keys == set(theory.MEANING)


# bound


def test_the_json_of_a_bound_has_the_promised_fields_first() -> None:
    answer = get_json(f"bound ssl strongly-convex {BASE} R=100 eta_tilde=1/12")
    assert list(answer)[:6] == ["total", "terms", "eta", "eta_tilde", "conditions", "vacuous"]
    assert list(answer["terms"]) == ["optimization", "noise", "noise drift", "heterogeneity drift"]


@pytest.mark.parametrize(
    ("algorithm", "constants"),
    [
        (algorithm, constants)
        for algorithm in theory.ALGORITHMS
        for constants in theory.CONSTANTS
        if algorithm != "ssl-swor" or constants == "sharp"
    ],
)
def test_the_json_of_a_bound_has_the_calculators_numbers(algorithm: Any, constants: Any) -> None:
    S = "S=2" if algorithm in WITH_SAMPLING else ""
    answer = get_json(f"bound {algorithm} strongly-convex {BASE} {S} R=100 eta_tilde=1/12 constants={constants}")
    problem = take_all_clients(algorithm, PROBLEM)
    found = theory.bound(algorithm, "strongly-convex", problem, eta_tilde=1 / 12, constants=constants)
    assert answer["total"] == found.total
    assert answer["terms"] == found.terms
    assert (answer["eta"], answer["eta_tilde"]) == (found.eta, found.eta_tilde)


@pytest.mark.parametrize("horizon", theory.HORIZONS)
def test_the_horizon_reaches_the_calculator(horizon: Any) -> None:
    answer = get_json(f"bound fedavg general-convex {BASE} R=100 eta=0.001 horizon={horizon} constants=proved")
    assert answer["total"] == bound("fedavg", "general-convex", PROBLEM, eta=0.001, horizon=horizon).total


def test_a_condition_shows_its_two_sides() -> None:
    first, *_ = get_json(f"bound ssl strongly-convex {BASE} R=100 eta_tilde=1/12 constants=proved")["conditions"]
    assert first == {"name": "R >= 6 L/mu", "left": 100.0, "relation": ">=", "right": 12.0, "holds": True}


def test_many_settings_are_a_list_with_their_settings_the_last_key_fastest() -> None:
    answers = get_json(f"bound ssl strongly-convex {BASE} R=100,200 eta_tilde=1/12,1/20")
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
    for answer in get_json("bound ssl strongly-convex " + " ".join(given.values())):
        one = given | {name: f"{name}={answer['settings'][name]!r}"}
        alone = get_json("bound ssl strongly-convex " + " ".join(one.values()))
        assert alone["total"] == pytest.approx(answer["total"], rel=1e-15)
        assert alone["settings"] == answer["settings"]


def test_of_many_settings_those_outside_carry_null_and_say_why() -> None:
    outside, inside = get_json(f"bound ssl strongly-convex {BASE} R=5,100 eta_tilde=1/12 constants=proved")
    assert outside["total"] is None
    assert set(outside["terms"].values()) == {None}
    assert outside["why_not"] == "needs R >= 6 L/mu = 12; got 5"
    assert (inside["why_not"], inside["applicable"]) == (None, True)


def test_the_table_of_many_settings_has_what_varies_first_and_the_rest_in_its_title() -> None:
    title, fixed, _, head, *_ = get_output(f"bound ssl strongly-convex {BASE} R=5,100 eta_tilde=1/12").splitlines()
    assert title == "SSL: Theorem 1, strongly convex, sharp constants"
    assert fixed == "L=2, mu=1, sigma2=1, zeta2=4, M=10, K=5, D2=1, eta_tilde=0.083333"
    assert head.split()[:2] == ["R", "total"]


def test_a_rate_that_varies_keeps_its_column() -> None:
    rows = get_rows(f"bound ssl strongly-convex {BASE} R=100 eta=0.001,0.0015")
    assert [row["eta"] for row in rows] == ["0.001", "0.0015"]
    assert [float(row["eta_tilde"]) for row in rows] == pytest.approx([0.05, 0.075])


def test_the_csv_of_nothing_applicable_has_the_columns_of_everything_applicable() -> None:
    line = f"bound ssl strongly-convex {BASE} eta_tilde=1/12 constants=proved"
    nowhere, somewhere = (get_rows(f"{line} R={R}") for R in ("2,3", "99,100"))
    assert list(nowhere[0]) == list(somewhere[0])
    assert nowhere[0]["total"] == ""


def test_the_table_of_one_setting_fits_into_eighty_columns() -> None:
    everything = f"bound fedavg-swor strongly-convex {BASE} S=2 A=1 B2=1 zeta2_star=4 R=100 eta_tilde=1/12 horizon=R+1"
    for line in (
        everything,
        everything.replace("bound fedavg-swor", "stepsize fedavg-swor").replace(" eta_tilde=1/12", ""),
    ):
        assert max(map(len, get_output(line).splitlines())) <= 80


@pytest.mark.parametrize(
    ("case", "level", "vacuous"),
    [
        ("strongly-convex R=100 eta_tilde=1/12", "L D2 / 2 = 1", False),
        ("strongly-convex R=100 eta_tilde=1/12 A=0.02", "A = 0.02", True),
        ("general-convex R=3 eta_tilde=1/12", "L D2 / 2 = 1", True),
        ("non-convex R=1000 eta_tilde=1/24 A=1 B2=1", "2 L A = 4", False),
        ("non-convex R=5 eta_tilde=1/24 A=1 B2=1", "2 L A = 4", True),
    ],
)
def test_vacuous_in_words_and_in_json_agree(case: str, level: str, vacuous: bool) -> None:
    line = f"bound ssl {case} {BASE}"
    assert get_json(line)["vacuous"] is vacuous
    verdict = get_output(line).splitlines()[-1] if not vacuous else get_output(line)
    assert ("Vacuous: the bound is not below " if vacuous else "Not vacuous: the bound is below ") + level in verdict


def test_the_shares_of_the_terms_are_of_the_total() -> None:
    assert "optimization         0.046512   45.9%" in get_output(
        f"bound ssl strongly-convex {BASE} R=100 eta_tilde=1/12 constants=proved"
    )


def test_verbose_shows_the_formula_of_every_term() -> None:
    done = run_process(f"theory bound ssl strongly-convex {GOOD} -v constants=proved")
    assert "heterogeneity drift  15/2 L eta_tilde^2 zeta2/M" in done.stdout


def test_the_last_iterate_needs_no_minimum_of_rounds() -> None:
    answer = get_json(f"last-iterate ssl {BASE} R=2 eta_tilde=1/12")
    found = theory.last_iterate(
        "ssl", theory.Problem(L=2, mu=1, sigma2=1, zeta2=4, M=10, K=5, D2=1, R=2), eta_tilde=1 / 12
    )
    assert answer["total"] == found.total
    assert "below D2 = 1" in get_output(f"last-iterate ssl {BASE} R=9 eta_tilde=1/12")


# rate


@pytest.mark.parametrize("name", theory.RATES)
def test_every_rate_has_the_calculators_numbers(name: str) -> None:
    answer = get_json(f"rate {name} {BASE} {'S=2' if name in WITH_SAMPLING else ''} R=100")
    found = rate(name, "strongly-convex", PROBLEM)
    assert (answer["total"], answer["terms"], answer["decay"]) == (found.total, found.terms, found.decay)


@pytest.mark.parametrize("constants", theory.CONSTANTS)
def test_the_non_convex_rate_depends_on_the_constants(constants: Any) -> None:
    answer = get_json(f"rate ssl non-convex {BASE} A=1 B2=1/2 R=100 constants={constants}")
    assert answer["total"] == rate("ssl", "non-convex", PROBLEM, constants=constants).total


def test_table_one_has_five_rows_side_by_side() -> None:
    rows = get_rows(f"rate table-one {BASE} zeta2_star=1 sigma2_star=0.5 R=100")
    found = theory.table_one(
        theory.Problem(L=2, mu=1, sigma2=1, zeta2=4, M=10, K=5, D2=1, R=100, zeta2_star=1, sigma2_star=0.5)
    )
    assert [row["name"] for row in rows] == list(found)
    assert [float(row["total"]) for row in rows] == [one.total for one in found.values()]


def test_rates_over_a_range_show_their_totals() -> None:
    rows = get_rows(f"rate ssl,fedavg {BASE} R=100,1000")
    assert [list(row) for row in rows] == [["R", "ssl", "fedavg"]] * 2
    assert float(rows[0]["ssl"]) == rate("ssl", "strongly-convex", PROBLEM).total


@pytest.mark.parametrize(
    ("line", "kind", "fields"),
    [
        (f"bound sssl strongly-convex {GOOD}", UnknownName, {"kind": "algorithm", "name": "sssl"}),
        (f"bound ssl strongly {GOOD}", UnknownName, {"kind": "case", "name": "strongly"}),
        (f"bound ssl {GOOD}", InputError, {}),
        (f"bound ssl strongly-convex {GOOD} eta_tidle=1", UnknownName, {"kind": "key", "name": "eta_tidle"}),
        (f"bound fedavg-swor strongly-convex {GOOD} S=11", OutOfRange, {"value": "S=11, M=10"}),
        (f"bound ssl strongly-convex {GOOD.replace('sigma2=1', 'sigma2=nan')}", InputError, {"value": "'nan'"}),
        (
            f"bound ssl strongly-convex {GOOD.replace('sigma2=1', 'sigma2=-1')}",
            OutOfRange,
            {"value": -1.0, "limit": "sigma2 >= 0"},
        ),
        (f"bound ssl strongly-convex {GOOD.replace('K=5', 'K=0')}", OutOfRange, {"value": "0", "limit": "K >= 1"}),
        (
            f"bound ssl strongly-convex {GOOD.replace('R=100', 'R=10')} constants=proved",
            OutOfRange,
            {"value": "10", "limit": "R >= 6 L/mu = 12"},
        ),
        (
            f"bound ssl strongly-convex {GOOD.replace('1/12', '1/2')} constants=proved",
            OutOfRange,
            {"value": "0.5", "limit": "0.01 <= eta_tilde <= 0.0833"},
        ),
        (f"bound fedavg-swr non-convex {GOOD}", InputError, {}),
        (f"bound ssl strongly-convex {GOOD} constants=printd", UnknownName, {"kind": "constants", "name": "printd"}),
        (f"bound ssl strongly-convex {GOOD} constants=printed,tight", InputError, {"value": "'printed,tight'"}),
        (f"bound ssl strongly-convex {GOOD} R=1", InputError, {}),
        (f"rate sll {GOOD}", UnknownName, {"kind": "rate", "name": "sll"}),
        (f"rate ssl convex {BASE} R=100", UnknownName, {"kind": "case", "name": "convex"}),
        (f"rate fedavg-swr non-convex {BASE} R=100", InputError, {}),
        (f"stepsize ssl strongly-convex {GOOD}", InputError, {}),
        (f"bound ssl strongly-convex {GOOD} S=2", OutOfRange, {"value": 2, "limit": "S = M = 10"}),
        (f"stepsize fedavg general-convex {BASE} R=100 S=2", OutOfRange, {"value": 2, "limit": "S = M = 10"}),
        (f"last-iterate ssl {BASE} S=2 R=9 eta_tilde=1/12", OutOfRange, {"value": 2, "limit": "S = M = 10"}),
        (f"rate ssl {BASE} R=100 S=2", InputError, {}),
        (f"bound fedavg-swor strongly-convex {GOOD} S=1 constants=tight", OutOfRange, {"value": 1, "limit": "S >= 2"}),
        (
            "lemmas L=1 mu=1 sigma2=0 zeta2=0 M=1 K=10 R=100 D2=1 eta_tilde=30 r2=1 DF=0.5",
            OutOfRange,
            {"value": 30.0, "limit": "eta_tilde <= 1/(6 L)"},
        ),
        (f"stepsize ssl strongly-convex {BASE}", InputError, {}),
        (
            f"stepsize ssl strongly-convex {BASE} R=3 constants=proved",
            OutOfRange,
            {"value": "3", "limit": "R >= 6 L/mu = 12"},
        ),
        (f"compare {BASE}", InputError, {}),
        (f"compare strongly-convex {BASE} R=100 eta=0.1", InputError, {}),
        (f"compare strongly-convex {BASE} R=100 S=11", OutOfRange, {"value": "S=11, M=10"}),
        (
            f"last-iterate ssl {BASE} R=10",
            InputError,
            {"limit": "eta_tilde <= 1/(6 L) = 0.083333; eta is eta_tilde/50"},
        ),
        (
            f"last-iterate ssl {BASE} R=10 eta=1",
            OutOfRange,
            {"value": "50, from eta=1", "limit": "eta_tilde <= 0.0833"},
        ),
        (f"last-iterate sgd {GOOD}", UnknownName, {"kind": "algorithm", "name": "sgd"}),
        ("weights mu=1 R=10", InputError, {}),
        ("weights mu=1 eta_tilde=3 R=10", OutOfRange, {"value": 1.5}),
        ("weights mu=-1 eta_tilde=1 R=10", OutOfRange, {"value": -1.0, "limit": "mu >= 0"}),
        ("weights mu=1 eta_tilde=1 R=1e9", OutOfRange, {"value": 1000000000, "limit": "R <= 1e+07"}),
        ("lemmas", InputError, {}),
        ("lemmas M=0", OutOfRange, {"value": "0", "limit": "M >= 1"}),
        ("lemmas M=3 K=2 r2=1 DF=1", InputError, {}),
        ("errata E99", UnknownName, {"kind": "erratum", "name": "E99"}),
        ("check instances=0", OutOfRange, {"value": "0", "limit": "instances >= 1"}),
        ("check seed=-1", OutOfRange, {"value": "-1", "limit": "seed >= 0"}),
        ("check instance=3", UnknownName, {"kind": "key", "name": "instance"}),
        (f"rate all {BASE} S=2 R=1:100 --figure a.pdf", InputError, {"value": 14}),
        (f"bound ssl strongly-convex {GOOD} --figure a.doc", InputError, {"value": "a.doc"}),
    ],
)
def test_wrong_input_raises_one_line_with_its_fields(line: str, kind: type, fields: dict[str, object]) -> None:
    error = get_error(line)
    assert type(error) is kind
    assert {name: getattr(error, name) for name in fields} == fields


def test_too_many_panels_name_the_keys_to_fix() -> None:
    varied = "bound ssl strongly-convex L=2 mu=1 sigma2=1:4:lin:4 zeta2=1:4:lin:4 M=10 K=5 D2=1 R=12:99 eta_tilde=1/12"
    error = get_error(f"{varied} --figure a.pdf")
    assert error.value == 16
    assert "sigma2, zeta2" in str(error.hint)


def test_without_a_step_the_allowed_range_is_shown() -> None:
    error = get_error(f"bound ssl strongly-convex {BASE} R=100 constants=proved")
    assert "eta_tilde >= 1/(mu R) = 0.01, eta_tilde <= 1/(6 L) = 0.083333; eta is eta_tilde/50" in str(error.limit)
    assert "splitrelay theory stepsize" in str(error.hint)
    many = get_error(f"bound ssl strongly-convex {BASE} R=100,200 constants=proved")
    assert str(many.limit).startswith("R >= 6 L/mu, eta_tilde >= 1/(mu R)")


def test_an_unknown_command_suggests_the_nearest() -> None:
    assert "Did you mean 'bound'?" in run_theory("bond").output


def test_a_process_that_succeeds_is_silent_on_stderr() -> None:
    done = run_process(f"theory bound ssl strongly-convex {GOOD} --format json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["vacuous"] is False


@pytest.mark.parametrize("line", [f"bound ssl strongly-convex {GOOD.replace('1/12', '0.9')}", "bond", "bound"])
def test_a_process_with_wrong_input_prints_one_line_and_exits_with_2(line: str) -> None:
    done = run_process(f"theory {line}")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("splitrelay: ")
    assert done.stderr.count("\n") == 1


def test_a_figure_that_cannot_be_written_is_the_only_output(tmp_path: Path) -> None:
    done = run_process(f"theory bound ssl strongly-convex {GOOD} --format json --figure {_block_path(tmp_path)}")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("splitrelay: cannot write ")


def _block_path(folder: Path) -> Path:
    path = folder / "a.pdf"
    path.mkdir()
    return path


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (f"bound ssl-swor non-convex {GOOD} S=4 A=1", ("sharp strongly-convex", "sharp general-convex")),
        (f"stepsize ssl-swor non-convex {BASE} R=100 S=4 A=1", ("sharp strongly-convex", "sharp general-convex")),
        (f"bound ssl-swor strongly-convex {GOOD} S=4 constants=printed", ("sharp strongly-convex",)),
        (f"last-iterate ssl-swor {GOOD} S=4", ("fedavg-swor", "theory bound")),
        (f"rate ssl-swor non-convex {BASE} R=100 S=4 A=1", ("ssl-swor strongly-convex",)),
    ],
)
def test_what_is_not_proved_for_sampled_ssl_names_what_is(line: str, names: tuple[str, ...]) -> None:
    error = get_error(line)
    assert type(error) is InputError
    assert all(name in str(error.hint) for name in names), error.hint
