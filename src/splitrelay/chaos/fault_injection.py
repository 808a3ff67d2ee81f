"""Rehearse a deployment while a plan of faults is injected, and compare the server's record with the plan.

Each client reaches the server through two proxies: client -> MessageProxy -> TcpProxy -> server. The fed server has a
TcpProxy only. Faults are made by the threads of the message proxies: `FaultScheduler` decides when, and calls
`FaultRehearsal._inject`. The main thread starts programs again that a fault has ended.

The programs are forked from a process that has already imported everything. A series of 200 fault plans starts about a
thousand programs, and forking avoids importing torch in each of them. Every program is still a separate process with
its own threads, connections and memory, and can be killed.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from splitrelay.chaos.corrupt_messages import (
    STEP_CHANGES,
    build_next_step,
    change_step,
    falsify_gradient,
    falsify_lease,
    falsify_terms,
    flip_bit,
    is_name_refused,
    is_spec_refused,
    send_junk,
)
from splitrelay.chaos.fault_kinds import SKIPPING_KINDS, Fault, check_faults, list_possible_kinds
from splitrelay.chaos.fault_scheduler import FaultScheduler
from splitrelay.chaos.proxies import MessageProxy, TcpProxy
from splitrelay.chaos.verdict import Findings, compute_findings, is_absence_noticed
from splitrelay.data.partition import Partition
from splitrelay.deploy.events import Event, list_skipped_visits, read_events
from splitrelay.deploy.rehearsal import (
    POLL_INTERVAL,
    Deployment,
    LocalHost,
    Program,
    RehearsalOptions,
    Report,
    Verdict,
    die_with_parent,
    stop_programs,
    wait_for_port,
)
from splitrelay.errors import InputError, WorkError
from splitrelay.network.limits import Timeouts
from splitrelay.network.server_connection import FED_SERVER_NUMBER
from splitrelay.security.identity import build_channel_credentials, build_server_credentials, load_identity

PRELOADED = (
    "deploy.server_program",
    "deploy.client_program",
    "deploy.remote_evaluator",
)
SHORT_TIMEOUTS = Timeouts(heartbeat=0.5, silence=4.0, first_retry=0.05, longest_retry=0.4)  # a plan takes seconds
COMMAND_LINE = "splitrelay.cli.main"  # imported by name: chaos does not depend on cli


class ForkedProgram(Program):
    """`splitrelay ...` in a process that is forked from the prepared one."""

    def start(self) -> ForkedProgram:
        """Start the program, or start it again."""
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch reads it when it is imported
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([f"splitrelay.{name}" for name in PRELOADED])
        self.process = context.Process(target=_run_program, args=(self.arguments, str(self.log)), daemon=True)
        self.process.start()
        return self

    def get_exit_code(self) -> int | None:
        """Return the exit code, or None while the program runs."""
        return None if self.process is None else self.process.exitcode

    def wait_for_exit(self, seconds: float | None = None) -> bool:
        """Wait at most so many seconds; return whether the program has ended."""
        self.process.join(seconds)
        return self.process.exitcode is not None


def _run_program(arguments: Sequence[str], log: str) -> None:
    die_with_parent()
    sys.dont_write_bytecode = True  # under the limit of a full disk, Python would cache a part of a module
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(file, stream)
    import_module(COMMAND_LINE).run(list(arguments), SHORT_TIMEOUTS)


HOST = LocalHost.server_host
SILENCE = 3.0  # seconds that a silent connection forwards nothing before it is cut
DELAY = 0.02  # seconds by which each piece of a slow connection is delayed
FULL_DISK_MARGIN = 2048  # bytes that text files may still grow on a full disk


class FaultRehearsal:
    """One rehearsal with faults.

    Args:
        options: What is rehearsed.
        report: Called with messages about the progress.
        faults: The plan, sorted by `after`.
    """

    def __init__(self, options: RehearsalOptions, report: Report, faults: Sequence[Fault]) -> None:
        self.options, self.report, self.faults = options, report, list(faults)
        self.deployment = Deployment(options, LocalHost(), ForkedProgram)
        self.scheduler = FaultScheduler(
            faults,
            self.read_events,
            self._inject,
            is_paused=lambda: self.is_server_stopping,
            change_terms=self._change_terms,
            final_kinds=SKIPPING_KINDS if options.away == "skip" else (),
        )
        self.server: Program | None = None
        self.clients: dict[int, Program] = {}  # the fed server included
        self.port = 0
        self.tcp_proxies: dict[int, TcpProxy] = {}
        self.message_proxies: dict[int, MessageProxy] = {}
        self.silences: list[tuple[float, TcpProxy]] = []  # when they end
        self.is_server_stopping = False  # a fault has ended the server, and it has not been started again
        # Clients to be started again, and the event number from which their absence must be noticed first, or None.
        self.restarts: dict[int, int | None] = {}
        self.observed: dict[Fault, bool] = {}  # faults that the server cannot notice: whether their effect was seen
        self.expected_exits: dict[int, Fault] = {}  # clients that must exit because of a malicious server

    def run(self) -> Verdict:
        """Run the deployment with all faults, then the simulation without skipped visits, and compare them.

        Raises:
            InputError: A fault of the plan cannot happen in this rehearsal.
            WorkError: A program failed, or the deployed run took too long.
        """
        partition = self.prepare()
        began = time.monotonic()
        try:
            self._start_programs(partition)
            self._wait(began + self.options.timeout)
        finally:
            stop_programs([*([self.server] if self.server else []), *self.clients.values()])
            for message_proxy in self.message_proxies.values():
                message_proxy.close()
            for tcp_proxy in self.tcp_proxies.values():
                tcp_proxy.close()
        seconds, programs = time.monotonic() - began, 1 + len(self.clients)
        self.report(f"{programs} programs have ended; the simulation starts")
        return self.deployment.compare_with_simulation(seconds, programs, list_skipped_visits(self.read_events()))

    def prepare(self) -> Partition:
        """Create keys and data, and check the plan."""
        self.partition = partition = self.deployment.prepare()
        options, spec = self.options, self.deployment.spec
        kinds = list_possible_kinds(spec, len(partition.clients), options.insecure, options.direct, options.fed)
        check_faults(self.faults, spec, partition.clients, kinds)
        return partition

    def read_events(self) -> list[Event]:
        """Read the server's event record."""
        return read_events(self._events_file)

    @property
    def _events_file(self) -> Path:
        return self.options.out / "relay" / "events.jsonl"

    def compute_findings(self) -> Findings:
        """Compare the record with the plan, after the run."""
        for m in list(self.expected_exits):  # the run ended before they could be started again
            self._check_exit(m)
        for fault in self.observed:
            if fault.kind == "delay":
                self.observed[fault] = self.tcp_proxies[fault.client].delayed > 0
        scheduler, whole = self.scheduler, self.deployment.spec.placement == "whole"
        events = self.read_events()
        return compute_findings(scheduler.waiting, scheduler.injected, events, scheduler.K, self.observed, whole)

    def _start_programs(self, partition: Partition) -> None:
        deployment = self.deployment
        # Without quarantine: a plan may have many faults of one client, and each must happen.
        self.server = deployment.build_server(partition, "--strikes", "0").start()
        self.port = wait_for_port(deployment.port_file, self.server)
        for i, m in enumerate(partition.clients):
            self.tcp_proxies[m] = TcpProxy(self.port)
            self.message_proxies[m] = self._start_message_proxy(m)
            self.clients[m] = deployment.build_client(i, [m], f"{HOST}:{self.message_proxies[m].port}").start()
        if self.options.fed:
            self.tcp_proxies[FED_SERVER_NUMBER] = TcpProxy(self.port)
            self.clients[FED_SERVER_NUMBER] = deployment.build_fed_server(
                f"{HOST}:{self.tcp_proxies[FED_SERVER_NUMBER].port}"
            ).start()
        self.report(
            f"the server listens on port {self.port}; {len(self.clients)} clients behind proxies; "
            f"{len(self.faults)} faults"
        )

    def _start_message_proxy(self, m: int) -> MessageProxy:
        server_keys = self.deployment.folder / "server"
        near = None if self.options.insecure else build_server_credentials(load_identity(server_keys))
        proxy = self.tcp_proxies[m]
        up, down = partial(self.scheduler.handle_client_frame, m), partial(self.scheduler.handle_server_frame, m)
        return MessageProxy(lambda: f"{HOST}:{proxy.port}", near, self._load_credentials(m), up, down)

    def _load_credentials(self, m: int) -> Any:
        if self.options.insecure:
            return None
        return build_channel_credentials(load_identity(self.deployment.get_keys_folder(m)))

    def _wait(self, until: float) -> None:
        """Wait until the server has ended by itself; start programs again that a fault has ended."""
        assert self.server is not None
        while True:
            self.deployment.check_time(until)
            if self.scheduler.error is not None:
                raise self.scheduler.error
            # Read before `is_server_stopping`, which is set before the server is killed.
            has_ended = not self.server.is_running
            if has_ended and not self.is_server_stopping:
                self.deployment.check_server(self.server)
                return
            if has_ended:
                self.deployment.port_file.unlink(missing_ok=True)
                if self.server.get_exit_code() == WorkError.exit_code:
                    self.observed |= {fault: True for fault in self.observed if fault.kind == "full-disk"}
                self.server.start()
                self.port = wait_for_port(self.deployment.port_file, self.server)
                self.is_server_stopping = False  # before a client can reach it
                for proxy in self.tcp_proxies.values():
                    proxy.target = self.port
            self._restart_clients()
            self._end_silences()
            time.sleep(POLL_INTERVAL)

    def _restart_clients(self) -> None:
        for m, event_count in list(self.restarts.items()):
            is_due = event_count is None or is_absence_noticed(m, self.read_events()[event_count:])
            if is_due and not self.clients[m].is_running:
                del self.restarts[m]
                self._check_exit(m)
                self.clients[m].start()
        # A fault adds to `restarts` before it kills: read `restarts` last.
        failed = [m for m, client in self.clients.items() if m != FED_SERVER_NUMBER and client.has_failed()]
        failed = [m for m in failed if m not in self.restarts]
        if failed and not self._may_exit_early():
            self.deployment.check_clients(self.clients[m] for m in failed)

    def _may_exit_early(self) -> bool:
        """Return whether the run is over and may have skipped the last visit of a client, which then exits with 1."""
        events = self.read_events()
        return self.options.away == "skip" and bool(events) and events[-1]["event"] == "closing"

    def _check_exit(self, m: int) -> None:
        """Check how a client exited that was deceived by a malicious server."""
        if m in self.expected_exits:
            self.observed[self.expected_exits.pop(m)] = self.clients[m].get_exit_code() == InputError.exit_code

    def _end_silences(self) -> None:
        for end, proxy in list(self.silences):
            if time.monotonic() > end:
                self.silences.remove((end, proxy))
                proxy.silent = False
                proxy.cut()  # the connection cannot continue, because bytes were lost

    # Each method _inject_KIND makes one kind of fault and returns the frames that are sent instead of `frame`.

    def _inject(self, fault: Fault, frame: bytes) -> list[bytes]:
        self.report(str(fault))
        if fault.kind in STEP_CHANGES:
            return [change_step(fault.kind, frame)]
        inject: Callable[[Fault, bytes], list[bytes]] = getattr(self, f"_inject_{fault.kind.replace('-', '_')}")
        return inject(fault, frame)

    # Faults of the server

    def _inject_kill_server(self, fault: Fault, frame: bytes) -> list[bytes]:
        self._begin_server_stop().send_signal(signal.SIGKILL)
        return []

    _inject_kill_relay = _inject_kill_server

    def _inject_stop_server(self, fault: Fault, frame: bytes) -> list[bytes]:
        self._begin_server_stop().send_signal(signal.SIGTERM)
        return [frame]

    def _inject_full_disk(self, fault: Fault, frame: bytes) -> list[bytes]:
        """Limit the size of files so that no model can be written, but lines of text files still fit."""
        server = self._begin_server_stop()
        texts = max(file.stat().st_size for file in (self._events_file, server.log))
        models = [file.stat().st_size for file in self.options.out.glob("checkpoints/*.safetensors")]
        limit = min([texts + FULL_DISK_MARGIN, *(size - 1 for size in models)])
        self.observed[fault] = False  # until the server has ended with an error
        with suppress(ProcessLookupError):
            hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)[1]
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (limit, hard))
        return [frame]

    def _begin_server_stop(self) -> Program:
        assert self.server is not None
        self.is_server_stopping = True
        return self.server

    # Faults of clients

    def _inject_kill_client(self, fault: Fault, frame: bytes) -> list[bytes]:
        self.scheduler.get_traffic(fault.client).dead = True  # a deposit, for example, could still arrive
        self._kill_client(fault.client)
        return [frame]

    _inject_kill_giver = _inject_kill_client

    def _inject_kill_fed(self, fault: Fault, frame: bytes) -> list[bytes]:
        self._kill_client(FED_SERVER_NUMBER)
        return [frame]

    def _inject_stay_away(self, fault: Fault, frame: bytes) -> list[bytes]:
        self.scheduler.get_traffic(fault.client).dead = True  # messages already sent could still end the visit
        self._kill_client(fault.client, len(self.read_events()))
        return []

    def _kill_client(self, m: int, event_count: int | None = None) -> None:
        self.restarts[m] = event_count
        self.clients[m].send_signal(signal.SIGKILL)

    # Faults of connections

    def _inject_cut(self, fault: Fault, frame: bytes) -> list[bytes]:
        self.tcp_proxies[fault.client].cut()
        return []

    _inject_lost_reply = _inject_lost_commit = _inject_lost_handed = _inject_cut

    def _inject_half_open(self, fault: Fault, frame: bytes) -> list[bytes]:
        self.tcp_proxies[fault.client].freeze()
        return []

    def _inject_silence(self, fault: Fault, frame: bytes) -> list[bytes]:
        proxy = self.tcp_proxies[fault.client]
        proxy.silent = True
        self.silences.append((time.monotonic() + SILENCE, proxy))
        return []

    def _inject_delay(self, fault: Fault, frame: bytes) -> list[bytes]:
        self.tcp_proxies[fault.client].delay = DELAY
        self.observed[fault] = False  # until the proxy has delayed a piece
        return [frame]

    # Faults of messages

    def _inject_duplicate(self, fault: Fault, frame: bytes) -> list[bytes]:
        return [frame, frame]

    def _inject_corrupt(self, fault: Fault, frame: bytes) -> list[bytes]:
        return [flip_bit(frame)]

    def _inject_replay(self, fault: Fault, frame: bytes) -> list[bytes]:
        old = self.scheduler.get_old_step(fault.client)
        assert old is not None  # the scheduler has waited for one
        return [old, frame]

    def _inject_extra_step(self, fault: Fault, frame: bytes) -> list[bytes]:
        return [build_next_step(self.scheduler.get_traffic(fault.client).last), frame]

    def _inject_reorder(self, fault: Fault, frame: bytes) -> list[bytes]:
        self.scheduler.get_traffic(fault.client).held = frame
        return []

    # A malicious server

    def _inject_false_steps(self, fault: Fault, frame: bytes) -> list[bytes]:
        self._expect_exit(fault)
        return [falsify_lease(fault.kind, frame)]

    _inject_false_rate = _inject_false_round = _inject_false_steps

    def _inject_false_terms(self, fault: Fault, frame: bytes) -> list[bytes]:
        """Cut the connection; `_change_terms` sends false terms when the client connects again."""
        self._expect_exit(fault)
        return self._inject_cut(fault, frame)

    def _change_terms(self, m: int, frame: bytes) -> bytes:
        fault = self.expected_exits.get(m)
        return falsify_terms(frame) if fault is not None and fault.kind == "false-terms" else frame

    def _inject_false_gradient(self, fault: Fault, frame: bytes) -> list[bytes]:
        return [falsify_gradient(frame)]

    def _expect_exit(self, fault: Fault) -> None:
        """Expect the client to exit with the code of an InputError, and start it again then."""
        self.observed[fault] = False
        self.expected_exits[fault.client] = fault
        self.restarts[fault.client] = None

    # Other peers

    def _inject_stranger(self, fault: Fault, frame: bytes) -> list[bytes]:
        self.observed[fault] = send_junk(HOST, self.port, fault.after) > 0
        return [frame]

    def _inject_wrong_spec(self, fault: Fault, frame: bytes) -> list[bytes]:
        m, address = fault.client, f"{HOST}:{self.port}"
        n = len(self.partition.indices[m])
        self.observed[fault] = is_spec_refused(address, self._load_credentials(m), m, "0" * 12, n)
        return [frame]

    def _inject_another_name(self, fault: Fault, frame: bytes) -> list[bytes]:
        other = next(m for m in self.partition.clients if m != fault.client)
        address, credentials = f"{HOST}:{self.port}", self._load_credentials(fault.client)
        self.observed[fault] = is_name_refused(address, credentials, other)
        return [frame]
