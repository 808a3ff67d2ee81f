"""A rehearsal in which a plan of faults is carried out, and the record is held against the plan."""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from splitrelay.chaos.corrupt_messages import (
    CHANGES,
    changed,
    falsify_gradient,
    falsify_lease,
    falsify_terms,
    flipped,
    one_more,
)
from splitrelay.chaos.fault_kinds import SKIPPED, Fault, check_faults, list_possible_kinds
from splitrelay.chaos.fault_scheduler import FaultScheduler
from splitrelay.chaos.forkserver_process import ForkedProgram
from splitrelay.chaos.proxies import MessageProxy, TcpProxy
from splitrelay.chaos.unauthenticated_clients import is_name_refused, is_spec_refused, send_junk
from splitrelay.chaos.verdict import Findings, found, list_skipped_visits, missed, read_record
from splitrelay.data.partition import Partition
from splitrelay.deploy.rehearsal import Plan, Rehearsal
from splitrelay.deploy.subprocesses import POLL, Program, wait_for_port
from splitrelay.errors import InputError, WorkError
from splitrelay.network.connection_handler import FED
from splitrelay.security.identity import channel_credentials, load_identity, server_credentials

SILENT = 3.0  # seconds that a silenced link carries nothing, before it is cut
SLOW = 0.02  # seconds that every piece of a slowed link is late
ROOM = 2048  # bytes that the record may still grow on a full disk


class FaultRehearsal(Rehearsal):
    """Every client has somebody in the middle and a proxy of its own before the server."""

    program: type[Program] = ForkedProgram

    def __init__(self, plan: Plan, say: Callable[[str], None], faults: Sequence[Fault]) -> None:
        super().__init__(plan, say)
        self.faults = list(faults)
        self.scheduler = FaultScheduler(faults, self.events, self._act)
        self.proxies: dict[int, TcpProxy] = {}
        self.middles: dict[int, MessageProxy] = {}
        self.silenced: list[tuple[float, TcpProxy]] = []
        self.leaving: list[str] = []  # why the server is about to leave
        self.scheduler.last = SKIPPED if plan.away == "skip" else ()
        self.scheduler.is_paused = lambda: bool(self.leaving)
        self.absent: dict[int, int | None] = {}  # clients that were killed; events after which they may come back
        self.witnessed: dict[Fault, bool] = {}  # of faults that the server cannot know of
        self.misled: dict[int, Fault] = {}  # clients that a malicious server has lied to, until they have left
        self.scheduler.falsify_terms = self._falsify_terms

    def prepare(self) -> Partition:
        """As always; a plan that cannot be carried out is refused."""
        partition = super().prepare()
        plan = self.plan
        kinds = list_possible_kinds(self.spec, len(partition.clients), plan.insecure, plan.direct, plan.fed)
        check_faults(self.faults, self.spec, partition.clients, kinds)
        return partition

    def start_programs(self, partition: Partition) -> None:
        """As always, with somebody in between."""
        self.partition = partition
        self.server = self._server(partition).start()
        self.port = wait_for_port(self.place / "port", self.server)
        self.proxies = {m: TcpProxy(self.port) for m in partition.clients}
        self.middles = {m: self._middle(m) for m in partition.clients}
        self.clients = [self._client(m, [m]).start() for m in partition.clients]
        if self.plan.fed:
            self.proxies[FED] = TcpProxy(self.port)
            self.clients.append(self._fed().start())
        self.say(f"server on port {self.port}; {len(self.clients)} clients behind proxies; {len(self.faults)} faults")

    def _server_words(self, partition: Partition) -> list[str]:
        """Without quarantine: a plan may have many faults of one client, and each must happen."""
        return [*super()._server_words(partition), "--strikes", "0"]

    def wait(self, until: float) -> None:
        """Carry the plan out; whoever was killed is started again."""
        assert self.server is not None
        while True:
            if time.monotonic() > until:
                raise WorkError("the rehearsal hangs", limit=f"{self.plan.patience:g} seconds", hint=self._logs())
            if self.scheduler.error is not None:
                raise self.scheduler.error
            gone = not self.server.running  # asked before `leaving`, which is said before anybody is killed
            if gone and not self.leaving:
                if self.server.code() == 0:
                    return
                what = f"the server fell with code {self.server.code()}"
                raise WorkError(what, value=self.server.get_log_tail(), hint=self._logs())
            if gone:
                self._restart_server()
            self._bring_back()
            self._end_silences()
            time.sleep(POLL)

    def clear(self) -> None:
        """Nobody stays behind, and nothing in between either."""
        super().clear()
        for middle in self.middles.values():
            middle.close()
        for proxy in self.proxies.values():
            proxy.close()

    def events(self) -> list[dict[str, Any]]:
        """The server's record."""
        return read_record(self.plan.out / "relay" / "events.jsonl")

    def findings(self) -> Findings:
        """The record against the plan."""
        for m in list(self.misled):  # the run ended before they could be started again
            self._witness_departure(m)
        late = {fault: self.proxies[fault.client].late > 0 for fault in self.witnessed if fault.kind == "delay"}
        scheduler = self.scheduler
        whole = self.spec.placement == "whole"
        return found(
            scheduler.waiting, scheduler.happened, self.events(), scheduler.K, {**self.witnessed, **late}, whole
        )

    def skips(self) -> frozenset[tuple[int, int, int]]:
        """Visits that the simulation must leave out too."""
        return list_skipped_visits(self.events())

    def _act(self, fault: Fault, frame: bytes) -> list[bytes]:
        """Make the fault; the frames that go on in the place of this one."""
        self.say(str(fault))
        if fault.kind in CHANGES:
            return [changed(fault.kind, frame)]
        name = fault.kind.replace("-", "_")
        act: Callable[[Fault, bytes], list[bytes]] = getattr(self, f"_{name}")
        return act(fault, frame)

    # The server

    def _kill_server(self, fault: Fault, frame: bytes) -> list[bytes]:
        assert self.server is not None
        self.leaving.append(fault.kind)
        self.server.send(signal.SIGKILL)
        return []

    _kill_relay = _kill_server

    def _stop_server(self, fault: Fault, frame: bytes) -> list[bytes]:
        assert self.server is not None
        self.leaving.append(fault.kind)
        self.server.send(signal.SIGTERM)
        return [frame]

    def _full_disk(self, fault: Fault, frame: bytes) -> list[bytes]:
        """From here on the kernel refuses to make a file as long as a model's; lines of the record may still fit."""
        assert self.server is not None
        self.leaving.append(fault.kind)
        lines = (self.plan.out / "relay" / "events.jsonl", self.server.log)
        models = [file.stat().st_size for file in self.plan.out.glob("checkpoints/*.safetensors")]
        room = min([max(file.stat().st_size for file in lines) + ROOM, *(size - 1 for size in models)])
        self.witnessed[fault] = False  # until the server has left of its own accord, with an error
        with suppress(ProcessLookupError):
            hard = resource.prlimit(self.server.pid, resource.RLIMIT_FSIZE)[1]
            resource.prlimit(self.server.pid, resource.RLIMIT_FSIZE, (room, hard))
        return [frame]

    def _restart_server(self) -> None:
        assert self.server is not None
        (self.place / "port").unlink(missing_ok=True)
        if self.server.code() == 1:  # failed work: a full disk is no wrong input
            self.witnessed |= {fault: True for fault in self.witnessed if fault.kind == "full-disk"}
        self.server.start()
        self.port = wait_for_port(self.place / "port", self.server)
        self.leaving.clear()  # before anybody can reach it
        for proxy in self.proxies.values():
            proxy.target = self.port

    # Clients

    def _kill_client(self, fault: Fault, frame: bytes) -> list[bytes]:
        self.absent[fault.client] = None
        self._program(fault.client).send(signal.SIGKILL)
        return [frame]

    def _kill_giver(self, fault: Fault, frame: bytes) -> list[bytes]:
        self.scheduler.get_traffic(fault.client).dead = True  # the deposit follows at once, and would come through
        return self._kill_client(fault, frame)

    def _kill_fed(self, fault: Fault, frame: bytes) -> list[bytes]:
        self.absent[FED] = None
        self._program(FED).send(signal.SIGKILL)
        return [frame]

    def _stay_away(self, fault: Fault, frame: bytes) -> list[bytes]:
        self.absent[fault.client] = len(self.events())
        self.scheduler.get_traffic(fault.client).dead = True  # else what it has said may still end its visit
        self._program(fault.client).send(signal.SIGKILL)
        return []

    def _bring_back(self) -> None:
        for m, after in list(self.absent.items()):
            over = after is None or missed(m, self.events()[after:])
            if over and not self._program(m).running:
                del self.absent[m]
                self._witness_departure(m)
                self._program(m).start()
        fallen = [m for m in self.partition.clients if self._program(m).code() not in (None, 0)]
        if set(fallen) - set(self.absent):
            words = self._program(fallen[0]).get_log_tail()
            raise WorkError("a client fell", value=words, hint=self._logs())

    def _program(self, m: int) -> Program:
        return self.clients[[*self.partition.clients, FED].index(m)]

    # Links

    def _cut(self, fault: Fault, frame: bytes) -> list[bytes]:
        self.proxies[fault.client].cut()
        return []

    _lost_reply = _lost_commit = _lost_handed = _cut

    def _half_open(self, fault: Fault, frame: bytes) -> list[bytes]:
        self.proxies[fault.client].freeze()
        return []

    def _silence(self, fault: Fault, frame: bytes) -> list[bytes]:
        proxy = self.proxies[fault.client]
        proxy.silent = True
        self.silenced.append((time.monotonic() + SILENT, proxy))
        return []

    def _end_silences(self) -> None:
        for when, proxy in list(self.silenced):
            if time.monotonic() > when:
                self.silenced.remove((when, proxy))
                proxy.silent = False
                proxy.cut()  # what vanished cannot be made up for on the same connection

    def _delay(self, fault: Fault, frame: bytes) -> list[bytes]:
        self.proxies[fault.client].delay = SLOW
        self.witnessed[fault] = False  # until a piece was late
        return [frame]

    # Words

    def _duplicate(self, fault: Fault, frame: bytes) -> list[bytes]:
        return [frame, frame]

    def _corrupt(self, fault: Fault, frame: bytes) -> list[bytes]:
        return [flipped(frame)]

    def _replay(self, fault: Fault, frame: bytes) -> list[bytes]:
        old = self.scheduler.get_old_step(fault.client)
        assert old is not None  # the plot has waited for one
        return [old, frame]

    def _extra_step(self, fault: Fault, frame: bytes) -> list[bytes]:
        return [one_more(self.scheduler.get_traffic(fault.client).last), frame]

    def _reorder(self, fault: Fault, frame: bytes) -> list[bytes]:
        self.scheduler.get_traffic(fault.client).held = frame
        return []

    # A malicious server

    def _false_steps(self, fault: Fault, frame: bytes) -> list[bytes]:
        self._expect_departure(fault)
        return [falsify_lease(fault.kind, frame)]

    _false_rate = _false_round = _false_steps

    def _false_terms(self, fault: Fault, frame: bytes) -> list[bytes]:
        """The lie follows when the client connects again: see _falsify_terms."""
        self._expect_departure(fault)
        return self._cut(fault, frame)

    def _falsify_terms(self, m: int, frame: bytes) -> bytes:
        fault = self.misled.get(m)
        return falsify_terms(frame) if fault is not None and fault.kind == "false-terms" else frame

    def _false_gradient(self, fault: Fault, frame: bytes) -> list[bytes]:
        return [falsify_gradient(frame)]

    def _expect_departure(self, fault: Fault) -> None:
        """The client is to leave with code 2, which is seen when it is started again."""
        self.absent[fault.client], self.misled[fault.client], self.witnessed[fault] = None, fault, False

    def _witness_departure(self, m: int) -> None:
        if m in self.misled:
            self.witnessed[self.misled.pop(m)] = self._program(m).code() == InputError.exit_code

    # Strangers

    def _stranger(self, fault: Fault, frame: bytes) -> list[bytes]:
        self.witnessed[fault] = send_junk("127.0.0.1", self.port, fault.after) > 0
        return [frame]

    def _wrong_spec(self, fault: Fault, frame: bytes) -> list[bytes]:
        m = fault.client
        n = len(self.partition.indices[m])
        self.witnessed[fault] = is_spec_refused(self._door(), self._keys(m), m, "0" * 12, n)
        return [frame]

    def _another_name(self, fault: Fault, frame: bytes) -> list[bytes]:
        other = next(m for m in self.partition.clients if m != fault.client)
        self.witnessed[fault] = is_name_refused(self._door(), self._keys(fault.client), other)
        return [frame]

    def _door(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _keys(self, m: int) -> Any:
        return None if self.plan.insecure else channel_credentials(load_identity(self.place / self._name(m)))

    def _middle(self, m: int) -> MessageProxy:
        near = None if self.plan.insecure else server_credentials(load_identity(self.place / "server"))
        proxy = self.proxies[m]
        up, down = partial(self.scheduler.handle_client_frame, m), partial(self.scheduler.handle_server_frame, m)
        return MessageProxy(lambda: f"127.0.0.1:{proxy.port}", near, self._keys(m), up, down)

    def _address(self, clients: Sequence[int]) -> str:
        return f"127.0.0.1:{self.middles[clients[0]].port if clients else self.proxies[FED].port}"
