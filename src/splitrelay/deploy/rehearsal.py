"""Rehearse a deployment on this machine: run server and clients as processes, then compare with the simulation.

`Deployment` creates keys and data and builds the programs. `Rehearsal` runs them and compares the result.
chaos.fault_injection runs the same programs while it injects faults. The server's run directory is OUT. Keys, data and
logs are in OUT/rehearsal.

Start `splitrelay` commands as processes of this machine, each with its own log file.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from splitrelay.atomic_files import write_text
from splitrelay.data.images import ImageSet
from splitrelay.data.partition import Partition
from splitrelay.data.partition_io import export_partition, get_client_folder, get_client_labels
from splitrelay.deploy.deployed_run import check_deployable
from splitrelay.deploy.sample_terms import export_samples
from splitrelay.errors import OutputError, WorkError
from splitrelay.runs.build import build_partition, load_data, resolve_spec
from splitrelay.runs.execute import execute
from splitrelay.runs.run_directory import RunDirectory, remove_measurements
from splitrelay.runs.spec import Spec
from splitrelay.security.authority import create_authority

START = (
    "from splitrelay.deploy.rehearsal import die_with_parent; die_with_parent(); "
    "from splitrelay.cli.main import run; run()"
)
POLL_INTERVAL = 0.05  # seconds
STOP_TIMEOUT = 10.0  # seconds between SIGTERM and SIGKILL
PR_SET_PDEATHSIG = 1


class Program:
    """A `splitrelay` command in a process of its own.

    Args:
        arguments: The arguments of `splitrelay`.
        log: The file to which stdout and stderr are appended.
        prefix: A command that runs the program, such as `ip netns exec NAME`.
    """

    def __init__(self, arguments: Sequence[str], log: Path, prefix: Sequence[str] = ()) -> None:
        self.arguments, self.log, self.prefix = list(arguments), log, list(prefix)
        self.process: Any = None

    def start(self) -> Program:
        """Start the program, or start it again."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, sys.executable, "-c", START, *self.arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1"},  # one thread is set later anyway; do not create more
            )
        return self

    @property
    def pid(self) -> int:
        """Process id."""
        return int(self.process.pid)

    @property
    def is_running(self) -> bool:
        """Whether the process has been started and has not ended."""
        return self.process is not None and self.get_exit_code() is None

    def get_exit_code(self) -> int | None:
        """Return the exit code, or None if the program runs or was not started."""
        return None if self.process is None else self.process.poll()

    def has_failed(self) -> bool:
        """Return whether the program has ended with an exit code other than 0."""
        return self.get_exit_code() not in (None, 0)

    def wait_for_exit(self, seconds: float | None = None) -> bool:
        """Wait at most so many seconds; return whether the program has ended."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Send SIGKILL and wait."""
        self.send_signal(signal.SIGKILL)
        if self.process is not None:
            self.wait_for_exit()

    def stop(self) -> None:
        """Send SIGTERM; send SIGKILL if the program still runs after STOP_TIMEOUT."""
        self.send_signal(signal.SIGTERM)
        if self.process is not None and not self.wait_for_exit(STOP_TIMEOUT):
            self.kill()

    def send_signal(self, number: int) -> None:
        """Send a signal if the process exists; can be called by any thread."""
        if self.process is not None and self.process.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    def get_log_tail(self, lines: int = 1) -> str:
        """Return the last lines of the log; an empty text if there is no log."""
        with suppress(OSError):
            return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
        return ""


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies. Does nothing on systems other than Linux."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def wait_for_port(file: Path, program: Program, timeout: float = 300.0) -> int:
    """Wait until a server has written the port on which it listens.

    Raises:
        WorkError: The server has ended or did not start in time.
    """
    until = time.monotonic() + timeout
    while not file.exists():
        if not program.is_running or time.monotonic() > until:
            value = program.get_log_tail() or None
            raise WorkError("the server did not start", value=value, hint=f"See {program.log}.")
        time.sleep(POLL_INTERVAL)
    return int(file.read_text(encoding="ascii"))


MODEL = "model.safetensors"
CLIENT_EXIT_TIMEOUT = 5.0  # seconds that clients have to end after the server has ended
Report = Callable[[str], None]
Skips = frozenset[tuple[int, int, int]]  # (round, client, occurrence)


@dataclass(frozen=True)
class Verdict:
    """Whether the deployed run equals the simulation.

    Attributes:
        weights: Whether the final weights are identical.
        rows: Whether the rows are identical except for times. Not compared if visits were skipped.
        seconds: Duration of the deployed run, including the start of the programs.
        simulated: Duration of the simulation in seconds.
        programs: Number of programs.
        skips: Number of visits that were skipped in both runs.
    """

    weights: bool
    rows: bool
    seconds: float
    simulated: float
    programs: int
    skips: int = 0

    @property
    def is_same(self) -> bool:
        """Whether weights and rows are the same."""
        return self.weights and self.rows


@dataclass(frozen=True)
class RehearsalOptions:
    """Options of a rehearsal.

    Attributes:
        spec: The spec of the run.
        out: The run directory.
        hosts: Number of client programs; None for one program per client.
        insecure: Run without keys and encryption.
        timeout: Seconds for the deployed run.
        away: The server's policy for absent clients.
        lease: Seconds that a client may be absent.
        direct: Clients send their half directly to the next client.
        fed: Start a fed server, which averages the client halves.
        simulated: Directory of a simulation that several rehearsals share; None for a directory in `out`.
        device: The torch device of server, clients and simulation.
    """

    spec: Spec
    out: Path
    hosts: int | None = None
    insecure: bool = False
    timeout: float = 600.0
    away: str = "wait"
    lease: float = 60.0
    direct: bool = False
    fed: bool = False
    simulated: Path | None = None
    device: str = "cpu"


class Hosts(Protocol):
    """The hosts of a rehearsal and their network."""

    server_host: str

    def check_available(self) -> None:
        """Raise an InputError if the network cannot be created on this machine."""

    def get_client_host(self, m: int) -> str:
        """Return the address of client m."""

    def get_prefix(self, name: str) -> list[str]:
        """Return the command that runs a program on the host of the "server" or of a client (its number)."""

    def open(self, clients: Sequence[int]) -> str:
        """Create the network; return a description of it, or an empty text."""

    def close(self) -> str:
        """Remove the network; return a description of its traffic, or an empty text."""


class LocalHost:
    """All programs use the loopback address."""

    server_host = "127.0.0.1"

    def check_available(self) -> None:
        """Do nothing."""

    def get_client_host(self, m: int) -> str:
        """Return the loopback address."""
        return self.server_host

    def get_prefix(self, name: str) -> list[str]:
        """Return an empty prefix."""
        return []

    def open(self, clients: Sequence[int]) -> str:
        """Do nothing."""
        return ""

    def close(self) -> str:
        """Do nothing."""
        return ""


class Deployment:
    """Keys, data and programs of one rehearsal.

    Args:
        options: What is rehearsed.
        hosts: Where the programs run.
        program: How a program is started.
    """

    def __init__(self, options: RehearsalOptions, hosts: Hosts, program: type[Program] = Program) -> None:
        self.options, self.hosts, self.program = options, hosts, program
        self.spec = resolve_spec(options.spec, options.device)[0]
        self.folder = options.out / "rehearsal"
        self.port_file = self.folder / "port"
        self.log_hint = f"See {self.folder / 'logs'}."

    def prepare(self) -> Partition:
        """Write data, spec and keys as the hosts would have them.

        Raises:
            InputError: The spec cannot be deployed.
            OutputError: The run directory is not empty.
        """
        check_deployable(self.spec)
        self.hosts.check_available()
        if self.options.out.exists() and any(self.options.out.iterdir()):
            raise OutputError(f"the folder {self.options.out} exists and is not empty", hint="Choose another --out.")
        (self.folder / "logs").mkdir(parents=True)
        data = load_data(self.spec.data)
        partition = build_partition(self.spec, data)
        folder = self.folder / "data"
        if isinstance(data.train, ImageSet) and isinstance(data.test, ImageSet):
            train, test = data.train, data.test
            export_partition(partition, train.x, get_client_labels(train.y, train.classes), folder)
            np.savez(folder / "test.npz", x=test.x, y=get_client_labels(test.y, test.classes))
        else:
            export_samples(self.spec, data, partition, folder)
        write_text(self.folder / "spec.toml", self.spec.to_toml() + "\n")
        if not self.options.insecure:
            self._issue_keys(partition.clients)
        return partition

    def _issue_keys(self, clients: Sequence[int]) -> None:
        authority = create_authority(self.folder / "authority", "rehearsal", 2)
        authority.issue_server("server", [self.hosts.server_host, "localhost"], 1)
        for m in clients:
            hosts = [self.hosts.get_client_host(m)] if self.options.direct else []
            name = self.get_keys_folder(m).name
            authority.issue_client(name, m, evaluator=m == self.spec.evaluator, hosts=hosts, days=1)
        if self.options.fed:
            authority.issue_client("fed", fed=True, days=1)

    def get_keys_folder(self, m: int) -> Path:
        """Return the folder with the keys of client m."""
        return self.folder / f"client-{m}"

    def build_server(self, partition: Partition, *extra: str) -> Program:
        """Build the server program; `extra` are further arguments of `serve`."""
        options = self.options
        arguments = ["serve", str(self.folder / "spec.toml"), "--out", str(options.out)]
        arguments += ["--listen", f"{self.hosts.server_host}:0", "--port-file", str(self.port_file), "--linger", "0"]
        arguments += ["--fed-server"] * options.fed
        arguments += ["--away", options.away, "--lease", f"{options.lease:g}", "--device", options.device]
        for m in partition.empty:
            arguments += ["--without", str(m)]
        arguments += ["--insecure"] if options.insecure else ["--keys", str(self.folder / "server")]
        log = self.folder / "logs" / "server.log"
        return self.program([*arguments, *extra], log, self.hosts.get_prefix("server"))

    def build_client(self, number: int, clients: Sequence[int], address: str) -> Program:
        """Build client program `number`, which joins the server at `address` as all given clients."""
        options, spec = self.options, self.spec
        arguments = ["join", address]
        for m in clients:
            data = self._get_data_file(Path(get_client_folder(m, spec.partition.M)) / "data")
            keys = ["--client", str(m)] if options.insecure else ["--keys", str(self.get_keys_folder(m))]
            arguments += [*keys, "--data", str(data)]
            if m == spec.evaluator and (options.fed or spec.route == "peer-to-peer"):
                arguments += ["--test", str(self._get_data_file(Path("test"))), "--keep", str(options.out / MODEL)]
        arguments += ["--insecure"] * options.insecure + ["--sealed"] * options.fed
        arguments += ["--spec", str(self.folder / "spec.toml"), "--device", options.device]
        if options.direct:
            arguments += ["--listen", f"{self.hosts.get_client_host(clients[0])}:0"]
        log = self.folder / "logs" / f"host-{number}.log"
        return self.program(arguments, log, self.hosts.get_prefix(str(clients[0])))

    def _get_data_file(self, name: Path) -> Path:
        """Return a file that `prepare` wrote: a table if the data are one, else arrays."""
        return self.folder / "data" / name.with_suffix(".csv" if self.spec.data.label else ".npz")

    def build_fed_server(self, address: str) -> Program:
        """Build the fed server, which joins the server at `address`."""
        arguments = ["join", address, "--keys", str(self.folder / "fed"), "--fed-server"]
        return self.program([*arguments, "--spec", str(self.folder / "spec.toml")], self.folder / "logs" / "fed.log")

    def check_clients(self, clients: Iterable[Program]) -> None:
        """Raise a WorkError if a client has failed."""
        for client in clients:
            if client.has_failed():
                raise WorkError("a client failed", value=client.get_log_tail(), hint=self.log_hint)

    def check_server(self, server: Program) -> None:
        """Raise a WorkError if the server has failed."""
        if server.has_failed():
            raise WorkError("the server failed", value=server.get_log_tail().rstrip("."), hint=self.log_hint)

    def check_time(self, until: float) -> None:
        """Raise a WorkError if the monotonic time is after `until`."""
        if time.monotonic() > until:
            limit = f"at most {self.options.timeout:g} seconds"
            raise WorkError("the rehearsal takes too long", limit=limit, hint=self.log_hint)

    def compare_with_simulation(self, seconds: float, programs: int, skips: Skips = frozenset()) -> Verdict:
        """Simulate the same spec without the skipped visits, and compare weights and rows."""
        began = time.monotonic()
        shared = None if skips else self.options.simulated
        simulated = simulate(self.spec, RunDirectory(shared or self.folder / "simulated"), skips, self.options.device)
        deployed = RunDirectory(self.options.out)
        return Verdict(
            deployed.model.exists() and deployed.model.read_bytes() == simulated.model.read_bytes(),
            bool(skips) or read_untimed_rows(deployed) == read_untimed_rows(simulated),
            seconds,
            time.monotonic() - began,
            programs,
            len(skips),
        )


class Rehearsal:
    """One rehearsal without faults.

    Args:
        options: What is rehearsed.
        report: Called with messages about the progress.
        hosts: Where the programs run; the loopback address by default.
    """

    def __init__(self, options: RehearsalOptions, report: Report, hosts: Hosts | None = None) -> None:
        self.report = report
        self.deployment = Deployment(options, hosts or LocalHost())
        self.programs: list[Program] = []  # the server first

    def run(self) -> Verdict:
        """Run the deployment, then the simulation, and compare them.

        Raises:
            OutputError: The run directory is not empty.
            WorkError: A program failed, or the deployed run took too long.
        """
        partition = self.deployment.prepare()
        began = time.monotonic()
        try:
            self._start_programs(partition)
            server, *clients = self.programs
            while server.is_running:
                self.deployment.check_time(began + self.deployment.options.timeout)
                self.deployment.check_clients(clients)
                time.sleep(POLL_INTERVAL)
            self.deployment.check_server(server)
        finally:
            stop_programs(self.programs)
            self._report(self.deployment.hosts.close())
        seconds = time.monotonic() - began
        self.report(f"{len(self.programs)} programs have ended; the simulation starts")
        return self.deployment.compare_with_simulation(seconds, len(self.programs))

    def _start_programs(self, partition: Partition) -> None:
        deployment, clients = self.deployment, list(partition.clients)
        self._report(deployment.hosts.open(clients))
        server = deployment.build_server(partition).start()
        self.programs.append(server)
        port = wait_for_port(deployment.port_file, server)
        address = f"{deployment.hosts.server_host}:{port}"
        number = min(deployment.options.hosts or len(clients), len(clients))
        for i in range(number):
            self.programs.append(deployment.build_client(i, clients[i::number], address).start())
        if deployment.options.fed:
            self.programs.append(deployment.build_fed_server(address).start())
        self.report(f"the server listens on port {port}; {len(clients)} clients in {number} programs")

    def _report(self, text: str) -> None:
        if text:
            self.report(text)


def stop_programs(programs: Sequence[Program]) -> None:
    """Stop all programs. If the server, the first one, has ended normally, clients may end by themselves first."""
    if not programs:
        return
    server, *clients = programs
    for client in clients:
        until = time.monotonic() + CLIENT_EXIT_TIMEOUT
        while client.is_running and server.get_exit_code() == 0 and time.monotonic() < until:
            time.sleep(POLL_INTERVAL)
        client.stop()
    server.stop()


def simulate(spec: Spec, directory: RunDirectory, skips: Skips, device: str = "cpu") -> RunDirectory:
    """Run the spec in this process without the skipped visits; return the run directory."""
    for _ in execute(spec, directory, skips=skips, device=device):
        pass
    return directory


def read_untimed_rows(directory: RunDirectory) -> list[dict[str, Any]]:
    """Read the rows of a run without measured times."""
    return [remove_measurements(row) for row in directory.read_rows()]


def remove_keys_and_data(out: Path) -> None:
    """Remove keys, data and logs of a rehearsal; keep the run."""
    shutil.rmtree(out / "rehearsal", ignore_errors=True)
