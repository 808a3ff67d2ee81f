"""What matters and what does not: differences seed against seed, by hand."""

from pathlib import Path

import pytest

from splitrelay.errors import InputError
from splitrelay.paper.algorithm_family import build_algorithms_table, build_choices_table, summarise_verdicts
from tests.support.error_fields import expect_error
from tests.support.run_directories import write_run

USUAL = (0.5, 0.6)  # of SSL, with two seeds


def ran(folder: Path, tops: tuple[float, ...], *words: str) -> None:
    """A setting with these accuracies at the end, one for each seed."""
    for seed, top in enumerate(tops):
        home = folder / "family/best" / "-".join([*words, str(seed)]).replace("=", "")
        write_run(home, [0.1, top], "C=1", *words, f"seed={seed}")


def verdict(folder: Path, **found: object) -> object:
    (record,) = [row for row in build_choices_table(folder).records if found.items() <= dict(row).items()]
    return record["verdict"]


@pytest.mark.parametrize(
    ("tops", "says"),
    [((0.53, 0.631), "better"), ((0.4, 0.501), "worse"), ((0.55, 0.59), "undecided"), ((0.5, 0.6), "same")],
)
def test_a_change_is_judged_over_paired_seeds(tmp_path: Path, tops: tuple[float, float], says: str) -> None:
    ran(tmp_path, USUAL, "algorithm=ssl")
    ran(tmp_path, tops, "algorithm=ssl", "order=sampled")
    ran(tmp_path, USUAL, "algorithm=ssl", "draw=replacement")
    assert verdict(tmp_path, algorithm="ssl", **{"with": "order=sampled"}) == says


def test_the_usual_setting_is_the_one_that_the_others_differ_from_least_whatever_its_rate(tmp_path: Path) -> None:
    ran(tmp_path, USUAL, "algorithm=ssl", "draw=replacement", "eta=0.3")
    ran(tmp_path, USUAL, "algorithm=ssl", "eta=0.01")
    ran(tmp_path, USUAL, "algorithm=ssl", "order=sampled", "eta=0.1")
    assert {row["with"] for row in build_choices_table(tmp_path).records} == {"draw=replacement", "order=sampled"}


def test_of_two_the_one_nearer_to_a_bare_spec_is_usual(tmp_path: Path) -> None:
    for order in ("fixed", "permutation"):
        ran(tmp_path, USUAL, "algorithm=ssl", "M=10", "S=none", f"order={order}")
    (row,) = build_choices_table(tmp_path).records
    assert (row["with"], row["instead_of"]) == ("order=fixed", "order=permutation")


def test_other_algorithms_stand_against_both(tmp_path: Path) -> None:
    ran(tmp_path, USUAL, "algorithm=ssl")
    ran(tmp_path, (0.4, 0.4), "algorithm=fedavg")
    ran(tmp_path, (0.7, 0.7), "algorithm=scaffold")
    (line,) = [
        text for text in build_algorithms_table(tmp_path).to_markdown().splitlines() if text.startswith("| SCAFFOLD")
    ]
    assert "| +15.0 ± 7.1 | +30.0 ± 0.0 |" in line


def test_verdicts_of_several_sets_in_a_word() -> None:
    assert summarise_verdicts(["same", "same"]) == "same" and summarise_verdicts(["worse", "worse"]) == "worse"
    assert summarise_verdicts(["better", "same"]) == "better on one data set"
    assert summarise_verdicts(["better", "worse"]) == "better or worse, depending on the data set"


def test_nothing_of_the_family_is_said(tmp_path: Path) -> None:
    with expect_error(InputError, what=str(tmp_path), limit="family/best"):
        build_algorithms_table(tmp_path)
