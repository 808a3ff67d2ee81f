"""`splitrelay theory`: what is wrong gets one line and code 2, also through the door that users take."""

import json
from pathlib import Path

import pytest

from tests.support.theory_commands import BASE, GOOD, asked, process, refusal

# Wrong in many ways


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
        (f"stepsize ssl strongly-convex {GOOD}", "this command does not take eta_tilde. This command finds the step"),
        (f"stepsize ssl strongly-convex {BASE}", "needs R, the number of rounds"),
        (f"stepsize ssl strongly-convex {BASE} R=3", "needs R >= 6 L/mu = 12"),
        (f"compare {BASE}", "the case is missing before 'L=2'"),
        (f"compare strongly-convex {BASE} R=100 eta=0.1", "The same eta is a different step in each algorithm"),
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
