"""What can go wrong: every kind of fault, how it is made, what must follow, and which event it must leave.

The table of docs/faults.md is made from KINDS. A fault happens after `after` settled visits, when its client next comes
to the word that the kind names; kinds that happen at a step wait for step `step` of the visit.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from splitrelay.errors import InputError, OutOfRange, UnknownName
from splitrelay.network.connection_handler import FED
from splitrelay.randomness import Purpose, rng
from splitrelay.runs.spec import Spec

ENDS = ("kill-server", "kill-relay", "stop-server", "full-disk")  # what ends the server
FALSE_LEASES = ("false-steps", "false-rate", "false-round")  # of a malicious server
SKIPPED = ("stay-away", "extra-step", *FALSE_LEASES)  # what costs a client its visit, where visits may be skipped
LOST = ("lost", "gone", "resumed", "restarted")


@dataclass(frozen=True)
class Kind:
    """How a fault is made; the word at which it happens; what follows; the events, one of which it leaves."""

    made: str
    at: str  # turn (any word of a visit), step, finish, handed, deposit from the client; lease, reply, commit from it
    follows: str
    events: tuple[str, ...] = ()  # none: the server cannot know of it
    why: str = ""  # what the event says
    own: bool = True  # the event names the fault's client
    whose: int | None = None  # or whom else


RESUMED = "the client connects again; the visit goes on at its step"
AGAIN = "started again, it finds what was committed; the visit is made again"
WRONG = "the link is refused with the reason; the client connects again and says it right"
LEFT = "the client sends nothing of the visit, leaves with code 2 and the reason; started again, it makes the visit"
KINDS: dict[str, Kind] = {
    "kill-server": Kind("kill -9", "turn", AGAIN, ("listening",), own=False),
    "stop-server": Kind("SIGTERM", "turn", "it says goodbye; " + AGAIN, ("closing",), "stopped", own=False),
    "kill-relay": Kind("kill -9 with a half on its way up", "deposit", AGAIN, ("listening",), own=False),
    "full-disk": Kind(
        "the kernel refuses the server's writes (RLIMIT_FSIZE)",
        "deposit",
        "the server stops with one line; " + AGAIN,
        ("listening",),
        own=False,
    ),
    "kill-client": Kind("kill -9", "turn", "started again, it makes the visit from its start", LOST),
    "stay-away": Kind(
        "kill -9, and back when the lease is over",
        "turn",
        "the visit is taken back and made again, or skipped and recorded",
        ("expired", "skipped"),
    ),
    "kill-giver": Kind(
        "kill -9 when the half is with the next client and not yet deposited",
        "handed",
        "the next deposit makes it good, or the visit is made again",
        (*LOST, "unpaid", "undone"),
    ),
    "kill-fed": Kind(
        "kill -9 of the fed server",
        "turn",
        "started again, it is asked once more; what it has made is not made again",
        ("gone", "arrived"),
        whose=FED,
    ),
    "lost-handed": Kind("the word handed is lost with its connection", "handed", RESUMED, LOST),
    "cut": Kind("the proxy ends the connection", "turn", RESUMED, LOST),
    "lost-reply": Kind("the answer to a step is lost with its connection", "reply", RESUMED, LOST),
    "lost-commit": Kind("the word commit is lost with its connection", "commit", "the visit counts, once", LOST),
    "silence": Kind("nothing is carried for 3 s, then the connection ends", "turn", RESUMED, LOST),
    "half-open": Kind("the connection stays open and carries nothing more", "turn", RESUMED, LOST),
    "delay": Kind("every piece comes 20 ms late from then on", "turn", "nothing but the delay"),
    "stranger": Kind("bytes that are no TLS at the server's port", "turn", "their connections end"),
    "duplicate": Kind("a step is sent twice", "step", "the same answer, twice; the step counts once", ("repeated",)),
    "reorder": Kind("the half goes before the word that ends the steps", "finish", WRONG, ("refused",), "no place"),
    "leap": Kind("a step carries the number of the next one", "step", WRONG, ("refused",), "out of order"),
    "replay": Kind("a step of an earlier visit, byte for byte", "step", "dropped, or refused", ("stale", "refused")),
    "wrong-fence": Kind("a step under a fence that nobody has", "step", WRONG, ("refused",), "of another visit"),
    "extra-step": Kind(
        "one step more than K",
        "finish",
        "the visit is taken back and made again, or skipped and recorded",
        ("failed",),
        "too many steps",
    ),
    "nan": Kind("smashed data with a NaN", "step", WRONG, ("refused",), "NaN"),
    "labels": Kind("a label that is no class", "step", WRONG, ("refused",), "labels out of range"),
    "shape": Kind("smashed data of another shape", "step", WRONG, ("refused",), "shape of a sample"),
    "corrupt": Kind("a bit of a frame is flipped", "step", WRONG, ("refused",), "checksum"),
    "false-terms": Kind(
        "malicious server: the connection ends, and the next terms name another K, with a digest that fits",
        "turn",
        "the client refuses the terms and leaves with code 2; started again, it makes the visit",
        LOST,
    ),
    "false-steps": Kind("malicious server: a lease of 999 steps more", "lease", LEFT, ("failed",)),
    "false-rate": Kind("malicious server: a lease with another eta", "lease", LEFT, ("failed",)),
    "false-round": Kind("malicious server: a lease of a round after the last", "lease", LEFT, ("failed",)),
    "false-gradient": Kind(
        "malicious server: a gradient for another number of samples",
        "reply",
        "the client ends the connection, connects again and makes the visit from its start",
        LOST,
    ),
    "wrong-spec": Kind(
        "valid keys, another spec", "turn", "refused for good", ("refused",), "this run is of spec", own=False
    ),
    "another-name": Kind(
        "valid keys, another client's number", "turn", "refused for good", ("refused",), "is not that of", own=False
    ),
}


@dataclass(frozen=True)
class Fault:
    """What happens, after how many settled visits, to which client, at which of its steps."""

    kind: str
    after: int
    client: int = 0
    step: int = 0

    def __str__(self) -> str:
        return f"{self.kind} of client {self.client} at step {self.step}, after {self.after} visits"


def read_plan(file: Path) -> list[Fault]:
    """A plan from a TOML file: [[fault]] kind, after, client, step."""
    try:
        entries = tomllib.loads(file.read_text(encoding="utf-8"))["fault"]
        faults = [_fault(entry) for entry in entries]
    except (OSError, ValueError, KeyError, TypeError) as error:
        hint = "Each fault is a [[fault]] with kind, after, client and step."
        raise InputError(f"cannot read the plan {file}", value=str(error), hint=hint) from None
    for fault in faults:
        if fault.kind not in KINDS:
            raise UnknownName("fault", fault.kind, KINDS)
    return sorted(faults, key=lambda fault: fault.after)


def _fault(entry: dict[str, Any]) -> Fault:
    return Fault(str(entry["kind"]), int(entry["after"]), int(entry.get("client", 0)), int(entry.get("step", 0)))


def check_faults(faults: Sequence[Fault], spec: Spec, clients: Sequence[int], possible: Sequence[str]) -> None:
    """What cannot happen in a run of this spec is said before it begins."""
    for fault in faults:
        if fault.kind not in possible:
            raise InputError(f"{fault.kind} cannot happen here", hint="Possible: " + ", ".join(possible) + ".")
        if fault.client not in clients:
            raise OutOfRange("the client of a fault", value=fault.client, limit=f"one of {list(clients)}")
        if not 0 <= fault.step < spec.K:
            raise OutOfRange("the step of a fault", value=fault.step, limit=f"0 to {spec.K - 1}")


def list_possible_kinds(
    spec: Spec, clients: int, insecure: bool = False, direct: bool = False, fed: bool = False
) -> list[str]:
    """Kinds that can happen: there are no steps where the whole model is at the client, and no names without keys."""
    whole = spec.placement == "whole"
    here = [name for name, kind in KINDS.items() if not (whole and kind.at in ("step", "reply", "finish"))]
    here = [name for name in here if (name != "replay" or spec.R > 1) and (KINDS[name].at != "handed" or direct)]
    here = [name for name in here if name != "kill-fed" or fed]
    return [name for name in here if name != "another-name" or (clients > 1 and not insecure)]


def draw_plan(seed: int, spec: Spec, clients: Sequence[int], kinds: Sequence[str], away: str = "wait") -> list[Fault]:
    """One to five faults by name, at any moment up to the start of the last round; one is a skip where that may be."""
    draw = rng(seed, Purpose.INSTANCES)
    names = [kinds[int(draw.integers(len(kinds)))] for _ in range(int(draw.integers(1, 6)))]
    if away == "skip":
        names[0] = "stay-away"
    visits = spec.S or len(clients)
    faults = [
        Fault(
            name,
            int(draw.integers(max(0, _rounds(name, spec.R, away)) * visits + 1)),
            int(clients[int(draw.integers(len(clients)))]),
            int(draw.integers(spec.K)),
        )
        for name in names
    ]
    faults.sort(key=lambda fault: fault.after)
    return [fault for at, fault in enumerate(faults) if away != "skip" or not _gone_by_then(fault, faults[:at])]


def _gone_by_then(fault: Fault, earlier: Sequence[Fault]) -> bool:
    """Who was skipped may not be back before the last round, and is not troubled so again."""
    return fault.kind in SKIPPED and any(one.kind in SKIPPED and one.client == fault.client for one in earlier)


def _rounds(name: str, R: int, away: str) -> int:
    """Rounds after which it is too late: a skipped visit cannot be troubled, the last one is handed to nobody."""
    return R - 1 - (away == "skip" or name in ("lost-commit", "kill-giver", "lost-handed"))


def table() -> str:
    """Every kind, as docs/faults.md shows it."""
    lines = ["| kind | how it is made | at which word | what must follow | event |", "|---|---|---|---|---|"]
    for name, kind in KINDS.items():
        events = ", ".join(kind.events) or "none"
        events += f": ...{kind.why}..." if kind.why else ""
        lines.append(f"| `{name}` | {kind.made} | {kind.at} | {kind.follows} | {events} |")
    return "\n".join(lines)
