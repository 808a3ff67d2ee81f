"""What taking part costs a client, measured: its program tells of seconds and memory, the sockets of bytes."""

from __future__ import annotations

import json
import math
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Any

from splitrelay.atomic_files import write_text
from splitrelay.errors import InputError
from splitrelay.network.messages import UsageReport
from splitrelay.network.socket_counters import SocketTraffic
from splitrelay.structured_text import parse_json


class UsageTimer:
    """A client's own account; `waited` tells how long it has waited for others so far."""

    def __init__(self, waited: Callable[[], float]) -> None:
        self.waited = waited
        self.program = time.time_ns()  # a name, not a time: nobody compares it with a clock
        self.visits, self.waiting, self.computing = 0, 0.0, 0.0
        self._since: tuple[float, float] | None = None  # the time, and what had been waited then; None between visits

    @contextmanager
    def visit(self) -> Iterator[None]:
        """One visit: what is not waiting is computing. One that comes to nothing costs, but is none."""
        self.visits, self._since = self.visits + 1, self._now()
        try:
            yield
        except BaseException:
            self.visits -= 1
            raise
        finally:
            self._settle()
            self._since = None

    def paid(self) -> UsageReport:
        """So far, in words for the server; said with the deposit, so that the record has it when the visit counts."""
        self._settle()
        return UsageReport(self.program, self.visits, self.waiting, self.computing, get_peak_memory())

    def _now(self) -> tuple[float, float]:
        return time.monotonic(), self.waited()

    def _settle(self) -> None:
        if self._since is None:
            return
        (began, before), self._since = self._since, self._now()
        waiting = self._since[1] - before
        self.waiting += waiting
        self.computing += max(self._since[0] - began - waiting, 0.0)


def get_peak_memory() -> int:
    """Bytes of this process at its largest."""
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@dataclass(frozen=True)
class Usage:
    """What one client has paid so far, over all its programs and links."""

    visits: int = 0
    waiting_seconds: float = 0.0  # of its visits
    computing_seconds: float = 0.0
    memory_bytes: int = 0  # of its largest program, at the peak
    socket_messages: int = 0
    socket_bytes_up: int | None = None  # None where the server's system does not count
    socket_bytes_down: int | None = None

    def __add__(self, other: Usage) -> Usage:
        mine, carried = _get_traffic(self), _get_traffic(other)
        return _with_traffic(
            Usage(
                self.visits + other.visits,
                self.waiting_seconds + other.waiting_seconds,
                self.computing_seconds + other.computing_seconds,
                max(self.memory_bytes, other.memory_bytes),
            ),
            mine + carried,
        )


@dataclass(frozen=True)
class ClientUsage:
    """A client's programs: those that have ended, and the one that spoke last. Sockets are with the past."""

    past: Usage = Usage()
    program: int = 0
    now: Usage = Usage()

    @property
    def bill(self) -> Usage:
        """All of them."""
        return self.past + self.now

    def told(self, paid: UsageReport) -> ClientUsage:
        """After the client's own words; those of a program that is new mean that the one before has ended."""
        past = self.past if paid.program == self.program else self.bill
        return ClientUsage(past, paid.program, Usage(paid.visits, paid.waiting, paid.computing, paid.memory))


class UsageLog:
    """All accounts of a run, kept beside its journal; written now and then, as nothing depends on it."""

    def __init__(
        self,
        path: Path,
        said: Callable[[], Mapping[int, UsageReport]],
        carried: Callable[[], Mapping[int, SocketTraffic]],
    ) -> None:
        self.path, self.said, self.carried = path, said, carried
        self._lock = threading.Lock()  # the status is read on another thread than the run
        self._accounts = read_usage(path)

    def accounts(self) -> dict[int, ClientUsage]:
        """Every client's, with what it said last and what the sockets say now."""
        with self._lock:
            for m, paid in self.said().items():
                self._accounts[m] = self._accounts.get(m, ClientUsage()).told(paid)
            known = dict(self._accounts)
        for m, more in self.carried().items():
            account = known.get(m, ClientUsage())
            known[m] = replace(account, past=account.past + _with_traffic(Usage(), more))
        return dict(sorted(known.items()))

    def bills(self) -> dict[int, Usage]:
        """What each client has paid."""
        return {m: account.bill for m, account in self.accounts().items()}

    def row(self) -> dict[str, Any]:
        """All clients together, as a row of the record has it."""
        return sum_usage(self.bills().values())

    def save(self) -> None:
        """For `cost --measured`, and for the next start of the server."""
        content = json.dumps({m: asdict(account) for m, account in self.accounts().items()})
        write_text(self.path, content + "\n", private=True)


def sum_usage(bills: Iterable[Usage]) -> dict[str, Any]:
    """Several clients together: seconds and bytes add up, of the memory the largest is taken."""
    whole = asdict(sum(bills, Usage()))
    return {name: value for name, value in whole.items() if name != "visits"}


def read_usage(path: Path) -> dict[int, ClientUsage]:
    """Read what was saved, if anything was. Raises InputError where the file is damaged."""
    if not path.exists():
        return {}
    try:
        saved = parse_json(path.read_text(encoding="ascii"))
        return {int(m): _parse_usage(account) for m, account in saved.items()}
    except OSError as error:
        raise InputError(f"cannot read {path}", value=error.strerror, hint="Make it readable.") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        hint = "Remove it: what the clients have paid so far is lost with it, and nothing else."
        raise InputError(f"{path} is damaged", hint=hint) from None


def _parse_usage(saved: Mapping[str, Any]) -> ClientUsage:
    account = ClientUsage(Usage(**saved["past"]), saved["program"], Usage(**saved["now"]))
    for number in (account.program, *astuple(account.past), *astuple(account.now)):
        if number is not None and not (isinstance(number, int | float) and math.isfinite(number)):
            raise ValueError(number)
    return account


def _get_traffic(bill: Usage) -> SocketTraffic:
    return SocketTraffic(bill.socket_messages, bill.socket_bytes_up, bill.socket_bytes_down)


def _with_traffic(bill: Usage, carried: SocketTraffic) -> Usage:
    return replace(bill, socket_messages=carried.messages, socket_bytes_up=carried.up, socket_bytes_down=carried.down)
