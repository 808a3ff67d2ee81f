"""Does anything but a refusal come of hostile clients? A small share of `python -m tests.fuzz`."""

from collections import Counter
from pathlib import Path

from splitrelay.chaos.unauthenticated_clients import CONNECTIONS
from splitrelay.network.messages import BUFFER_MESSAGES, CONTROL_MESSAGES, Message
from splitrelay.network.protocol import State
from tests.fuzz.__main__ import MANY, wrong
from tests.fuzz.campaign import Tale, siege
from tests.fuzz.frames import WORDS, fuzz, junk
from tests.fuzz.mutations import vocabulary


def test_the_fuzzer_knows_every_word() -> None:
    kinds = {*CONTROL_MESSAGES, *BUFFER_MESSAGES}
    assert kinds == set(Message.__subclasses__())
    assert {type(word) for word in vocabulary()} == {type(word) for word in WORDS} == kinds


def test_hostile_frames_are_heard_or_refused() -> None:
    seen = fuzz(3000)
    assert sum(seen.values()) == 3000
    assert all(what.startswith(("heard", "refused: ")) for what in seen)
    assert len(seen) > 50  # many ways, in many states


def test_hostile_conversations_break_nothing_and_reach_every_state() -> None:
    """One test for all, so that one worker has the conversations once."""
    (tale,) = siege(320)
    assert tale.wrong == Counter()
    assert sum(tale.verdicts.values()) == tale.conversations == 320
    assert {"refused", "cancelled", "committed"} <= set(tale.verdicts)
    assert set(tale.states) == set(State)
    assert set(tale.said) == {kind.event for kind in (*CONTROL_MESSAGES, *BUFFER_MESSAGES)}


def test_a_hollow_fuzz_is_wrong_and_so_is_memory_that_grows() -> None:
    reached = Counter(dict.fromkeys(State, 1))
    assert not wrong(Tale(MANY, states=reached), [100, 110, 115])
    assert set(wrong(Tale(MANY, states=reached - Counter([State.LOOKING])), [100])) == {"never reached: looking"}
    assert wrong(Tale(MANY, states=reached), [100, 105, 120])
    assert wrong(Tale(MANY, states=reached), [100, 200, 201])
    assert wrong(Tale(1, wrong=Counter(["links that did not end"])), [100])


def test_junk_below_tls_does_not_bring_a_server_down(tmp_path: Path) -> None:
    assert junk(200, tmp_path) == 200 * CONNECTIONS
