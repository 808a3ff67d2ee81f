"""A disk without room: the server stops with one line, and what was written before is whole."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from splitrelay.algorithms.base import Cost, Done, Step, Visit
from splitrelay.deploy.findings import events_in
from splitrelay.deploy.journal import Journal
from splitrelay.errors import OutputError


@contextmanager
def room(size: int) -> Iterator[None]:
    """The kernel lets no file grow beyond `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_line_that_does_not_fit_is_an_error_and_the_next_one_is_whole(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.note("first")
    size = (tmp_path / "events.jsonl").stat().st_size
    with room(size + 10), pytest.raises(OutputError, match="cannot write"):
        journal.note("second")
    Journal(tmp_path).note("third")
    assert [event["event"] for event in events_in(tmp_path / "events.jsonl")] == ["first", "third"]


def test_a_visit_that_does_not_fit_is_not_committed(tmp_path: Path) -> None:
    journal, x = Journal(tmp_path), torch.ones(5000)
    visit = Visit(0, 0, 1, x, Step(0.1), 4)
    with room(4096), pytest.raises(OutputError, match="cannot write"):
        journal.commit(visit, 1, Done(x, Cost(1, 2, 0.5)))
    assert journal.find(visit) is None and list((tmp_path / "visits").iterdir()) == []
    journal.commit(visit, 2, Done(x, Cost(1, 2, 0.5)))
    assert isinstance(journal.find(visit), Done)
