"""Check the verdict on fault plans with hand-written event records, each with one mistake."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splitrelay.chaos.corrupt_messages import STEP_CHANGES, build_next_step, change_step, flip_bit
from splitrelay.chaos.fault_injection import FaultRehearsal
from splitrelay.chaos.fault_kinds import KINDS, Fault, format_kinds
from splitrelay.chaos.fault_scheduler import FaultScheduler, InjectedFault, count_settled_visits, is_recorded
from splitrelay.chaos.verdict import compute_findings, is_absence_noticed
from splitrelay.deploy.events import list_skipped_visits, read_events
from splitrelay.network.codec import BadMessage, Bounds, decode, encode
from splitrelay.network.messages import Commit, Finish, Hello, Lease, Message, Reply, Step

H, LABELS = np.ones((2, 3), np.float32), np.zeros(2, np.int32)


def visit(event: str, fence: int, r: int = 0, m: int = 0, **facts: Any) -> dict[str, Any]:
    return {"event": event, "client": m, "round": r, "occurrence": 0, "fence": fence, **facts}


RECORD = [visit("leased", 1), visit("committed", 1, steps=4), visit("leased", 2, 1), visit("committed", 2, 1, steps=4)]
K = {1: 4, 2: 4}


def test_correct_record_is_sound() -> None:
    assert compute_findings([], [], RECORD, K, {}).is_sound


@pytest.mark.parametrize("event", ["failed", "unopened"])
def test_a_client_that_was_deceived_is_recorded_also_if_another_client_sent_the_half(event: str) -> None:
    one = InjectedFault(Fault("false-steps", 0), 0)
    assert is_recorded(one, [visit(event, 1, why="another number of local steps")])
    assert not is_recorded(one, [visit("leased", 1)])


@pytest.mark.parametrize(
    ("steps", "granted", "whole", "sound"),
    [
        (4, {1: 4}, False, True),
        (0, {1: 4}, False, False),  # the model is cut
        (3, {1: 4}, False, False),
        (4, {}, False, False),  # no lease was seen
        (0, {1: 4}, True, True),
        (4, {1: 4}, True, False),  # the server has no half
    ],
)
def test_steps_of_commit_must_equal_steps_of_lease(
    steps: int, granted: dict[int, int], whole: bool, sound: bool
) -> None:
    events = [visit("leased", 1), visit("committed", 1, steps=steps)]
    assert compute_findings([], [], events, granted, {}, whole).is_sound is sound


@pytest.mark.parametrize(
    ("events", "what"),
    [
        ([*RECORD, visit("committed", 3, 1, steps=4)], "double_commits"),
        ([*RECORD, visit("committed", 2, 2, steps=8)], "wrong_steps"),
        ([*RECORD, visit("leased", 2, 2)], "fence_errors"),
    ],
)
def test_repeated_visit_step_or_fence_is_reported(events: list[dict[str, Any]], what: str) -> None:
    findings = compute_findings([], [], events, K, {})
    assert not findings.is_sound and getattr(findings, what) == 1


def test_fault_without_event_is_reported() -> None:
    cut = InjectedFault(Fault("cut", 0, 1), event_count=1)
    early, others, own = visit("lost", 1, m=1), visit("lost", 1, m=0), visit("lost", 2, m=1)
    assert compute_findings([], [cut], [early, others], K, {}).unrecorded
    assert not compute_findings([], [cut], [early, others, own], K, {}).unrecorded


def test_fault_hidden_by_killed_server_is_accepted() -> None:
    cut, kill = InjectedFault(Fault("cut", 0, 1), event_count=1), InjectedFault(Fault("kill-server", 0), event_count=2)
    first, other, back = visit("leased", 1, m=1), visit("committed", 2, m=0, steps=4), {"event": "listening"}
    assert compute_findings([], [cut, kill], [first, other, back], K, {}).is_sound
    went_on = visit("committed", 1, m=1, steps=4)
    assert compute_findings([], [cut, kill], [first, went_on, back], K, {}).unrecorded


def test_client_killed_after_last_message_is_accepted() -> None:
    kill, nan = (
        InjectedFault(Fault("kill-client", 0, 1), event_count=1),
        InjectedFault(Fault("nan", 0, 1), event_count=1),
    )
    last, over = [visit("leased", 1, m=1), visit("committed", 1, m=1, steps=4)], {"event": "closing"}
    other = visit("committed", 2, m=0, steps=4)
    assert compute_findings([], [kill], [*last, other, over], K, {}).is_sound
    assert compute_findings([], [kill], last, K, {}).unrecorded  # the run continues
    assert compute_findings(
        [], [kill], [*last, visit("leased", 3, 1, m=1), over], K, {}
    ).unrecorded  # and so does the client
    assert compute_findings([], [nan], [*last, over], K, {}).unrecorded  # a NaN is refused immediately, or never


def test_event_must_contain_reason_of_kind() -> None:
    nan = InjectedFault(Fault("nan", 0, 1), event_count=0)
    assert not is_recorded(nan, [{"event": "refused", "client": 1, "why": "labels out of range"}])
    assert is_recorded(nan, [{"event": "refused", "client": 1, "why": "a buffer holds NaN or infinity"}])


def test_faults_that_did_not_happen_or_had_no_effect_are_missing() -> None:
    late, slow = Fault("cut", 9), Fault("delay", 0)
    assert len(compute_findings([late], [], RECORD, K, {slow: False}).missing) == 2


def test_incomplete_line_of_record_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text('{"event": "skipped", "round": 1, "client": 2, "occurrence": 0}\n{"eve\n{"event": "closing"}\n')
    assert [event["event"] for event in read_events(file)] == ["skipped", "closing"]
    assert list_skipped_visits(read_events(file)) == {(1, 2, 0)}


def test_visit_found_after_restart_is_counted_once() -> None:
    assert count_settled_visits([*RECORD, visit("found", 0, 1), visit("found", 0, 2)]) == 3


# The scheduler


def find_positions(fault: Fault, *messages: Message, events: list[dict[str, Any]] | None = None) -> list[int]:
    """Return the positions of the messages of client 0 and the server at which the fault happens."""
    positions: list[int] = []
    position = 0

    def inject(fault: Fault, frame: bytes) -> list[bytes]:
        positions.append(position)
        return []

    scheduler = FaultScheduler([fault], lambda: events or [], inject)
    for position, message in enumerate(messages):  # noqa: B007 - read by `inject`
        if isinstance(message, Lease | Reply | Commit):
            scheduler.handle_server_frame(0, encode(message))
        else:
            scheduler.handle_client_frame(0, encode(message))
    return positions


LEASE, FINISH = Lease(1, 1, 0, 0, 0, 4, 0.1), Finish(1, 2, 0.5)
STEPS = [Step(1, k, H, LABELS, 0.5) for k in range(2)]
VISIT = (Hello(1, 0), LEASE, STEPS[0], Reply(1, 0, H, (), 0.5), STEPS[1], FINISH, Commit(1))


@pytest.mark.parametrize(
    ("kind", "step", "position"),
    [("cut", 0, 2), ("cut", 1, 4), ("nan", 1, 4), ("lost-reply", 0, 3), ("reorder", 0, 5), ("lost-commit", 0, 6)],
)
def test_fault_happens_at_message_of_kind(kind: str, step: int, position: int) -> None:
    assert find_positions(Fault(kind, 0, 0, step), *VISIT) == [position]


def test_no_fault_happens_while_server_stops() -> None:
    scheduler = FaultScheduler([Fault("cut", 0)], list, lambda fault, frame: [], is_paused=lambda: True)
    scheduler.handle_server_frame(0, encode(LEASE))
    assert scheduler.handle_client_frame(0, encode(STEPS[0])) == [encode(STEPS[0])] and scheduler.waiting


def test_no_fault_happens_at_a_message_of_a_client_that_is_being_killed() -> None:
    """On a busy machine it still sends some, and the next fault of the client would have no effect."""
    scheduler = FaultScheduler([Fault("lost-reply", 0)], list, lambda fault, frame: [])
    hello, _, step, reply, *_ = map(encode, VISIT)
    scheduler.handle_server_frame(0, encode(LEASE))
    scheduler.get_traffic(0).dead = True
    assert scheduler.handle_client_frame(0, step) == []
    assert scheduler.handle_server_frame(0, reply) == [reply]
    scheduler.handle_client_frame(0, hello)  # it was started again
    scheduler.handle_server_frame(0, encode(LEASE))
    assert scheduler.waiting
    scheduler.handle_server_frame(0, reply)
    assert not scheduler.waiting


def test_fault_waits_for_client_and_earlier_visits() -> None:
    assert find_positions(Fault("cut", 0, 1), *VISIT) == []
    assert find_positions(Fault("cut", 1), *VISIT) == []
    assert find_positions(Fault("cut", 1), *VISIT, events=[visit("committed", 1)]) == [2]


def test_replay_needs_earlier_visit() -> None:
    later = (Lease(2, 2, 1, 0, 0, 4, 0.1), Step(2, 0, H, LABELS, 0.5))
    assert find_positions(Fault("replay", 0), *VISIT) == []
    assert find_positions(Fault("replay", 0), *VISIT, *later) == [8]


# Wrong messages

BOUNDS = Bounds(batch=2, h=(3,), dtype="float32", classes=10)


@pytest.mark.parametrize("kind", ["nan", "labels", "shape"])
def test_wrong_step_is_refused_with_reason_of_kind(kind: str) -> None:
    assert decode(encode(STEPS[0]), BOUNDS)
    with pytest.raises(BadMessage) as error:
        decode(change_step(kind, encode(STEPS[0])), BOUNDS)
    assert KINDS[kind].why in error.value.what  # the rehearsal compares them


def test_flipped_bit_is_refused_with_reason_of_kind() -> None:
    with pytest.raises(BadMessage) as error:
        decode(flip_bit(encode(STEPS[0])), BOUNDS)
    assert KINDS["corrupt"].why in error.value.what


def test_next_step_has_next_number() -> None:
    step = decode(build_next_step(encode(STEPS[1])), BOUNDS)
    assert isinstance(step, Step) and step.k == 2 and set(STEP_CHANGES) < set(KINDS)


def test_docs_show_table_of_kinds() -> None:
    page = Path(__file__).parents[2] / "docs" / "faults.md"
    assert format_kinds() in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("event, noticed", [("expired", True), ("skipped", True), ("lost", False)])
def test_absence_is_noticed_by_expired_or_skipped_visit(event: str, noticed: bool) -> None:
    assert is_absence_noticed(1, [{"event": "gone", "client": 1}, {"event": event, "client": 1}]) is noticed
    assert not is_absence_noticed(1, [{"event": event, "client": 2}])


def test_absence_ends_with_restart_of_server() -> None:
    assert is_absence_noticed(1, [{"event": "closing", "why": "stopped"}, {"event": "listening", "port": 1}])


def test_every_kind_of_fault_has_a_method_that_makes_it() -> None:
    own = [kind for kind in KINDS if kind not in STEP_CHANGES]
    assert [kind for kind in own if not hasattr(FaultRehearsal, f"_inject_{kind.replace('-', '_')}")] == []
