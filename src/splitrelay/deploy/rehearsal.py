"""A rehearsal: server and M clients as real processes here, over mutual TLS, then compared with the simulation."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from splitrelay.atomic_files import write_text
from splitrelay.data import load
from splitrelay.data.partition import Partition
from splitrelay.data.partition_io import export_partition, get_client_folder, get_client_labels
from splitrelay.deploy.subprocesses import POLL, Program, wait_for_port
from splitrelay.errors import OutputError, WorkError
from splitrelay.runs.build import build_partition, resolve_spec
from splitrelay.runs.execute import execute
from splitrelay.runs.rows import remove_measurements
from splitrelay.runs.run_directory import RunDirectory
from splitrelay.runs.spec import Spec
from splitrelay.security.authority import create_authority

MODEL = "model.safetensors"


@dataclass(frozen=True)
class Verdict:
    """Whether the deployed run was the simulated one: its weights, and every row of its record."""

    weights: bool
    rows: bool
    seconds: float  # of the deployed part, programs' start included
    simulated: float
    programs: int
    skips: int = 0  # visits that were left out, here and in the simulation; rows are not compared then

    @property
    def same(self) -> bool:
        """Both."""
        return self.weights and self.rows


@dataclass(frozen=True)
class Plan:
    """Who plays, and with what patience."""

    spec: Spec
    out: Path
    hosts: int | None = None  # programs that the clients share; one each unless said
    insecure: bool = False
    patience: float = 600.0  # seconds for the whole rehearsal
    away: str = "wait"  # the server's policy, and its lease in seconds
    lease: float = 60.0
    direct: bool = False  # peer to peer: clients bring the half straight to each other
    fed: bool = False  # one more program averages the clients' halves
    simulated: Path | None = None  # where the simulation is kept, if several rehearsals share it


class Rehearsal:
    """The stage: keys, data and logs under OUT/rehearsal, the server's run directory is OUT itself."""

    program: type[Program] = Program
    host = "127.0.0.1"  # of the server

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self.plan, self.say, self.spec = plan, say, resolve_spec(plan.spec)[0]
        self.place = plan.out / "rehearsal"
        self.server: Program | None = None
        self.clients: list[Program] = []
        self.port = 0

    def host_of(self, m: int) -> str:
        """Where other clients reach client m."""
        return self.host

    def prepare(self) -> Partition:
        """Keys and data, as the hosts would have them."""
        if self.plan.out.exists() and any(self.plan.out.iterdir()):
            raise OutputError(f"{self.plan.out} is there already and not empty", hint="Choose another --out.")
        (self.place / "logs").mkdir(parents=True)
        data = load(self.spec.data.name)
        partition = build_partition(self.spec, data)
        export_partition(
            partition, data.train.x, get_client_labels(data.train.y, data.train.classes), self.place / "data"
        )
        np.savez(self.place / "data" / "test.npz", x=data.test.x, y=get_client_labels(data.test.y, data.test.classes))
        write_text(self.place / "spec.toml", self.spec.to_toml() + "\n")
        if not self.plan.insecure:
            authority = create_authority(self.place / "authority", "rehearsal", 2)
            authority.issue_server("server", [self.host, "localhost"], 1)
            for m in partition.clients:
                hosts = [self.host_of(m)] if self.plan.direct else []
                authority.issue_client(self._name(m), m, evaluator=m == self.spec.evaluator, hosts=hosts, days=1)
            if self.plan.fed:
                authority.issue_client("fed", fed=True, days=1)
        return partition

    def play(self) -> Iterator[Verdict]:
        """The whole piece."""
        partition = self.prepare()
        began = time.monotonic()
        try:
            self.start_programs(partition)
            self.wait(began + self.plan.patience)
        finally:
            self.clear()
        deployed = time.monotonic() - began
        self.say(f"{1 + len(self.clients)} programs are done; now the simulation")
        yield self.judged(deployed)

    def start_programs(self, partition: Partition) -> None:
        """The server, then the clients."""
        self.server = self._server(partition).start()
        hosts = self._hosts(partition)  # clients may come first: they knock until the server is there
        self.port = wait_for_port(self.place / "port", self.server)
        self.clients = [self._client(number, host).start() for number, host in enumerate(hosts)]
        self.clients += [self._fed().start()] if self.plan.fed else []
        self.say(f"server on port {self.port}; {len(partition.clients)} clients in {len(hosts)} programs")

    def wait(self, until: float) -> None:
        """Until the server has all its rounds."""
        assert self.server is not None
        while self.server.running:
            if time.monotonic() > until:
                raise WorkError(
                    "the rehearsal takes too long", limit=f"{self.plan.patience:g} seconds", hint=self._logs()
                )
            self._refuse_fallen()
            time.sleep(POLL)
        if self.server.code() != 0:
            raise WorkError("the server fell", value=self.server.get_log_tail(), hint=self._logs())

    def _refuse_fallen(self) -> None:
        fallen = [client for client in self.clients if client.code() not in (None, 0)]
        if fallen:
            raise WorkError("a client fell", value=fallen[0].get_log_tail(), hint=self._logs())

    def clear(self) -> None:
        """Nobody stays behind."""
        for program in [*self.clients, *([self.server] if self.server else [])]:
            until = time.monotonic() + 5.0
            while program.running and program is not self.server and time.monotonic() < until and self._over():
                time.sleep(POLL)
            program.stop()

    def judged(self, deployed: float) -> Verdict:
        """The same spec in one process, and what differs."""
        began = time.monotonic()
        skips = self.skips()
        ours, theirs = RunDirectory(self.plan.out), self._simulated(skips)
        return Verdict(
            ours.model.exists() and ours.model.read_bytes() == theirs.model.read_bytes(),
            bool(skips) or read_untimed_rows(ours) == read_untimed_rows(theirs),
            deployed,
            time.monotonic() - began,
            1 + len(self.clients),
            len(skips),
        )

    def skips(self) -> frozenset[tuple[int, int, int]]:
        """Visits (round, client, occurrence) that were left out, and must be in the simulation too: none."""
        return frozenset()

    def _simulated(self, skips: frozenset[tuple[int, int, int]]) -> RunDirectory:
        shared = None if skips else self.plan.simulated
        return replay(self.spec, RunDirectory(shared or self.place / "simulated"), skips)

    def _over(self) -> bool:
        return self.server is not None and self.server.code() == 0

    def _server(self, partition: Partition) -> Program:
        return self.program(self._server_words(partition), self.place / "logs" / "server.log")

    def _server_words(self, partition: Partition) -> list[str]:
        words = ["serve", str(self.place / "spec.toml"), "--out", str(self.plan.out), "--listen", f"{self.host}:0"]
        words += ["--port-file", str(self.place / "port"), "--linger", "0"]
        words += ["--fed-server"] * self.plan.fed
        words += ["--away", self.plan.away, "--lease", f"{self.plan.lease:g}"]
        for m in partition.empty:
            words += ["--without", str(m)]
        return [*words, *(["--insecure"] if self.plan.insecure else ["--keys", str(self.place / "server")])]

    def _hosts(self, partition: Partition) -> list[list[int]]:
        """Which clients share a program."""
        clients = list(partition.clients)
        programs = min(self.plan.hosts or len(clients), len(clients))
        return [clients[number::programs] for number in range(programs)]

    def _client(self, number: int, clients: Sequence[int]) -> Program:
        words = ["join", self._address(clients)]
        for m in clients:
            data = self.place / "data" / get_client_folder(m, self.spec.partition.M) / "data.npz"
            who = ["--client", str(m)] if self.plan.insecure else ["--keys", str(self.place / self._name(m))]
            words += [*who, "--data", str(data)]
            if m == self.spec.evaluator and (self.plan.fed or self.spec.route == "peer-to-peer"):
                words += ["--test", str(self.place / "data" / "test.npz"), "--keep", str(self.plan.out / MODEL)]
        words += ["--insecure"] * self.plan.insecure + ["--sealed"] * self.plan.fed
        words += ["--spec", str(self.place / "spec.toml")]
        words += ["--listen", f"{self.host_of(clients[0])}:0"] if self.plan.direct else []
        return self.program(words, self.place / "logs" / f"host-{number}.log")

    def _fed(self) -> Program:
        words = ["join", self._address([]), "--keys", str(self.place / "fed"), "--fed-server"]
        words += ["--spec", str(self.place / "spec.toml")]
        return self.program(words, self.place / "logs" / "fed.log")

    def _address(self, clients: Sequence[int]) -> str:
        """Where these clients find the server."""
        return f"{self.host}:{self.port}"

    def _name(self, m: int) -> str:
        return f"client-{m}"

    def _logs(self) -> str:
        return f"See {self.place / 'logs'}."


def replay(spec: Spec, directory: RunDirectory, skips: frozenset[tuple[int, int, int]]) -> RunDirectory:
    """The simulation in which the same visits are left out."""
    for _ in execute(spec, directory, skips=skips):
        pass
    return directory


def read_untimed_rows(directory: RunDirectory) -> list[dict[str, Any]]:
    """The record without its clock."""
    return [remove_measurements(row) for row in directory.read_rows()]


def forget(out: Path) -> None:
    """Keys and data of a rehearsal; its record stays."""
    shutil.rmtree(out / "rehearsal", ignore_errors=True)
