"""The protocol as one table for both ends of a connection, without input or output.

Each end tells its Conversation what it sends and what it receives. A message that the table does not have in the
current state ends in `refused`. Messages can cross: a message of a visit that the server has just cancelled is stale
and changes nothing, and a repeated step gets the same answer again.
"""

from __future__ import annotations

from enum import StrEnum

from splitrelay.network.codec import BadMessage
from splitrelay.network.messages import Message, Reply, Step


class State(StrEnum):
    """State of a conversation."""

    CONNECTED = "connected"  # nothing has been said
    GREETED = "greeted"  # the client has said who it is
    OFFERED = "offered"  # the server has said what it asks for
    AGREED = "agreed"  # the client has accepted; is there a place for it?
    IDLE = "idle"  # waiting for a turn
    LEASED = "leased"  # a visit is granted, its half is on the way down
    STEPPING = "stepping"  # the client computes
    COMPUTING = "computing"  # the server computes
    HANDING = "handing"  # the half is on the way up
    DEPOSITED = "deposited"  # the server is about to commit
    LOOKING = "looking"  # the evaluator has a half to score
    ANSWERING = "answering"  # the server computes outputs for it
    LEFT = "left"
    REFUSED = "refused"

    __hash__ = str.__hash__  # an enum's own is slow, and every word looks into the table


class End(StrEnum):
    """The two ends of a connection."""

    CLIENT = "client"
    SERVER = "server"

    __hash__ = str.__hash__


S, C = End.SERVER, End.CLIENT
Table = dict[tuple[State, End, str], State]

HANDSHAKE: Table = {
    (State.CONNECTED, C, "hello"): State.GREETED,
    (State.GREETED, S, "terms"): State.OFFERED,
    (State.OFFERED, C, "accept"): State.AGREED,
    (State.AGREED, S, "welcome"): State.IDLE,
    (State.AGREED, S, "resume"): State.STEPPING,
}
VISIT: Table = {
    (State.IDLE, S, "lease"): State.LEASED,
    (State.LEASED, S, "chunk"): State.LEASED,
    (State.LEASED, C, "want"): State.LEASED,  # what the client before should have handed over has not come
    (State.LEASED, C, "ready"): State.STEPPING,
    (State.STEPPING, C, "step"): State.COMPUTING,
    (State.COMPUTING, S, "reply"): State.STEPPING,
    (State.STEPPING, C, "finish"): State.HANDING,
    (State.STEPPING, C, "chunk"): State.HANDING,  # the whole model is at the client: nothing to finish
    (State.HANDING, C, "handed"): State.HANDING,  # to the next client; the deposit follows
    (State.HANDING, C, "chunk"): State.HANDING,
    (State.HANDING, C, "deposit"): State.DEPOSITED,
    (State.DEPOSITED, S, "commit"): State.IDLE,
}
LOOK: Table = {
    (State.IDLE, S, "look"): State.LOOKING,
    (State.LOOKING, S, "chunk"): State.LOOKING,
    (State.LOOKING, C, "predict"): State.ANSWERING,
    (State.ANSWERING, S, "output"): State.LOOKING,
    (State.LOOKING, C, "score"): State.IDLE,
    (State.LOOKING, C, "chunk"): State.HANDING,  # the fed server gives back what it made of several halves
}
HELD = (State.LEASED, State.STEPPING, State.COMPUTING, State.HANDING, State.DEPOSITED, State.LOOKING, State.ANSWERING)
OVER = (State.LEFT, State.REFUSED)
FREE = ("heartbeat", "paid", "leave", "bye", "refuse")  # words of no visit
OPEN = tuple(state for state in State if state not in OVER)
MET = tuple(state for state in OPEN if state is not State.CONNECTED)  # before its greeting a client says nothing else
TABLE: Table = {
    **HANDSHAKE,
    **VISIT,
    **LOOK,
    **{(state, S, "cancel"): State.IDLE for state in HELD},
    **{(state, C, "fail"): State.IDLE for state in HELD},
    **{(state, C, "heartbeat"): state for state in MET},
    **{(state, S, "heartbeat"): state for state in OPEN},
    **{(state, C, "paid"): state for state in (State.IDLE, *HELD)},
    **{(state, C, "leave"): State.LEFT for state in MET},
    **{(state, S, "bye"): State.LEFT for state in OPEN},
    **{(state, S, "refuse"): State.REFUSED for state in OPEN},
}


class Verdict(StrEnum):
    """What to do with a received message."""

    NEW = "new"
    AGAIN = "again"  # a step that was answered, or is being answered: the same answer
    STALE = "stale"  # of a visit that is over: nothing


class Conversation:
    """The state of one connection as one end sees it. `speaker` is that end."""

    def __init__(self, speaker: End) -> None:
        self.speaker, self.other = speaker, C if speaker is S else S
        self.state = State.CONNECTED
        self.fence = 0  # of the visit that is going on
        self.passed = 0  # the highest fence that is over
        self.answered = 0  # steps of it that have a reply

    def record_sent(self, message: Message) -> None:
        """Record a message that this end sends. Raises BadMessage for a mistake of our own."""
        if not (isinstance(message, Reply) and message.k < self.answered):  # else a reply given once more
            self._move(self.speaker, message)

    def record_received(self, message: Message) -> Verdict:
        """Record a message of the other end. Raises BadMessage if it is not allowed now."""
        fence = message.fence
        if 0 < fence <= self.passed and message.event not in ("lease", "look", "accept", "resume"):
            return Verdict.STALE
        if self._is_repeated(message):
            return Verdict.AGAIN
        self._move(self.other, message)
        return Verdict.NEW

    def _is_repeated(self, message: Message) -> bool:
        """A step whose reply may have been lost, or is still to come; a reply that came before."""
        if isinstance(message, Reply) and message.fence == self.fence:
            return message.k < self.answered
        if not isinstance(message, Step) or message.fence != self.fence:
            return False
        asked = self.answered if self.state is State.COMPUTING else self.answered - 1
        return self.state in (State.STEPPING, State.COMPUTING) and message.k == asked >= 0

    def _move(self, end: End, message: Message) -> None:
        event, fence = message.event, message.fence
        there = TABLE.get((self.state, end, event))
        if there is None:
            where, self.state = self.state, State.REFUSED
            raise BadMessage(f"{event} from the {end} has no place in state {where}")
        if event in ("lease", "look", "resume"):
            if fence <= self.passed:
                self.state = State.REFUSED
                raise BadMessage("a fence that is over was granted again", value=fence, limit=f"> {self.passed}")
            self.fence, self.answered = fence, 0
        elif self.state in HELD and event not in FREE and fence != self.fence:
            self.state = State.REFUSED
            raise BadMessage(f"{event} of another visit", value=fence, limit=f"fence {self.fence}")
        if isinstance(message, Step) and message.k != self.answered:
            self.state = State.REFUSED
            raise BadMessage("a step out of order", value=message.k, limit=f"step {self.answered}")
        if isinstance(message, Reply):
            if message.k != self.answered:
                self.state = State.REFUSED
                raise BadMessage("a reply to another step", value=message.k, limit=f"step {self.answered}")
            self.answered = message.k + 1
        if self.state in HELD and there is State.IDLE:
            self.passed, self.fence = max(self.passed, self.fence), 0
        self.state = there

    def set_answered(self, answered: int) -> None:
        """Set how many steps of a resumed visit were answered on an earlier connection."""
        self.answered = answered


def build_diagram() -> str:
    """Return the table as a Mermaid diagram, without the messages that every state allows."""
    shown = {**HANDSHAKE, **VISIT, **LOOK}
    lines = ["stateDiagram-v2", f"    [*] --> {State.CONNECTED}"]
    lines += [f"    {state} --> {there}: {end} {event}" for (state, end, event), there in shown.items()]
    return "\n".join(lines)
