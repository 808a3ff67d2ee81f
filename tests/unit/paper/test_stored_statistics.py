"""The statistics of the stored records equal an independent computation, which reads the archives and uses scipy."""

import json
import tarfile
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from splitrelay.paper.summary_table import build_summary_table
from splitrelay.randomness import Purpose, rng

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
