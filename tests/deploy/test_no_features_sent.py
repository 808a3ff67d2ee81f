"""Everything that clients send, as an eavesdropper sees it: is any piece of an image in it?"""

import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splitrelay.chaos.proxies import TcpProxy
from splitrelay.data import load
from splitrelay.data.images import ImageSet
from splitrelay.network.codec import MAGIC
from splitrelay.randomness import Purpose, rng
from splitrelay.runs.spec import load_spec
from tests.support.deployment import LocalDeployment
from tests.support.small_datasets import cut_into_pieces

PREFACE = 24  # bytes with which HTTP/2 begins


class Tapped:
    """A socket of whose bytes somebody keeps a copy."""

    def __init__(self, line: socket.socket, tape: bytearray) -> None:
        self.line, self.tape = line, tape

    def recv(self, size: int) -> bytes:
        piece = self.line.recv(size)
        self.tape += piece
        return piece

    def __getattr__(self, name: str) -> Any:
        return getattr(self.line, name)


class Recorder(TcpProxy):
    """Keeps all that clients say."""

    def __init__(self, port: int) -> None:
        self.tapes: list[bytearray] = []
        super().__init__(port)

    def forward(self, source: socket.socket, sink: socket.socket, up: bool) -> None:
        if up:
            self.tapes.append(bytearray())
            source = Tapped(source, self.tapes[-1])  # type: ignore[assignment]
        super().forward(source, sink, up)


def carried(tape: bytes) -> bytes:
    """What was sent over a connection of HTTP/2, without the heads of its frames: they may stand inside a message."""
    at, found = PREFACE, bytearray()
    while at + 9 <= len(tape):
        end = at + 9 + int.from_bytes(tape[at : at + 3], "big")
        if tape[at + 3] == 0:  # DATA
            found += tape[at + 9 : end]
        at = end
    return bytes(found)


def seen(images: ImageSet, said: bytes) -> dict[str, int]:
    """Of how many images a piece is in what was said, by form."""
    windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(said, np.uint8), 8)
    there = np.unique(np.ascontiguousarray(windows).view("<u8"))
    return {name: int(np.isin(found, there).any(axis=1).sum()) for name, found in cut_into_pieces(images).items()}


def own_set(folder: Path) -> Path:
    """Colour images no two of which have much in common."""
    x = rng(7, Purpose.INSTANCES).integers(1, 256, (200, 3, 8, 8)).astype(np.uint8)
    np.savez(folder / "own.npz", x=x, y=np.arange(200) % 10)
    return folder / "own.npz"


def recorded(folder: Path, *words: str) -> tuple[ImageSet, bytes]:
    """A run without keys: all images of its clients, and all that these have said."""
    spec = load_spec(None, [f"data={own_set(folder)}", "M=2", "C=9", "K=2", "R=2", "batch=10", *words])
    stage, lines = LocalDeployment(spec, folder), list[Recorder]()

    def line() -> str:
        lines.append(Recorder(stage.serving.port))
        return f"127.0.0.1:{lines[-1].port}"

    for m in stage.partition.clients:
        stage.join(m, address=line)
    stage.play()
    for one in lines:
        one.close()
    said = b"".join(carried(bytes(tape)) for one in lines for tape in one.tapes)
    assert len(stage.events("committed")) == 4 and said.count(MAGIC) > 4  # each word begins with it
    return load(spec.data.name).train, said


NOTHING = {"pixels": 0, "greys": 0, "levels": 0, "long levels": 0}


@pytest.mark.parametrize(
    "words",
    [
        "model=lenet-small cut=conv1 engine=fast",
        "model=lenet-small cut=conv1 engine=reference",
        "model=lenet-small cut=conv1 dtype=float64",
        "model=lenet-small engine=fast clip=1",
        "model=lenet-small algorithm=splitfed-v3 cut=relu1",
        "model=lenet-small algorithm=fedavg placement=whole",
    ],
)
def test_above_the_first_layer_no_image_leaves_its_client(words: str, tmp_path: Path) -> None:
    assert seen(*recorded(tmp_path, *words.split())) == NOTHING


# The test can fail


@pytest.mark.parametrize(
    ("words", "form"),
    [("engine=fast", "levels"), ("engine=reference", "levels"), ("engine=reference dtype=float64", "long levels")],
)
def test_below_the_first_layer_whoever_listens_has_the_images(words: str, form: str, tmp_path: Path) -> None:
    """Softmax regression is cut after its flatten: what goes up is the input."""
    images, said = recorded(tmp_path, "model=logistic", "cut=flatten", *words.split())
    assert {name for name, number in seen(images, said).items() if number} == {form}
    assert 2 * 2 * 10 <= seen(images, said)[form] <= len(images)  # at least those of each client's first visit


def test_images_as_they_lie_in_a_file_are_found_too(tmp_path: Path) -> None:
    images = load(str(own_set(tmp_path))).train
    assert seen(images, (tmp_path / "own.npz").read_bytes()) == {**NOTHING, "pixels": len(images)}
