"""Measure what a client spends: its program reports seconds and memory, the sockets of the server count bytes."""

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
    """Measures one client program. `waited` returns the seconds that it has waited for others so far."""

    def __init__(self, waited: Callable[[], float]) -> None:
        self.waited = waited
        self.program = time.time_ns()  # a name of this program; it is not used as a time
        self.visits, self.waiting, self.computing = 0, 0.0, 0.0
        self._since: tuple[float, float] | None = None  # the time, and what had been waited then; None between visits

    @contextmanager
    def visit(self) -> Iterator[None]:
        """Time one visit (total minus waiting). A failed visit adds time but is not counted."""
        self.visits, self._since = self.visits + 1, self._now()
        try:
            yield
        except BaseException:
            self.visits -= 1
            raise
        finally:
            self._settle()
            self._since = None

    def build_report(self) -> UsageReport:
        """Return the usage so far. It is sent with the deposit, so that the record has it at the commit."""
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
    """Return the largest memory of this process so far, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@dataclass(frozen=True)
class Usage:
    """The usage of one client so far, over all its programs and connections."""

    visits: int = 0
    waiting_seconds: float = 0.0  # of its visits
    computing_seconds: float = 0.0
    memory_bytes: int = 0  # of its largest program, at the peak
    socket_messages: int = 0
    socket_bytes_up: int | None = None  # None where the server's system does not count
    socket_bytes_down: int | None = None

    def __add__(self, other: Usage) -> Usage:
        traffic = _get_traffic(self) + _get_traffic(other)
        return _set_traffic(
            Usage(
                self.visits + other.visits,
                self.waiting_seconds + other.waiting_seconds,
                self.computing_seconds + other.computing_seconds,
                max(self.memory_bytes, other.memory_bytes),
            ),
            traffic,
        )


@dataclass(frozen=True)
class ClientUsage:
    """The usage of a client's ended programs and of its current program. `past` includes the bytes of all sockets."""

    past: Usage = Usage()
    program: int = 0
    now: Usage = Usage()

    @property
    def total(self) -> Usage:
        """The usage of all programs."""
        return self.past + self.now

    def add_report(self, report: UsageReport) -> ClientUsage:
        """Return the usage after a report. A report of another program means that the one before has ended."""
        past = self.past if report.program == self.program else self.total
        now = Usage(report.visits, report.waiting, report.computing, report.memory)
        return ClientUsage(past, report.program, now)


class UsageLog:
    """The usage of all clients of a run. It is saved beside the journal from time to time; nothing depends on it."""

    def __init__(
        self,
        path: Path,
        get_reports: Callable[[], Mapping[int, UsageReport]],
        get_traffic: Callable[[], Mapping[int, SocketTraffic]],
    ) -> None:
        self.path, self.get_reports, self.get_traffic = path, get_reports, get_traffic
        self._lock = threading.Lock()  # the status is read on another thread than the run
        self._accounts = read_usage(path)

    def get_accounts(self) -> dict[int, ClientUsage]:
        """Return the usage of every client, with its last report and the present counts of the sockets."""
        with self._lock:
            for m, report in self.get_reports().items():
                self._accounts[m] = self._accounts.get(m, ClientUsage()).add_report(report)
            known = dict(self._accounts)
        for m, more in self.get_traffic().items():
            account = known.get(m, ClientUsage())
            known[m] = replace(account, past=account.past + _set_traffic(Usage(), more))
        return dict(sorted(known.items()))

    def get_totals(self) -> dict[int, Usage]:
        """Return the usage of each client over all its programs."""
        return {m: account.total for m, account in self.get_accounts().items()}

    def build_row(self) -> dict[str, Any]:
        """Return the sum over all clients, as in a row of the record."""
        return sum_usage(self.get_totals().values())

    def save(self) -> None:
        """Save the usage for `cost --measured` and for the next start of the server."""
        content = json.dumps({m: asdict(account) for m, account in self.get_accounts().items()})
        write_text(self.path, content + "\n", private=True)


def sum_usage(usages: Iterable[Usage]) -> dict[str, Any]:
    """Add the usage of several clients. Seconds and bytes add up; the memory is the largest one."""
    whole = asdict(sum(usages, Usage()))
    return {name: value for name, value in whole.items() if name != "visits"}


def read_usage(path: Path) -> dict[int, ClientUsage]:
    """Read the saved usage, if there is any. Raise InputError if the file is damaged."""
    if not path.exists():
        return {}
    try:
        saved = parse_json(path.read_text(encoding="ascii"))
        return {int(m): _parse_usage(account) for m, account in saved.items()}
    except OSError as error:
        raise InputError(f"cannot read {path}", value=error.strerror, hint="Make it readable.") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        hint = "Remove it: only the usage of the clients so far is lost."
        raise InputError(f"{path} is damaged", hint=hint) from None


def _parse_usage(saved: Mapping[str, Any]) -> ClientUsage:
    account = ClientUsage(Usage(**saved["past"]), saved["program"], Usage(**saved["now"]))
    for number in (account.program, *astuple(account.past), *astuple(account.now)):
        if number is not None and not (isinstance(number, int | float) and math.isfinite(number)):
            raise ValueError(number)
    return account


def _get_traffic(usage: Usage) -> SocketTraffic:
    return SocketTraffic(usage.socket_messages, usage.socket_bytes_up, usage.socket_bytes_down)


def _set_traffic(usage: Usage, traffic: SocketTraffic) -> Usage:
    return replace(usage, socket_messages=traffic.messages, socket_bytes_up=traffic.up, socket_bytes_down=traffic.down)
