"""A server and its clients in one process, over real connections, on a small generated data set."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from splitrelay.algorithms.base import Visit
from splitrelay.data import load
from splitrelay.data.images import ImageSet
from splitrelay.data.partition import Partition
from splitrelay.data.partition_io import export_partition, get_client_folder, get_client_labels
from splitrelay.deploy.authorization import authorize_by_certificate
from splitrelay.deploy.client_program import ClientOptions, ClientProgram
from splitrelay.deploy.handshake import AgreedSpec
from splitrelay.deploy.sample_terms import export_samples
from splitrelay.deploy.server_program import ServerConfig, ServerProgram
from splitrelay.deploy.server_visit import Policy
from splitrelay.engine import Flaky
from splitrelay.errors import SplitrelayError
from splitrelay.network.limits import Timeouts
from splitrelay.runs.build import build_partition, load_data
from splitrelay.runs.execute import execute
from splitrelay.runs.run_directory import RunDirectory, remove_measurements
from splitrelay.runs.spec import Spec, load_spec
from splitrelay.runs.trainer import Trainer
from splitrelay.security.authority import create_authority
from splitrelay.security.identity import build_server_credentials, load_identity
from splitrelay.security.revocation import Revocations

SMALL = ("M=4", "C=3", "K=2", "R=2", "batch=5", "model=mlp", "placement=cut")


def write_small_dataset(path: Path) -> Path:
    """Write two hundred grey images of ten classes."""
    y = np.arange(200) % 10
    pixels = (np.arange(64)[None] * (y[:, None] + 3) + np.arange(200)[:, None]) % 256
    np.savez(path, x=pixels.reshape(-1, 8, 8).astype(np.uint8), y=y)
    return path


def small_spec(folder_: Path, *words: str) -> Spec:
    given = {word.partition("=")[0] for word in words}
    given |= {"batch"} if "draw=full" in words else set()  # which has no effect then
    given |= {"K"} if any(word.startswith("tau=") and "+" in word for word in words) else set()
    if any(word in words for word in ("partition=iid", "partition=dirichlet")):
        given.add("C")  # it has no effect there
    kept = [word for word in SMALL if word.partition("=")[0] not in given]
    return load_spec(None, [f"data={write_small_dataset(folder_ / 'own.npz')}", *kept, *words])


def simulate_run(spec: Spec, out: Path) -> RunDirectory:
    directory = RunDirectory(out)
    list(execute(spec, directory))
    return directory


def write_client_data(spec: Spec, to: Path) -> Partition:
    """Write the data of each client under `to`."""
    data = load_data(spec.data)
    partition = build_partition(spec, data)
    if not isinstance(data.train, ImageSet):
        export_samples(spec, data, partition, to)
    elif not to.exists():
        export_partition(partition, data.train.x, get_client_labels(data.train.y, data.train.classes), to)
        np.savez(to / "test.npz", x=data.test.x, y=get_client_labels(data.test.y, data.test.classes))
    return partition


PATIENCE = 300.0  # seconds: on a busy machine, too, only a run that hangs takes so long
# Short pauses between two attempts, and between two checks of a timeout. No timeout passes unless something hangs.
CLIENT = Timeouts(
    first_retry=0.02, longest_retry=0.1, handshake=PATIENCE, silence=PATIENCE, grace=PATIENCE, peer=PATIENCE
)
SERVER = replace(CLIENT, heartbeat=0.5, server_tick=0.05)


class ClientStop(threading.Event):
    """Stops a client that has lost its server and waits for another one, although the server has ended for good.

    A client waits on this event only between two attempts to connect.
    """

    def __init__(self, has_ended: threading.Event) -> None:
        super().__init__()
        self.has_ended = has_ended

    def wait(self, timeout: float | None = None) -> bool:
        return self.has_ended.is_set() or super().wait(timeout)


class LocalDeployment:
    """A server in this thread, and clients in threads of their own."""

    def __init__(
        self, spec: Spec, folder_: Path, *, policy: Policy | None = None, keys: bool = False, **offer: Any
    ) -> None:
        self.spec, self.folder = spec, folder_
        self.partition = write_client_data(spec, folder_ / "data")
        self.said: list[str] = []
        self.stop = threading.Event()
        self.listening = threading.Event()
        absent, self.keys = self.partition.empty, keys
        if keys and not (folder_ / "authority").exists():
            authority = create_authority(folder_ / "authority", "tests")
            authority.issue_server("server", ["127.0.0.1"])
            for m in self.partition.clients:
                authority.issue_client(f"client-{m}", m)
        if keys:
            identity = load_identity(folder_ / "server")
            admit = authorize_by_certificate(Revocations(identity.revocation_file, identity.ca), spec.partition.M)
            offer = {"credentials": build_server_credentials(identity), "admit": admit, **offer}
        self.offer = ServerConfig(
            spec, folder_ / "run", policy=policy or Policy(), **{"without": absent, "timeouts": SERVER, **offer}
        )
        self.serving = ServerProgram(self.offer, self.said.append, self.stop)
        self.serving.on_listening = lambda port: self.listening.set()
        self.clients: dict[int, ClientProgram] = {}
        self.words: dict[int, Any] = {}
        self.crashes: dict[int, Exception] = {}  # errors of clients that are mistakes in the code
        self.threads: list[threading.Thread] = []
        self.stops: list[threading.Event] = []  # each ends a client that would wait for another server
        self.has_ended = threading.Event()  # the server, for good

    def join(self, m: int, *, address: Callable[[], str] | None = None, stays: bool = False, **wish: Any) -> None:
        """Start client m as soon as the server listens. If it `stays`, it waits for another server after this one."""
        stop = threading.Event() if stays else ClientStop(self.has_ended)
        if not stays:
            self.stops.append(stop)
        thread = threading.Thread(target=self._joined, args=(m, address, stop, wish), daemon=True)
        self.threads.append(thread)
        thread.start()

    def _joined(self, m: int, address: Callable[[], str] | None, stop: threading.Event, wish: dict[str, Any]) -> None:
        while not self.listening.wait(0.05):
            if stop.is_set():  # the server has ended before it listened
                return
        where = address() if address else f"127.0.0.1:{self.serving.port}"
        name = "data.csv" if self.spec.data.label else "data.npz"
        data = wish.pop("data", self.folder / "data" / get_client_folder(m, self.partition.M) / name)
        keys = self.folder / f"client-{m}" if self.keys else None
        try:
            wishes = {"patience": PATIENCE, "keys": keys, "agreed": AgreedSpec(self.spec), "timeouts": CLIENT, **wish}
            self.clients[m] = ClientProgram(ClientOptions(where, m, data, **wishes), self.said.append, stop)
            self.words[m] = self.clients[m].run()
        except SplitrelayError as error:
            self.words[m] = error
        except Exception as error:
            self.words[m] = self.crashes[m] = error
            if len(self.crashes) == len(self.threads):  # no client is left to train with
                self.stop.set()

    def play(self) -> list[dict[str, Any]]:
        """Run until all clients have ended, and return the rows. A run that waits too long is stopped and fails.

        After an error of the server its clients are told to stop. After the last round they end by themselves.
        """
        overdue = threading.Event()

        def stop() -> None:
            overdue.set()
            self.stop.set()

        watch = threading.Timer(PATIENCE, stop)
        watch.start()
        try:
            return [progress.row for progress in self.serving.rows()]
        except BaseException as error:
            for event in self.stops:
                event.set()
            is_stopped = isinstance(error, KeyboardInterrupt)
            assert not is_stopped or not (overdue.is_set() or self.crashes), f"the server waits; words: {self.words}"
            raise
        finally:
            watch.cancel()
            self.has_ended.set()
            for thread in self.threads:
                thread.join(PATIENCE)

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = (self.folder / "run" / "relay" / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == kind]


def remove_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows without the columns that hold measured times."""
    return [remove_measurements(row) for row in rows]


def draw_x0(stage: LocalDeployment) -> Any:
    return Trainer(stage.spec, load(stage.spec.data.name), stage.partition).x0()


def simulate_with_skips(spec: Any, stage: LocalDeployment, skipped: set[tuple[int, int]]) -> bytes:
    """Return the final weights of the simulation without the skipped visits."""
    learning = Trainer(spec, load(spec.data.name), stage.partition)

    def fails(visit: Visit[Any]) -> bool:
        return (visit.r, visit.m) in skipped

    learning.clients.clients = Flaky(learning.clients.clients, fails)
    *_, (_, state) = learning.run(spec.R, overlap=False)
    return bytes(learning.algorithm.model(state).numpy().tobytes())


def stop_after_commits(stage: LocalDeployment, number: int) -> None:
    """Stop the server when its record shows this number of commits."""

    def watch(port: int) -> None:
        stage.listening.set()
        note = stage.serving.journal.note

        def counted(event: str, **facts: Any) -> None:
            note(event, **facts)
            if len(stage.events("committed")) >= number:
                stage.stop.set()

        stage.serving.journal.note = counted  # type: ignore[method-assign, assignment]

    stage.serving.on_listening = watch


def watch_events(stage: LocalDeployment, happened: Callable[[str, dict[str, Any]], None]) -> None:
    """Call `happened` on each event, in the training thread, before the server acts on it."""

    def watch(port: int) -> None:
        note = stage.serving.journal.note

        def noted(event: str, **facts: Any) -> None:
            note(event, **facts)
            happened(event, facts)

        stage.serving.journal.note = noted  # type: ignore[method-assign, assignment]
        stage.listening.set()

    stage.serving.on_listening = watch


def read_final_weights(stage: LocalDeployment) -> bytes:
    found = stage.serving.directory.checkpoints.load_newest(draw_x0(stage), at_most=stage.spec.R)
    assert found is not None
    return bytes(found[1].numpy().tobytes())


def list_skips(stage: LocalDeployment) -> dict[tuple[int, int], str]:
    return {(event["round"], event["client"]): event["why"] for event in stage.events("skipped")}
