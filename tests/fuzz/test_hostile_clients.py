"""Check that servers refuse hostile clients and survive them: a small share of `python -m tests.fuzz`."""

from collections import Counter
from pathlib import Path

from splitrelay.chaos.corrupt_messages import CONNECTIONS
from splitrelay.network.messages import BUFFER_MESSAGES, CONTROL_MESSAGES, Message, SessionMessage
from splitrelay.network.protocol import State
from tests.fuzz.__main__ import MANY, find_errors
from tests.fuzz.campaign import CampaignResult, run_campaign
from tests.fuzz.frames import MESSAGES, fuzz_frames, send_junk_connections
from tests.fuzz.mutations import list_messages


def test_the_fuzzer_sends_every_kind_of_message() -> None:
    kinds = {*CONTROL_MESSAGES, *BUFFER_MESSAGES}
    assert kinds == {*Message.__subclasses__(), *SessionMessage.__subclasses__()} - {SessionMessage}
    assert {type(message) for message in list_messages()} == {type(message) for message in MESSAGES} == kinds


def test_hostile_frames_are_accepted_or_refused() -> None:
    seen = fuzz_frames(3000)
    assert sum(seen.values()) == 3000
    assert all(what.startswith(("accepted: ", "refused: ")) for what in seen)
    assert len(seen) > 50  # many ways, in many states


def test_hostile_conversations_break_nothing_and_reach_every_state() -> None:
    """This is one test, so that only one worker runs the conversations."""
    (result,) = run_campaign(320)
    assert result.wrong == Counter()
    assert sum(result.verdicts.values()) == result.conversations == 320
    assert {"refused", "cancelled", "committed"} <= set(result.verdicts)
    assert set(result.states) == set(State)
    assert set(result.sent) == {kind.event for kind in (*CONTROL_MESSAGES, *BUFFER_MESSAGES)}


def test_states_that_were_not_reached_and_growing_memory_are_errors() -> None:
    reached = Counter(dict.fromkeys(State, 1))
    assert not find_errors(CampaignResult(MANY, states=reached), [100, 110, 115])
    assert set(find_errors(CampaignResult(MANY, states=reached - Counter([State.LOOKING])), [100])) == {
        "never reached: looking"
    }
    assert find_errors(CampaignResult(MANY, states=reached), [100, 105, 120])
    assert find_errors(CampaignResult(MANY, states=reached), [100, 200, 201])
    assert find_errors(CampaignResult(1, wrong=Counter(["connections that did not end"])), [100])


def test_a_server_survives_connections_that_are_no_tls(tmp_path: Path) -> None:
    assert send_junk_connections(200, tmp_path) == 200 * CONNECTIONS
