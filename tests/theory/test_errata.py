"""The errata: complete, and every live counter-example refutes what is printed and not what is right."""

from collections import Counter

import numpy as np
import pytest

from splitrelay.errors import UnknownName
from splitrelay.theory.errata import ERRATA, SEVERITIES, Erratum, Numbers, erratum

LIVE = ("E5", "E7", "E11", "E13", "E14", "E19", "E26")


def computed(name: str) -> Numbers:
    counterexample = erratum(name).counterexample
    assert counterexample is not None
    return counterexample()


def test_there_are_30_in_order() -> None:
    assert [entry.name for entry in ERRATA] == [f"E{n}" for n in range(1, 31)]


def test_the_three_kinds_are_counted_apart() -> None:
    counts = Counter(entry.severity for entry in ERRATA)
    assert counts == {"misprint": 12, "gap": 13, "looser than stated": 5}


def test_E26_no_step_below_the_limit_meets_the_display_at_T_0() -> None:
    """The lemma says "there exists": at T = 0, a = r0 = 1, c = 0 the left side is (1 - g)/g for every g."""
    g = np.linspace(1e-6, 1 / 6, 1000)
    assert np.all((1 - g) / g > 3 * (1 - g))


def test_seven_have_a_live_counterexample_that_says_what_it_computes() -> None:
    assert tuple(entry.name for entry in ERRATA if entry.counterexample) == LIVE
    assert all(bool(entry.example) == (entry.name in LIVE) for entry in ERRATA)


@pytest.mark.parametrize("entry", ERRATA, ids=lambda entry: entry.name)
def test_every_entry_is_complete_plain_and_says_two_different_things(entry: Erratum) -> None:
    words = (entry.where, entry.printed, entry.right, entry.example)
    assert all(text.isascii() and "\n" not in text and text == text.strip() for text in words)
    assert all(words[:3])
    assert entry.printed != entry.right
    assert entry.severity in SEVERITIES


@pytest.mark.parametrize("name", ["E7", "e7", "7", " E7 "])
def test_an_entry_is_found_by_any_spelling(name: str) -> None:
    assert erratum(name).number == 7


@pytest.mark.parametrize("name", ["E31", "0", "seven", ""])
def test_an_unknown_entry_raises(name: str) -> None:
    with pytest.raises(UnknownName) as caught:
        erratum(name)
    assert caught.value.kind == "erratum"


def test_E5_a_rate_of_zero_that_gradient_descent_does_not_reach() -> None:
    found = computed("E5")
    assert found["printed"] == 0 < found["true"] == pytest.approx(6.8e-4, rel=1e-3)
    assert found["true"] <= found["right"]


def test_E7_display_8_is_below_the_truth() -> None:
    found = computed("E7")
    assert found["printed"] == pytest.approx(1.04e-4, rel=5e-3)
    assert found["true"] == pytest.approx(2.78e-4, rel=5e-3)
    assert found["right"] == pytest.approx(1.11e-3, rel=5e-3)
    assert found["printed"] < found["true"] <= found["right"]


def test_E11_divided_by_R_the_output_leaves_the_optimum() -> None:
    found = computed("E11")
    assert found["right"] <= found["bound"] < found["printed"]
    assert found["printed"] > 0.2


@pytest.mark.parametrize(("name", "true", "printed"), [("ssl", 2.2e-5, -0.0287), ("fedavg", 0, -0.0253)])
def test_E13_the_display_claims_a_descent_that_does_not_happen(name: str, true: float, printed: float) -> None:
    found = computed("E13")
    assert found[f"{name} true"] == pytest.approx(true, rel=1e-2)
    assert found[f"{name} printed"] == pytest.approx(printed, rel=2e-3)
    assert found[f"{name} printed"] < found[f"{name} true"] <= found[f"{name} right"]


def test_E14_only_the_mended_step_makes_the_bound_fall() -> None:
    found = computed("E14")
    printed, right = ([found[f"{rule} R={R}"] for R in (100, 1000, 10**4, 10**5)] for rule in ("printed", "right"))
    assert printed == pytest.approx([2.65, 2.604, 2.604, 2.604], rel=1e-3)
    assert right == pytest.approx([0.99, 0.068, 1.9e-3, 3.7e-5], rel=2e-2)


def test_E19_delta_of_groups_5_and_6() -> None:
    found = computed("E19")
    assert [found[f"group {n} right"] for n in (4, 5, 6)] == [3 / 8, 15 / 4, 75 / 2]
    for n in (4, 5, 6):
        assert found[f"group {n} true"] == pytest.approx(found[f"group {n} right"], rel=1e-14)
        assert (found[f"group {n} true"] == pytest.approx(found[f"group {n} printed"])) == (n == 4)


def test_E26_the_lemma_needs_rounds() -> None:
    found = computed("E26")
    assert found["true T=0"] == pytest.approx(5)
    assert found["printed T=0"] == pytest.approx(2.5)
    assert found["true T=49"] <= found["right T=49"]
