"""Does the record stay short whatever is said again and again, and does it forget nothing else?"""

import json
from pathlib import Path

import pytest

from splitrelay.deploy import events
from splitrelay.deploy.events import FIELD, LINES, OLDER, EventLog, Often, read_events
from splitrelay.deploy.journal import Journal
from tests.support.clock import Clock

WHAT = ("gone", 3)


@pytest.fixture(autouse=True)
def stop_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a journal notes in a test, it notes in one minute."""
    Clock(monkeypatch, events, is_stopped=True)


def test_some_lines_in_the_first_minute_then_one_in_each() -> None:
    often = Often()
    assert [often.left_out(0.1 * i, *WHAT) for i in range(LINES + 2)] == [0] * LINES + [None] * 2
    assert [often.left_out(60 + i, *WHAT) for i in range(3)] == [2, None, None]
    assert [often.left_out(120 + i, *WHAT) for i in range(3)] == [2, None, None]


def test_after_a_quiet_minute_every_line_is_kept_again() -> None:
    often = Often()
    for _ in range(LINES + 1):
        often.left_out(0.0, *WHAT)
    often.left_out(60.0, *WHAT)
    assert [often.left_out(120.0, *WHAT) for _ in range(LINES)] == [0] * LINES


def test_another_source_has_lines_of_its_own_and_another_reason_has_not(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for number in range(3 * LINES):
        journal.note("refused", source="a certificate", client=-1, why=f"reason {number}")
    journal.note("refused", source="another", client=-1, why="reason")
    assert len(read_events(journal.events)) == LINES + 1


def test_all_sources_together_have_a_limit() -> None:
    often = Often(lines=5, most=20)
    kept = [often.left_out(0.0, "refused", source) for source in range(10) for _ in range(10)]
    assert sum(left is not None for left in kept) == 20
    assert often.left_out(0.0, "gone", 0) == 0


def test_what_belongs_to_a_visit_is_always_kept(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for fence in range(3 * LINES):
        journal.note("committed", client=3, fence=fence)
        journal.note("gone", client=3, why="lost")
    kinds = [json.loads(line)["event"] for line in journal.events.read_text().splitlines()]
    assert kinds.count("committed") == 3 * LINES and kinds.count("gone") == LINES


def test_a_long_text_is_cut(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.note("failed", client=1, why="x" * 10 * FIELD)
    assert len(read_events(journal.events)[0]["why"]) == FIELD


def test_a_file_that_has_grown_is_begun_anew_with_all_that_is_read_back(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl", limit=2000, often=Often(lines=10**6, most=10**6))
    for fence in range(100):
        log.note("committed", client=3, fence=fence)
        for _ in range(20):
            log.note("refused", source="x", client=3, why="revoked")
    found = read_events(log.path)
    committed = [event["fence"] for event in found if event["event"] == "committed"]
    assert committed == list(range(100))
    others = log.path.stat().st_size - sum(len(json.dumps(event)) + 1 for event in found if "fence" in event)
    assert others <= 2000 + 200
    assert read_events(tmp_path / OLDER) and sorted(file.name for file in tmp_path.iterdir()) == [OLDER, "events.jsonl"]
