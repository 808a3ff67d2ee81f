"""Does the judge of a plan see what is wrong? Records made by hand, each with one fault."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splitrelay.chaos.corrupt_messages import CHANGES, changed, flipped, one_more
from splitrelay.chaos.fault_kinds import KINDS, Fault, format_kinds
from splitrelay.chaos.fault_scheduler import FaultScheduler, InjectedFault, count_settled_visits, is_recorded
from splitrelay.chaos.verdict import found, list_skipped_visits, missed, read_record
from splitrelay.network.codec import BadMessage, Bounds, decode, encode
from splitrelay.network.messages import Commit, Finish, Hello, Lease, Message, Reply, Step

H, LABELS = np.ones((2, 3), np.float32), np.zeros(2, np.int32)


def visit(event: str, fence: int, r: int = 0, m: int = 0, **facts: Any) -> dict[str, Any]:
    return {"event": event, "client": m, "round": r, "occurrence": 0, "fence": fence, **facts}


SOUND = [visit("leased", 1), visit("committed", 1, steps=4), visit("leased", 2, 1), visit("committed", 2, 1, steps=4)]
K = {1: 4, 2: 4}


def test_a_sound_record_is_sound() -> None:
    assert found([], [], SOUND, K, {}).sound


@pytest.mark.parametrize(
    ("steps", "granted", "whole", "sound"),
    [
        (4, {1: 4}, False, True),
        (0, {1: 4}, False, False),  # of a model that is cut
        (3, {1: 4}, False, False),
        (4, {}, False, False),  # nobody saw it granted
        (0, {1: 4}, True, True),
        (4, {1: 4}, True, False),  # the server has nothing to make them on
    ],
)
def test_a_visit_counts_the_steps_that_were_granted(
    steps: int, granted: dict[int, int], whole: bool, sound: bool
) -> None:
    events = [visit("leased", 1), visit("committed", 1, steps=steps)]
    assert found([], [], events, granted, {}, whole).sound is sound


@pytest.mark.parametrize(
    ("events", "what"),
    [
        ([*SOUND, visit("committed", 3, 1, steps=4)], "committed_twice"),
        ([*SOUND, visit("committed", 2, 2, steps=8)], "steps_twice"),
        ([*SOUND, visit("leased", 2, 2)], "fences_back"),
    ],
)
def test_what_counts_twice_is_found(events: list[dict[str, Any]], what: str) -> None:
    findings = found([], [], events, K, {})
    assert not findings.sound and getattr(findings, what) == 1


def test_a_fault_without_its_event_is_found() -> None:
    cut = InjectedFault(Fault("cut", 0, 1), before=1)
    early, others, own = visit("lost", 1, m=1), visit("lost", 1, m=0), visit("lost", 2, m=1)
    assert found([], [cut], [early, others], K, {}).unrecorded
    assert not found([], [cut], [early, others, own], K, {}).unrecorded


def test_what_the_server_could_not_notice_before_it_was_killed_is_not_asked_for() -> None:
    cut, kill = InjectedFault(Fault("cut", 0, 1), before=1), InjectedFault(Fault("kill-server", 0), before=2)
    first, other, back = visit("leased", 1, m=1), visit("committed", 2, m=0, steps=4), {"event": "listening"}
    assert found([], [cut, kill], [first, other, back], K, {}).sound
    went_on = visit("committed", 1, m=1, steps=4)
    assert found([], [cut, kill], [first, went_on, back], K, {}).unrecorded


def test_a_client_lost_with_its_last_word_is_not_missed() -> None:
    kill, nan = InjectedFault(Fault("kill-client", 0, 1), before=1), InjectedFault(Fault("nan", 0, 1), before=1)
    last, over = [visit("leased", 1, m=1), visit("committed", 1, m=1, steps=4)], {"event": "closing"}
    other = visit("committed", 2, m=0, steps=4)
    assert found([], [kill], [*last, other, over], K, {}).sound
    assert found([], [kill], last, K, {}).unrecorded  # the run goes on
    assert found([], [kill], [*last, visit("leased", 3, 1, m=1), over], K, {}).unrecorded  # and so did the client
    assert found([], [nan], [*last, over], K, {}).unrecorded  # that is refused at once, or never


def test_an_event_must_give_the_reason() -> None:
    nan = InjectedFault(Fault("nan", 0, 1), before=0)
    assert not is_recorded(nan, [{"event": "refused", "client": 1, "why": "labels out of range"}])
    assert is_recorded(nan, [{"event": "refused", "client": 1, "why": "a buffer holds NaN or infinity"}])


def test_faults_that_did_not_happen_or_had_no_effect_are_missed() -> None:
    late, slow = Fault("cut", 9), Fault("delay", 0)
    assert len(found([late], [], SOUND, K, {slow: False}).missed) == 2


def test_a_line_that_was_cut_short_does_not_hide_the_next_ones(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text('{"event": "skipped", "round": 1, "client": 2, "occurrence": 0}\n{"eve\n{"event": "closing"}\n')
    assert [event["event"] for event in read_record(file)] == ["skipped", "closing"]
    assert list_skipped_visits(read_record(file)) == {(1, 2, 0)}


def test_a_visit_that_was_found_again_is_settled_once() -> None:
    assert count_settled_visits([*SOUND, visit("found", 0, 1), visit("found", 0, 2)]) == 3


# The scheduler


def played(fault: Fault, *words: Message, events: list[dict[str, Any]] | None = None) -> list[int]:
    """The positions of the words at which the fault was made, when client 0 and the server say them."""
    made: list[int] = []
    said: list[Message] = []

    def act(fault: Fault, frame: bytes) -> list[bytes]:
        made.append(len(said))
        return []

    scheduler = FaultScheduler([fault], lambda: events or [], act)
    for word in words:
        speak = (
            scheduler.handle_server_frame if isinstance(word, Lease | Reply | Commit) else scheduler.handle_client_frame
        )
        speak(0, encode(word))
        said.append(word)
    return made


LEASE, FINISH = Lease(1, 1, 0, 0, 0, 4, 0.1), Finish(1, 2, 0.5)
STEPS = [Step(1, k, H, LABELS, 0.5) for k in range(2)]
VISIT = (Hello(1, 0), LEASE, STEPS[0], Reply(1, 0, H, (), 0.5), STEPS[1], FINISH, Commit(1))


@pytest.mark.parametrize(
    ("kind", "step", "position"),
    [("cut", 0, 2), ("cut", 1, 4), ("nan", 1, 4), ("lost-reply", 0, 3), ("reorder", 0, 5), ("lost-commit", 0, 6)],
)
def test_a_fault_happens_at_its_word(kind: str, step: int, position: int) -> None:
    assert played(Fault(kind, 0, 0, step), *VISIT) == [position]


def test_nothing_happens_while_the_server_is_on_its_way_out() -> None:
    scheduler = FaultScheduler([Fault("cut", 0)], list, lambda fault, frame: [])
    scheduler.is_paused = lambda: True
    scheduler.handle_server_frame(0, encode(LEASE))
    assert scheduler.handle_client_frame(0, encode(STEPS[0])) == [encode(STEPS[0])] and scheduler.waiting


def test_a_fault_waits_for_its_client_and_for_the_visits_before_it() -> None:
    assert played(Fault("cut", 0, 1), *VISIT) == []
    assert played(Fault("cut", 1), *VISIT) == []
    assert played(Fault("cut", 1), *VISIT, events=[visit("committed", 1)]) == [2]


def test_a_step_is_replayed_only_when_there_is_an_earlier_visit() -> None:
    later = (Lease(2, 2, 1, 0, 0, 4, 0.1), Step(2, 0, H, LABELS, 0.5))
    assert played(Fault("replay", 0), *VISIT) == []
    assert played(Fault("replay", 0), *VISIT, *later) == [8]


# Wrong messages

BOUNDS = Bounds(batch=2, h=(3,), dtype="float32", classes=10)


@pytest.mark.parametrize("kind", ["nan", "labels", "shape"])
def test_a_wrong_step_is_refused_for_the_reason_of_its_kind(kind: str) -> None:
    assert decode(encode(STEPS[0]), BOUNDS)
    with pytest.raises(BadMessage, match=KINDS[kind].why):
        decode(changed(kind, encode(STEPS[0])), BOUNDS)


def test_a_flipped_bit_is_noticed() -> None:
    with pytest.raises(BadMessage, match=KINDS["corrupt"].why):
        decode(flipped(encode(STEPS[0])), BOUNDS)


def test_one_step_more_is_the_next_one() -> None:
    step = decode(one_more(encode(STEPS[1])), BOUNDS)
    assert isinstance(step, Step) and step.k == 2 and set(CHANGES) < set(KINDS)


def test_the_page_of_faults_shows_every_kind() -> None:
    page = Path(__file__).parents[2] / "docs" / "faults.md"
    assert format_kinds() in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("event, over", [("expired", True), ("skipped", True), ("lost", False)])
def test_whoever_stays_away_comes_back_when_the_server_has_noticed(event: str, over: bool) -> None:
    assert missed(1, [{"event": "gone", "client": 1}, {"event": event, "client": 1}]) is over
    assert not missed(1, [{"event": event, "client": 2}])


def test_whoever_stays_away_comes_back_to_a_server_that_was_begun_anew() -> None:
    assert missed(1, [{"event": "closing", "why": "stopped"}, {"event": "listening", "port": 1}])
