"""Statistics of the stored records: differences by hand, and an independent computation with scipy."""

import json
import tarfile
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from splitrelay.errors import InputError
from splitrelay.paper.algorithm_family import build_algorithms_table, build_choices_table, summarise_verdicts
from splitrelay.paper.summary_table import build_summary_table
from splitrelay.randomness import Purpose, rng
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


EVIDENCE = Path(__file__).parents[3] / "evidence"
STUDIES = ("cells", "tuned/best", "landscape/best", "silos/best", "cnncifar/best", "vgg11")
Key = tuple[Any, ...]


def read_accuracies(study: str) -> dict[Key, dict[str, dict[int, float]]]:
    """Return the mean over the last 20 rounds in percent, by setting, algorithm and seed."""
    name, _, folder = study.partition("/")
    found: dict[Key, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    specs: dict[str, dict[str, Any]] = {}
    rows: dict[str, list[dict[str, Any]]] = {}
    with tarfile.open(EVIDENCE / f"{name}.tar.xz") as archive:
        for member in archive:
            *path, file = Path(member.name).parts
            if folder not in ("", *path) or not member.isfile():
                continue
            content = archive.extractfile(member)
            assert content is not None
            if file == "spec.toml":
                specs["/".join(path)] = tomllib.loads(content.read().decode())
            elif file == "rounds.jsonl":
                rows["/".join(path)] = [json.loads(line) for line in content.read().splitlines()]
    for run, spec in specs.items():
        data, part = spec["data"]["name"], spec["partition"]
        key = study, data, part["M"], part["C"], part["alpha"], spec["K"], spec.get("S") or part["M"]
        last = [row["test_accuracy"] for row in rows[run] if row["round"] > spec["R"] - 20]
        found[key][spec["algorithm"]][spec["seed"]] = 100 * float(np.mean(last))
    return found


@pytest.fixture(scope="module")
def differences() -> dict[Key, list[float]]:
    """Return SSL minus FedAvg for each common seed."""
    return {
        key: [both["ssl"][seed] - both["fedavg"][seed] for seed in both["ssl"] if seed in both["fedavg"]]
        for study in STUDIES
        for key, both in read_accuracies(study).items()
        if {"ssl", "fedavg"} <= set(both)
    }


@pytest.fixture(scope="module")
def ours() -> dict[Key, dict[str, Any]]:
    records = build_summary_table(EVIDENCE).records
    found = {}
    for record in records:
        M = 10 if record["study"] == "silos/best" else 500
        key = record["study"], record["data"], M, record["C"], record["alpha"], record["K"], record["S"]
        if key in found:  # VGG-11 across devices and among silos
            key = (*key[:2], 10, *key[3:])
        found[key] = dict(record)
    return found


def correct(p: dict[Key, float]) -> dict[Key, float]:
    """Return Holm's adjusted p-values."""
    adjusted, running = {}, 0.0
    for rank, key in enumerate(sorted(p, key=p.__getitem__)):
        running = max(running, min(1.0, (len(p) - rank) * p[key]))
        adjusted[key] = running
    return adjusted


def test_paired_tests_equal_scipy(differences: dict[Key, list[float]], ours: dict[Key, dict[str, Any]]) -> None:
    several = {key: d for key, d in differences.items() if len(d) > 1}
    assert (len(differences), len(several)) == (46, 44) and {len(d) for d in several.values()} == {3}
    assert differences.keys() == ours.keys()
    p = {key: float(stats.ttest_1samp(d, 0.0).pvalue) for key, d in several.items()}
    sides = {
        key: max(
            float(stats.ttest_1samp(d, -0.5, alternative="greater").pvalue),
            float(stats.ttest_1samp(d, 0.5, alternative="less").pvalue),
        )
        for key, d in several.items()
    }
    p_holm, p_even = correct(p), correct(sides)
    for key, d in several.items():
        assert ours[key]["gap"] == pytest.approx(np.mean(d), abs=1e-4)
        assert ours[key]["p"] == pytest.approx(p[key], rel=1e-6)
        assert ours[key]["p_holm"] == pytest.approx(p_holm[key], rel=1e-6)
        assert ours[key]["p_even"] == pytest.approx(p_even[key], rel=1e-6)
    significant = [key for key in several if p_holm[key] <= 0.05]
    assert [key[:4] + key[5:6] for key in significant] == [("cells", "mnist", 500, 1, K) for K in (10, 20)]
    ahead = {key for key, record in ours.items() if record["verdict"] == "ahead"}
    assert ahead == set(significant) and not any(record["verdict"] == "behind" for record in ours.values())
    assert all(value > 0.05 for value in p_even.values())  # nothing is even


def test_intervals_equal_a_second_bootstrap(
    differences: dict[Key, list[float]], ours: dict[Key, dict[str, Any]]
) -> None:
    """The formula of `reports.statistics` with other random numbers."""
    generator = rng(7, Purpose.INSTANCES, 0)
    for key in list(differences)[:40:8]:
        d = np.array(differences[key])
        n, spread = len(d), d.std(ddof=1)
        e = generator.choice(d - d.mean(), (100_000, n)) + (4 / (3 * n)) ** 0.2 * spread * generator.normal(
            size=(100_000, n)
        )
        low, high = np.quantile(e.mean(1) / e.std(1, ddof=1), [0.025, 0.975])
        expected = d.mean() - high * spread, d.mean() - low * spread
        assert (ours[key]["low"], ours[key]["high"]) == pytest.approx(expected, abs=0.04 * (expected[1] - expected[0]))
