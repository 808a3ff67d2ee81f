"""Do both ends walk the same table, whatever is said, lost, repeated or crossed on the way?"""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitrelay.network.codec import BadMessage
from splitrelay.network.messages import (
    Accept,
    Bye,
    Cancel,
    Chunk,
    Commit,
    Deposit,
    EvaluationRequest,
    Fail,
    Finish,
    Heartbeat,
    Hello,
    Lease,
    Leave,
    Message,
    Output,
    Predict,
    Ready,
    Refuse,
    Reply,
    Resume,
    Score,
    Step,
    Terms,
    Welcome,
)
from splitrelay.network.protocol import HELD, OPEN, OVER, TABLE, Conversation, End, State, Verdict, build_diagram

ROOT = Path(__file__).parents[3]
H = np.ones((1, 2), np.float32)
TERMS = Terms("", "", "", "", (1, 2, 2), ("a",), (0.0,), (1.0,), 255, heartbeat=1.0)


def lease(fence: int) -> Lease:
    return Lease(fence, 1, 0, 0, 0, 2, 0.1)


def step(fence: int, k: int) -> Step:
    return Step(fence, k, H, np.zeros(1, np.int32), 0.0)


def reply(fence: int, k: int) -> Reply:
    return Reply(fence, k, H, (), 0.0)


C, S = End.CLIENT, End.SERVER
GREETING: list[tuple[End, Message]] = [
    (C, Hello(1, 0)),
    (S, TERMS),
    (C, Accept("", "", "", 1)),
]
VISIT: list[tuple[End, Message]] = [
    (S, lease(1)),
    (S, Chunk(1, 0, b"x")),
    (C, Ready(1)),
    (C, step(1, 0)),
    (S, reply(1, 0)),
    (C, step(1, 1)),
    (S, reply(1, 1)),
    (C, Finish(1, 2, 0.0)),
    (C, Chunk(1, 0, b"x")),
    (C, Deposit(1, 1, b"")),
    (S, Commit(1)),
]
LOOK: list[tuple[End, Message]] = [
    (S, EvaluationRequest(2, 1, 1, b"")),
    (S, Chunk(2, 0, b"x")),
    (C, Predict(2, 0, H)),
    (S, Output(2, 0, H)),
    (C, Score(2, 0.5, 0.5)),
]
STORY = [*GREETING, (S, Welcome()), *VISIT, *LOOK, (C, Leave())]


def exchange(story: list[tuple[End, Message]]) -> dict[End, Conversation]:
    ends = {end: Conversation(end) for end in End}
    for speaker, message in story:
        ends[speaker].record_sent(message)
        for end in End:
            if end is not speaker:
                assert ends[end].record_received(message) is Verdict.NEW
        assert ends[C].state is ends[S].state
    return ends


def test_a_whole_story_ends_with_both_gone() -> None:
    assert exchange(STORY)[C].state is State.LEFT


@pytest.mark.parametrize("length", range(len(STORY)))
def test_both_ends_can_be_cut_at_any_word(length: int) -> None:
    ends = exchange(STORY[:length])
    assert ends[C].state is ends[S].state


@pytest.mark.parametrize("length", range(1, len(GREETING) + 1 + len(VISIT)))
def test_the_server_can_take_a_visit_back_at_any_word(length: int) -> None:
    ends = exchange(STORY[:length])
    if ends[S].state not in HELD:
        return
    fence = ends[S].fence
    ends[S].record_sent(Cancel(fence))
    crossed = {State.STEPPING: step(fence, ends[C].answered), State.HANDING: Chunk(fence, 1, b"x")}.get(ends[C].state)
    if crossed is not None:  # said before the cancel was heard
        ends[C].record_sent(crossed)
        assert ends[S].record_received(crossed) is Verdict.STALE
    ends[C].record_received(Cancel(fence))
    assert ends[C].state is ends[S].state is State.IDLE


def test_a_repeated_step_is_told_from_a_new_one() -> None:
    ends = exchange(STORY[: STORY.index((S, Welcome())) + 1] + VISIT[:5])
    assert ends[S].record_received(step(1, 0)) is Verdict.AGAIN
    ends[S].record_sent(reply(1, 0))
    assert ends[C].record_received(reply(1, 0)) is Verdict.AGAIN
    ends[C].record_sent(step(1, 1))
    assert ends[S].record_received(step(1, 1)) is Verdict.NEW
    assert ends[S].record_received(step(1, 1)) is Verdict.AGAIN  # while it is being computed


def test_a_visit_goes_on_over_a_new_link() -> None:
    ends = exchange([*GREETING, (S, Resume(1))])
    ends[S].set_answered(1)  # the reply to step 0 was lost
    ends[C].set_answered(0)
    ends[C].record_sent(step(1, 0))
    assert ends[S].record_received(step(1, 0)) is Verdict.AGAIN
    ends[S].record_sent(reply(1, 0))
    assert ends[C].record_received(reply(1, 0)) is Verdict.NEW
    ends[C].record_sent(step(1, 1))
    assert ends[S].record_received(step(1, 1)) is Verdict.NEW


@pytest.mark.parametrize(
    ("before", "word"),
    [
        (0, step(1, 0)),
        (0, Accept("", "", "", 1)),
        (3, Hello(1, 0)),
        (4, Deposit(1, 1, b"")),
        (7, step(1, 1)),
        (7, step(2, 0)),
        (7, Deposit(1, 1, b"")),
        (9, Finish(7, 2, 0.0)),
        (12, step(1, 2)),
    ],
)
def test_a_word_out_of_place_ends_in_refused(before: int, word: Message) -> None:
    server = exchange(STORY[:before])[S]
    with pytest.raises(BadMessage):
        server.record_received(word)
    assert server.state is State.REFUSED


def test_a_fence_is_never_granted_twice() -> None:
    client = exchange(STORY[: len(GREETING) + 1 + len(VISIT)])[C]
    with pytest.raises(BadMessage):
        client.record_received(lease(1))


WORDS: list[Message] = [
    *(message for _, message in STORY),
    *(make(fence) for make in (Ready, Commit, Cancel, Fail, Resume, lease) for fence in (1, 2, 3)),
    *(step(fence, k) for fence in (1, 2) for k in (0, 1, 5)),
    *(reply(fence, k) for fence in (1, 2) for k in (0, 1)),
    Heartbeat(), Bye(), Refuse("no"),
]  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(list(End)), st.sampled_from(WORDS)), max_size=40), st.integers(0, 20))
def test_no_talk_leaves_the_table(talk: list[tuple[End, Message]], start: int) -> None:
    """From any point of a true story, whatever is said: a known state, or refused; and refused is the end."""
    conversation = exchange(STORY[: min(start, len(STORY) - 1)])[S]
    for speaker, message in talk:
        before = conversation.state
        try:
            verdict = conversation.record_sent(message) if speaker is S else conversation.record_received(message)
        except BadMessage:
            assert conversation.state is State.REFUSED
            continue
        if verdict in (None, Verdict.NEW) and not (isinstance(message, Reply) and conversation.state is before):
            assert TABLE[before, speaker, message.event] is conversation.state
        if before in OVER:
            assert conversation.state is before


def test_every_state_can_be_reached_and_left() -> None:
    assert set(TABLE.values()) | {State.CONNECTED} == set(State)
    assert {state for state, _, _ in TABLE} == set(OPEN)


def test_the_docs_show_this_table() -> None:
    assert f"```mermaid\n{build_diagram()}\n```" in (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
