"""Have the weights, the rows or the formats on disk and on the wire changed? See frozen_results.py."""

from pathlib import Path

import pytest

from tests.golden.frozen_results import compute_formats, compute_run, get_cases, get_processor, read_table


@pytest.mark.parametrize("case", get_cases())
def test_a_run_ends_with_the_frozen_weights_and_rows(case: str, tmp_path: Path) -> None:
    frozen = read_table()["runs"][case]
    processor = get_processor(case.split()[0])
    if processor not in frozen:
        pytest.skip(f"no frozen results for {processor}: only for {', '.join(frozen)}")
    assert compute_run(case, tmp_path) == frozen[processor]


@pytest.mark.parametrize("case", ["fast cut fedavg", "fast whole fedavg", "fast cut sflg"])
def test_threads_end_with_the_same(case: str, tmp_path: Path) -> None:
    assert compute_run(case, tmp_path, workers=2) == read_table()["runs"][case]["any"]


@pytest.mark.parametrize("part", ["spec hashes", "frames", "manifest", "run directory"])
def test_names_and_bytes_on_disk_and_on_the_wire_are_frozen(part: str) -> None:
    assert compute_formats()[part] == read_table()["formats"][part]
