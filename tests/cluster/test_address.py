"""A Ray that somebody else has started, joined by its address: the bits of a local sweep, or a line on why not."""

import os
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from splitrelay.randomness import Purpose, rng
from splitrelay.sweeps.ray_backend import QUIET

RAY = str(Path(sys.executable).with_name("ray"))
PROGRAM = [sys.executable, "-c", "from splitrelay.cli.main import run; run()"]
NODE = ["--num-cpus", "1", "--object-store-memory", "80000000", "--node-ip-address", "127.0.0.1", "--block"]
WAIT = 180  # seconds for anything at all
PATIENT = {
    "RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S": "120"
}  # half a minute is too short where others use the machine


@dataclass(frozen=True)
class Head:
    """A head and one raylet more, in processes of their own; `env` is that of a user who has their token."""

    port: int
    client_port: int
    env: dict[str, str]

    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{self.port}", f"ray://127.0.0.1:{self.client_port}"]


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    ports = free_ports(2)
    with tempfile.TemporaryDirectory(prefix="sr") as folder:  # short: sockets lie in it
        env = {**os.environ, **QUIET, **PATIENT, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        head = [RAY, "start", "--head", "--port", str(ports[0]), "--ray-client-server-port", str(ports[1])]
        head += ["--include-dashboard", "false", "--temp-dir", folder]
        programs = [started([*head, *NODE], env)]
        programs.append(started([RAY, "start", "--address", f"127.0.0.1:{ports[0]}", *NODE], env))
        yield Head(*ports, env)
        for program in reversed(programs):
            program.terminate()  # with --block it ends what it has started
            program.communicate(timeout=WAIT)


def started(command: list[str], env: dict[str, str]) -> subprocess.Popen[str]:
    program = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert program.stdout is not None
    said = []
    for line in program.stdout:
        said.append(line)
        if "Ray runtime started" in line:
            return program
    raise AssertionError("".join(said))


def free_ports(number: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "own.npz"
    np.savez(path, x=rng(4, Purpose.INSTANCES).integers(0, 256, (90, 8, 8), dtype=np.uint8), y=np.arange(90) % 3)
    return path


def called(own: Path, env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    spec = [f"data={own}", "model=mlp", "M=5", "K=2", "C=1", "R=3"]
    return subprocess.run([*PROGRAM, *words, *spec], env=env, capture_output=True, text=True, timeout=WAIT)


def weights(folder: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in folder.rglob("model.safetensors")}


def test_a_sweep_on_a_ray_that_is_joined_has_the_bits_of_a_local_one(head: Head, own: Path, tmp_path: Path) -> None:
    sweep = ["sweep", "algorithm=ssl,fedavg", "--out"]
    assert called(own, head.env, *sweep, str(tmp_path / "local")).returncode == 0
    for number, address in enumerate(head.addresses()):
        answer = called(own, head.env, *sweep, str(tmp_path / str(number)), "--on", address)
        assert answer.returncode == 0, answer.stderr
        assert weights(tmp_path / str(number)) == weights(tmp_path / "local") != {}


def test_visits_on_a_ray_that_is_joined_have_the_bits_of_local_ones(head: Head, own: Path, tmp_path: Path) -> None:
    run = ["run", "algorithm=fedavg", "--out"]
    assert called(own, head.env, *run, str(tmp_path / "local" / "run")).returncode == 0
    answer = called(own, head.env, *run, str(tmp_path / "ray" / "run"), "--clients", head.addresses()[1])
    assert answer.returncode == 0, answer.stderr
    assert weights(tmp_path / "ray") == weights(tmp_path / "local") != {}


def test_who_has_no_token_is_told_so_at_once(head: Head, own: Path, tmp_path: Path) -> None:
    stranger = {name: value for name, value in head.env.items() if not name.startswith("RAY_AUTH")}
    for address in head.addresses():
        answer = called(own, stranger, "sweep", "eta=0.1,0.3", "--on", address, "--out", str(tmp_path / "sweep"))
        assert (answer.returncode, answer.stderr.count("\n")) == (2, 1)
        assert address in answer.stderr and "RAY_AUTH_MODE=token" in answer.stderr
        assert not (tmp_path / "sweep").exists()
