"""Does anything but a refusal come of hostile frames? A small share of `python -m splitrelay.deploy.fuzzing`."""

from pathlib import Path

from splitrelay.deploy.fuzzing import converse, fuzz, junk
from splitrelay.deploy.strangers import CALLS


def test_hostile_frames_are_heard_or_refused() -> None:
    seen = fuzz(3000)
    assert sum(seen.values()) == 3000
    assert all(what.startswith(("heard", "refused: ")) for what in seen)
    assert len(seen) > 50  # many ways, in many states


def test_hostile_conversations_end() -> None:
    (seen,) = converse(40)
    assert sum(seen.values()) == 40
    assert "ended: StatusCode.DEADLINE_EXCEEDED" not in seen


def test_junk_below_tls_does_not_bring_a_server_down(tmp_path: Path) -> None:
    assert junk(200, tmp_path) == 200 * CALLS
