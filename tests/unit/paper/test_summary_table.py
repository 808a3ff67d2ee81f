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


def test_one_who_is_ahead_everywhere_is_named_with_the_least_and_the_most(tmp_path: Path) -> None:
    met(tmp_path / "cells", (0.2, 0.3), "C=1", "K=10")
    met(tmp_path / "cells", (0.1, 0.1), "C=1", "K=20")
    assert "| **SSL** +10.0 to +25.0 |" in line(tmp_path, "500 clients, the paper's rates")


def test_one_seed_against_it_makes_a_place_even(tmp_path: Path) -> None:
    met(tmp_path / "tuned/best", (0.2, -0.1), "C=2")
    assert "| even +5.0 |" in line(tmp_path, "500 clients, tuned")


def test_where_places_differ_they_are_counted(tmp_path: Path) -> None:
    met(tmp_path / "silos/best", (0.2, 0.2), "C=2", "K=10")
    met(tmp_path / "silos/best", (-0.2, -0.1), "C=2", "K=20")
    assert "| SSL in 1, FedAvg in 1 of 2: -15.0 to +20.0 |" in line(tmp_path, "ten clients, tuned")


def test_what_was_not_run_stays_empty(tmp_path: Path) -> None:
    met(tmp_path / "cells", (0.2,), "C=1")
    met(tmp_path / "tuned/best", (0.2,), "C=2")
    assert line(tmp_path, "500 clients, tuned").endswith("| MNIST |  | **SSL** +20.0 (one seed) |")


def test_nothing_to_show_is_said(tmp_path: Path) -> None:
    with expect_error(InputError, what=(str(tmp_path), "SSL", "FedAvg"), limit="cells"):
        build_summary_table(tmp_path)
