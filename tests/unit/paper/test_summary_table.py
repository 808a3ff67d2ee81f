"""One screen for the busy reader: each study in a line."""

from pathlib import Path

from splitrelay.errors import InputError
from splitrelay.paper.summary_table import build_summary_table
from tests.support.error_fields import expect_error
from tests.support.run_directories import write_run


def met(folder: Path, gaps: tuple[float, ...], *words: str) -> None:
    """SSL ahead of FedAvg by these shares, one for each seed."""
    for name in ("ssl", "fedavg"):
        for seed, gap in enumerate(gaps):
            top = 0.5 + (gap if name == "ssl" else 0.0)
            home = folder / "-".join([name, str(seed), *words]).replace("=", "")
            write_run(home, [0.1, top], *words, f"algorithm={name}", f"seed={seed}")


def line(folder: Path, study: str) -> str:
    (found,) = [
        text for text in build_summary_table(folder).to_markdown().splitlines() if text.startswith(f"| {study} |")
    ]
    return found


def test_one_that_is_ahead_everywhere_is_named_with_the_range_of_gaps(tmp_path: Path) -> None:
    met(tmp_path / "cells", (0.2, 0.201, 0.199), "C=1", "K=10")
    met(tmp_path / "cells", (0.1, 0.101, 0.099), "C=1", "K=20")
    assert "| **SSL** +10.0 to +20.0 |" in line(tmp_path, "500 clients, the paper's rates")


def test_a_gap_that_the_seeds_do_not_support_is_not_shown(tmp_path: Path) -> None:
    """The mean is +13 points, but one seed of three differs in sign."""
    met(tmp_path / "tuned/best", (0.2, -0.1, 0.29), "C=2")
    assert "| undecided |" in line(tmp_path, "500 clients, tuned")


def test_settings_with_different_verdicts_are_counted(tmp_path: Path) -> None:
    met(tmp_path / "silos/best", (0.2, 0.201, 0.199), "C=2", "K=10")
    met(tmp_path / "silos/best", (-0.2, -0.201, -0.199), "C=2", "K=20")
    met(tmp_path / "silos/best", (-0.2, 0.3, 0.1), "C=2", "K=30")
    met(tmp_path / "silos/best", (0.0001, -0.0001, 0.0), "C=2", "K=5")
    expected = "| SSL in 1 (+20.0), FedAvg in 1 (-20.0), even in 1, undecided in 1 |"
    assert expected in line(tmp_path, "ten clients, tuned")


def test_what_was_not_run_stays_empty(tmp_path: Path) -> None:
    met(tmp_path / "cells", (0.2,), "C=1")
    met(tmp_path / "tuned/best", (0.2,), "C=2")
    assert line(tmp_path, "500 clients, tuned").endswith("| MNIST |  | undecided (one seed) |")


def test_nothing_to_show_is_said(tmp_path: Path) -> None:
    with expect_error(InputError, what=(str(tmp_path), "SSL", "FedAvg"), limit="cells"):
        build_summary_table(tmp_path)
