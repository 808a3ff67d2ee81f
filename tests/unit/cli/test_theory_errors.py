"""`splitrelay theory`: wrong input raises an error with its fields, and the process exits with code 2."""

import json
from pathlib import Path

import pytest

from splitrelay.errors import InputError, OutOfRange, UnknownName
from tests.support.theory_commands import BASE, GOOD, get_error, run_process, run_theory


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
