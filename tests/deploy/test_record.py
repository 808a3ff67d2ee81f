"""Does the record stay short whatever is said again and again, and does it forget nothing else?"""

import json
from pathlib import Path

from splitrelay.deploy.journal import LINES, Journal, Often

WHAT = ("gone", 3, "the link was lost")


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


def test_another_client_and_another_reason_are_lines_of_their_own() -> None:
    often = Often()
    for _ in range(LINES + 1):
        often.left_out(0.0, *WHAT)
    assert often.left_out(0.0, "gone", 4, "the link was lost") == 0
    assert often.left_out(0.0, "gone", 3, "revoked") == 0


def test_what_belongs_to_a_visit_is_always_kept(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for fence in range(3 * LINES):
        journal.note("committed", client=3, fence=fence)
        journal.note("gone", client=3, why="lost")
    events = [json.loads(line)["event"] for line in journal.events.read_text().splitlines()]
    assert events.count("committed") == 3 * LINES and events.count("gone") == LINES
