"""All kinds of faults: how each is made, what must follow, and which event the server must record.

The table of docs/faults.md is generated from KINDS. A fault is due after `after` settled visits, as soon as its client
sends or receives the message that the kind names. Kinds that happen at a step wait for step `step` of the visit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from splitrelay.errors import InputError, OutOfRange, UnknownName
from splitrelay.network.server_connection import FED_SERVER_NUMBER
from splitrelay.randomness import Purpose, rng
from splitrelay.runs.spec import Spec
from splitrelay.structured_text import parse_toml

SERVER_STOPS = ("kill-server", "kill-relay", "stop-server", "full-disk")  # kinds that end the server
VISIT_MESSAGES = ("step", "finish", "chunk", "deposit")  # at which a fault "at any message of a visit" happens
FALSE_LEASES = ("false-steps", "false-rate", "false-round")  # sent by a malicious server
# Kinds after which the visit is skipped, if the policy allows it.
SKIPPING_KINDS = ("stay-away", "extra-step", *FALSE_LEASES)
# Kinds after which the message is not sent again. No other fault can happen at the same message.
PASSING_KINDS = (
    *("duplicate", "replay", "delay", "stranger", "wrong-spec", "another-name"),
    *("kill-fed", "kill-giver", "lost-commit"),
)
FAILURE_EVENTS = ("failed", "unopened")  # a visit that fails before its first step, of a half sent by another client
CONNECTION_EVENTS = ("lost", "gone", "resumed", "restarted")


@dataclass(frozen=True)
class Kind:
    """One kind of fault.

    Attributes:
        method: How the fault is made.
        at: The message at which it happens: "visit" (any message of a visit), step, finish, handed or deposit from the
            client; lease, reply or commit from the server.
        result: What must happen next.
        events: Events of which the server must record one; empty if the server cannot notice the fault.
        why: Text that the event must contain.
        names_client: Whether the event names a client.
        client: The client that the event names; None for the client of the fault.
    """

    method: str
    at: str
    result: str
    events: tuple[str, ...] = ()
    why: str = ""
    names_client: bool = True
    client: int | None = None


RECONNECT = "the client reconnects; the visit continues at its step"
REPEATED_VISIT = "after a restart the server finds what was committed; the visit is repeated"
REFUSED_MESSAGE = "the server ends the connection with the reason; the client reconnects and sends the correct message"
CLIENT_EXIT = (
    "the client sends nothing of the visit and exits with code 2 and the reason; after a restart it completes the visit"
)
KINDS: dict[str, Kind] = {
    "kill-server": Kind("kill -9", "visit", REPEATED_VISIT, ("listening",), names_client=False),
    "stop-server": Kind(
        "SIGTERM",
        "visit",
        "the server tells its clients and ends; " + REPEATED_VISIT,
        ("closing",),
        "stopped",
        names_client=False,
    ),
    "kill-relay": Kind(
        "kill -9 while a client half is being uploaded", "deposit", REPEATED_VISIT, ("listening",), names_client=False
    ),
    "full-disk": Kind(
        "the kernel refuses the server's writes (RLIMIT_FSIZE)",
        "deposit",
        "the server stops with an error; " + REPEATED_VISIT,
        ("listening",),
        names_client=False,
    ),
    "kill-client": Kind(
        "kill -9", "visit", "after a restart the client repeats the visit from its start", CONNECTION_EVENTS
    ),
    "stay-away": Kind(
        "kill -9; the client returns when the lease has expired",
        "visit",
        "the visit is cancelled and repeated, or skipped and recorded",
        ("expired", "skipped"),
    ),
    "kill-giver": Kind(
        "kill -9 when the next client has the half and it is not yet deposited",
        "handed",
        "the next deposit replaces it, or the visit is repeated",
        (*CONNECTION_EVENTS, "unpaid", "undone"),
    ),
    "kill-fed": Kind(
        "kill -9 of the fed server",
        "visit",
        "after a restart the fed server is asked again; finished averages are not repeated",
        ("gone", "arrived"),
        client=FED_SERVER_NUMBER,
    ),
    "lost-handed": Kind("the message handed is lost with its connection", "handed", RECONNECT, CONNECTION_EVENTS),
    "cut": Kind("the proxy ends the connection", "visit", RECONNECT, CONNECTION_EVENTS),
    "lost-reply": Kind("the reply to a step is lost with its connection", "reply", RECONNECT, CONNECTION_EVENTS),
    "lost-commit": Kind(
        "the message commit is lost with its connection", "commit", "the visit counts, once", CONNECTION_EVENTS
    ),
    "silence": Kind("nothing is forwarded for 3 s, then the connection ends", "visit", RECONNECT, CONNECTION_EVENTS),
    "half-open": Kind(
        "the connection stays open, but nothing more is forwarded", "visit", RECONNECT, CONNECTION_EVENTS
    ),
    "delay": Kind("all data are delayed by 20 ms from then on", "visit", "only the delay"),
    "stranger": Kind("bytes that are not TLS are sent to the server's port", "visit", "their connections end"),
    "duplicate": Kind("a step is sent twice", "step", "the same reply twice; the step counts once", ("repeated",)),
    "reorder": Kind(
        "the half is sent before the message that ends the steps", "finish", REFUSED_MESSAGE, ("refused",), "no place"
    ),
    "leap": Kind("a step has the number of the next one", "step", REFUSED_MESSAGE, ("refused",), "out of order"),
    "replay": Kind(
        "a step of an earlier visit, byte for byte", "step", "the server drops or refuses it", ("stale", "refused")
    ),
    "wrong-fence": Kind(
        "a step with a fence that does not exist", "step", REFUSED_MESSAGE, ("refused",), "of another visit"
    ),
    "extra-step": Kind(
        "one step more than K is sent",
        "finish",
        "the visit is cancelled and repeated, or skipped and recorded",
        ("failed",),
        "too many steps",
    ),
    "nan": Kind("smashed data with a NaN", "step", REFUSED_MESSAGE, ("refused",), "NaN"),
    "labels": Kind("a label that is not a class", "step", REFUSED_MESSAGE, ("refused",), "labels out of range"),
    "shape": Kind("smashed data of another shape", "step", REFUSED_MESSAGE, ("refused",), "shape of a sample"),
    "corrupt": Kind("a bit of a frame is flipped", "step", REFUSED_MESSAGE, ("refused",), "checksum"),
    "false-terms": Kind(
        "malicious server: the connection ends, and the next terms name another K, with a digest that fits",
        "visit",
        "the client refuses the terms and exits with code 2; after a restart it completes the visit",
        CONNECTION_EVENTS,
    ),
    "false-steps": Kind("malicious server: a lease of 999 steps more", "lease", CLIENT_EXIT, FAILURE_EVENTS),
    "false-rate": Kind("malicious server: a lease with another eta", "lease", CLIENT_EXIT, FAILURE_EVENTS),
    "false-round": Kind("malicious server: a lease of a round after the last", "lease", CLIENT_EXIT, FAILURE_EVENTS),
    "false-gradient": Kind(
        "malicious server: a gradient for another number of samples",
        "reply",
        "the client ends the connection, connects again and repeats the visit from its start",
        CONNECTION_EVENTS,
    ),
    "wrong-spec": Kind(
        "valid keys, another spec",
        "visit",
        "the server refuses the peer permanently",
        ("refused",),
        "this run is of spec",
        names_client=False,
    ),
    "another-name": Kind(
        "valid keys, another client's number",
        "visit",
        "the server refuses the peer permanently",
        ("refused",),
        "is not that of",
        names_client=False,
    ),
}


@dataclass(frozen=True)
class Fault:
    """One fault of a plan: its kind, the number of settled visits before it, its client, and the step."""

    kind: str
    after: int
    client: int = 0
    step: int = 0

    def __str__(self) -> str:
        return f"{self.kind} of client {self.client} at step {self.step}, after {self.after} visits"


def read_plan(file: Path) -> list[Fault]:
    """Read a fault plan from a TOML file with entries [[fault]] kind, after, client, step; sort it by `after`."""
    try:
        entries = parse_toml(file.read_text(encoding="utf-8"))["fault"]
        faults = [
            Fault(str(entry["kind"]), int(entry["after"]), int(entry.get("client", 0)), int(entry.get("step", 0)))
            for entry in entries
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        hint = "Each fault is a [[fault]] with kind, after, client and step."
        raise InputError(f"cannot read the plan {file}", value=str(error), hint=hint) from None
    for fault in faults:
        if fault.kind not in KINDS:
            raise UnknownName("fault", fault.kind, KINDS)
    return sorted(faults, key=lambda fault: fault.after)


def check_faults(faults: Sequence[Fault], spec: Spec, clients: Sequence[int], possible: Sequence[str]) -> None:
    """Raise an error if a fault cannot happen in a run of this spec."""
    for fault in faults:
        if fault.kind not in possible:
            raise InputError(
                f"the fault {fault.kind} cannot happen in this rehearsal", hint="Possible: " + ", ".join(possible) + "."
            )
        if fault.client not in clients:
            raise OutOfRange("the client of a fault", value=fault.client, limit=f"one of {list(clients)}")
        steps = spec.tau[fault.client] if isinstance(spec.tau, tuple) else spec.K
        if not 0 <= fault.step < steps:
            raise OutOfRange("the step of a fault", value=fault.step, limit=f"0 to {steps - 1}")


def list_possible_kinds(
    spec: Spec, clients: int, insecure: bool = False, direct: bool = False, fed: bool = False
) -> list[str]:
    """Return the kinds that can happen: no steps if the client has the whole model, no other names without keys."""
    whole = spec.placement == "whole"
    here = [name for name, kind in KINDS.items() if not (whole and kind.at in ("step", "reply", "finish"))]
    here = [name for name in here if (name != "replay" or spec.R > 1) and (KINDS[name].at != "handed" or direct)]
    here = [name for name in here if name != "kill-fed" or fed]
    return [name for name in here if name != "another-name" or (clients > 1 and not insecure)]


def draw_plan(
    seed: int,
    spec: Spec,
    clients: Sequence[int],
    kinds: Sequence[str],
    away: str = "wait",
    order: Callable[[int], Sequence[int]] | None = None,
) -> list[Fault]:
    """Draw one to five faults before the last round; include one skipped visit if the policy allows it.

    A fault is left out if the faults before it take all messages at which it could happen. A fault of a client that
    has no visit late enough happens to another client.

    Args:
        seed: The seed of the plan.
        spec: The spec of the run.
        clients: All clients of the run.
        kinds: The kinds to choose from.
        away: What the server does when a client is absent.
        order: Returns the clients that are visited in a round; by default all clients.
    """
    draw = rng(seed, Purpose.INSTANCES)
    names = [kinds[int(draw.integers(len(kinds)))] for _ in range(int(draw.integers(1, 6)))]
    if away == "skip":
        names[0] = "stay-away"
    rounds = [list(clients if order is None else order(r)) for r in range(spec.R)]
    visits = spec.S or len(clients)
    faults = [
        Fault(
            name,
            int(draw.integers(max(0, _last_round(name, spec.R, away)) * visits + 1)),
            int(clients[int(draw.integers(len(clients)))]),
            int(draw.integers(min(spec.tau) if isinstance(spec.tau, tuple) else spec.K)),
        )
        for name in names
    ]
    faults = [_choose_visited_client(fault, spec, rounds, visits, away) for fault in faults]
    faults.sort(key=lambda fault: fault.after)
    faults = [fault for at, fault in enumerate(faults) if away != "skip" or not _is_client_away(fault, faults[:at])]
    for excluded in [fault for m in clients for fault in find_excluded_faults(faults, spec, m, visits, rounds)]:
        faults.remove(excluded)
    return faults


def _choose_visited_client(fault: Fault, spec: Spec, rounds: Sequence[Sequence[int]], visits: int, away: str) -> Fault:
    """Return the fault, for another client if its own has no visit at which the fault can happen.

    A replay needs two visits of one client. If no client has them late enough, the fault is returned unchanged.
    """
    last = _last_round(fault.kind, spec.R, away)
    late = [
        m for r, round_clients in enumerate(rounds) if fault.after <= r * visits and r <= last for m in round_clients
    ]
    for m in [fault.client, *late]:
        one = replace(fault, client=m)
        if m in late and not find_excluded_faults([one], spec, m, visits, rounds):
            return one
    return fault


def find_excluded_faults(
    faults: Sequence[Fault], spec: Spec, m: int, visits: int, rounds: Sequence[Sequence[int]] | None = None
) -> list[Fault]:
    """Return the faults of client m that cannot happen because others take the messages that they need.

    Go through the messages of the client, visit by visit, as `FaultScheduler` does. Assume the worst: a fault is due
    only in the first round that begins after `after` visits, a half has one chunk, and a visit is not repeated.

    Args:
        faults: The plan, sorted by `after`.
        spec: The spec of the run.
        m: The client.
        visits: The number of visits per round.
        rounds: The clients that are visited in each round; by default m is visited once in each.
    """
    waiting = [fault for fault in faults if fault.client == m]
    made = [r for r in range(spec.R) for other in ([m] if rounds is None else rounds[r]) if other == m]
    for number, r in enumerate(made):
        for message, k in _list_visit_messages(spec, m, is_last=r == spec.R - 1 > 0):
            for fault in [one for one in waiting if one.after <= r * visits and is_at_message(one, message, k)]:
                if fault.kind == "replay" and number == 0:  # there is no earlier step to send
                    continue
                waiting.remove(fault)
                if fault.kind in PASSING_KINDS:
                    break
    return waiting


def is_at_message(fault: Fault, message: str, k: int) -> bool:
    """Return whether a fault can happen at this message, which belongs to step k if it is a step or a reply."""
    at = KINDS[fault.kind].at
    fits = message in VISIT_MESSAGES if at == "visit" else message == at
    return fits and not (message in ("step", "reply") and k < fault.step)


def _list_visit_messages(spec: Spec, m: int, is_last: bool) -> list[tuple[str, int]]:
    """Return the messages of a visit with their steps. The last visit of a run is not handed to a next client."""
    steps = 0 if spec.placement == "whole" else spec.tau[m] if isinstance(spec.tau, tuple) else spec.K
    training = [(message, k) for k in range(steps) for message in ("step", "reply")]
    ending = ["finish"] * (steps > 0) + ["handed"] * (not is_last) + ["chunk", "deposit", "commit"]
    return [("lease", 0), *training, *((message, 0) for message in ending)]


def _is_client_away(fault: Fault, earlier: Sequence[Fault]) -> bool:
    """Return whether an earlier fault may keep the client away until the last round."""
    return fault.kind in SKIPPING_KINDS and any(
        one.kind in SKIPPING_KINDS and one.client == fault.client for one in earlier
    )


def _last_round(name: str, R: int, away: str) -> int:
    """Return the last round in which a fault can happen: the last visit of a run has no next client."""
    return R - 1 - (away == "skip" or name in ("lost-commit", "kill-giver", "lost-handed"))


def format_kinds() -> str:
    """Return the table of all kinds for docs/faults.md."""
    lines = ["| kind | how it is made | at which message | what must follow | event |", "|---|---|---|---|---|"]
    for name, kind in KINDS.items():
        events = ", ".join(kind.events) or "none"
        events += f": ...{kind.why}..." if kind.why else ""
        lines.append(f"| `{name}` | {kind.method} | {kind.at} | {kind.result} | {events} |")
    return "\n".join(lines)
