"""A model so small that its visit can be priced on paper: do `cost`, a record and the wire say the same numbers?

One image is 1 x 8 x 8, float32. Forward, a multiply-add counting two and nothing else counting, for one image:

    layer                 out        numbers  parameters       FLOPs
    conv  3x3, 1 to 2     2 x 6 x 6  72       2 (9 + 1) = 20   72 2 9  = 1296
    relu                  2 x 6 x 6  72                        0
    flatten               72         72                        0
    fc    72 to 10        10         10       10 (72 + 1) = 730  10 2 72 = 1440
    all                                       750              2736

A visit is K = 3 steps on 5 images, so 15 images. Forward and backward together are three forwards.

    a step up      header 64, h 5 72 4 = 1440, labels 5 4 = 20, norm 8      1532
    its reply      header 64, gradient 1440, loss 8                         1512
    finish up      header 64, norm 8                                        72
    half           header 64, weights 18 4 = 72, biases 2 4 = 8             256     each way
    whole model    header 64, half 192, weights 720 4 = 2880, biases 40     3200    each way, 2 messages
    up             3 1532 + 72 + 256                                        4924
    down           3 1512 + 256                                             4792
    messages       3 steps, 3 replies, finish, half down, half up           9
    FLOPs          client, cut after conv, relu or flatten: 1296 3 15 = 58 320
                   server: 1440 3 15 = 64 800
                   whole: 2736 3 15 = 123 120

Every tensor of x begins at a multiple of 64 bytes: 72 take 128, 8 and 40 take 64, 2880 are 45 times 64.
"""

import json
from collections import Counter, OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from splitrelay.deploy.visit_cost import compute_costs
from splitrelay.network import client_session, codec
from splitrelay.network.messages import Message
from tests.deploy.test_handshake import left
from tests.support.deployment import LocalDeployment, simulate_run, small_spec

TINY = ("model=tests.deploy.test_cost_exact:tiny", "partition=iid", "M=2", "K=3", "R=1", "batch=5")


def tiny() -> nn.Sequential:
    layers = {"conv": nn.Conv2d(1, 2, 3), "relu": nn.ReLU(), "flatten": nn.Flatten(), "fc": nn.Linear(72, 10)}
    return nn.Sequential(OrderedDict(layers))


@dataclass(frozen=True)
class Paper:
    """What a visit costs by hand."""

    up: float
    down: float
    messages: float
    flops: float
    parameters: int


WHOLE = Paper(up=3200, down=3200, messages=2, flops=123_120, parameters=750)
BY_HAND = {
    "": [
        Paper(4924, 4792, 9, 58_320, 20),
        Paper(4924, 4792, 9, 58_320, 20),
        Paper(4924, 4792, 9, 58_320, 20),
        WHOLE,
    ],
    # each reply brings the norms of the server's two tensors, 16 more: 4792 + 3 16
    "clip=1": [
        Paper(4924, 4840, 9, 58_320, 20),
        Paper(4924, 4840, 9, 58_320, 20),
        Paper(4924, 4840, 9, 58_320, 20),
        WHOLE,
    ],
    # half 64 + 192 + 64 = 320 (144 take 192, 16 take 64), whole 320 + 5760 + 128 = 6208 (80 take 128),
    # up 3 (64 + 2880 + 20 + 8) + 72 + 320, down 3 (64 + 2880 + 8) + 320
    "dtype=float64": [
        Paper(9308, 9176, 9, 58_320, 20),
        Paper(9308, 9176, 9, 58_320, 20),
        Paper(9308, 9176, 9, 58_320, 20),
        Paper(6208, 6208, 2, 123_120, 750),
    ],
    # the client's part of the shift goes down with the half: 4792 + 256, 3200 2
    "algorithm=scaffold": [
        Paper(4924, 5048, 9, 58_320, 20),
        Paper(4924, 5048, 9, 58_320, 20),
        Paper(4924, 5048, 9, 58_320, 20),
        Paper(3200, 6400, 2, 123_120, 750),
    ],
    # a client has 80 images, so its steps are on 50, 30 and 50: up 3 72 + 130 292 + 72 + 256, down 3 72 + 130 288 +
    # 256, FLOPs 1296 3 130 and 2736 3 130
    "batch=50": [
        Paper(38_504, 37_912, 9, 505_440, 20),
        Paper(38_504, 37_912, 9, 505_440, 20),
        Paper(38_504, 37_912, 9, 505_440, 20),
        Paper(3200, 3200, 2, 1_067_040, 750),
    ],
}


@pytest.mark.parametrize("words", BY_HAND)
def test_the_command_says_what_paper_says(words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(small_spec(tmp_path, *TINY, *words.split()).to_toml())
    assert left("cost", str(path), "--format", "json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [Paper(**{name: row[name] for name in vars(WHOLE)}) for row in rows] == BY_HAND[words]
    assert [row["after"] for row in rows] == ["conv", "relu", "flatten", ""] and {row["visits"] for row in rows} == {1}


def test_what_the_client_does_not_compute_the_server_does(tmp_path: Path) -> None:
    *cuts, whole = compute_costs(small_spec(tmp_path, *TINY))
    assert [whole.flops - cut.flops for cut in cuts] == [64_800, 64_800, 64_800]


# A real visit


class Overheard:
    """Frames of all clients by kind, as they leave and as they come: how many, and of how many bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.up, self.down = Counter[str](), Counter[str]()
        self.lengths: dict[str, set[int]] = {}
        monkeypatch.setattr(client_session, "encode", self.encode)
        monkeypatch.setattr(client_session, "decode", self.decode)

    def encode(self, message: Message) -> bytes:
        return self._heard(self.up, message, codec.encode(message))

    def decode(self, frame: bytes, *bounds: Any) -> Message:
        message = codec.decode(frame, *bounds)
        self._heard(self.down, message, frame)
        return message

    def _heard(self, way: Counter[str], message: Message, frame: bytes) -> bytes:
        way[message.event] += 1
        self.lengths.setdefault(message.event, set()).add(len(frame))
        return frame


def played(folder: Path, *words: str) -> tuple[LocalDeployment, dict[str, Any]]:
    stage = LocalDeployment(small_spec(folder, *TINY, *words), folder)
    for m in stage.partition.clients:
        stage.join(m)
    return stage, stage.play()[-1]


@pytest.mark.parametrize("cut", [1, 2, 3])
@pytest.mark.parametrize("words", BY_HAND)
def test_a_deployed_round_records_what_paper_says(words: str, cut: int, tmp_path: Path) -> None:
    stage, row = played(tmp_path, f"cut={cut}", *words.split())
    paper = BY_HAND[words][cut - 1]
    assert (row["bytes_up"], row["bytes_down"]) == (2 * paper.up, 2 * paper.down)
    simulation = simulate_run(stage.spec, tmp_path / "simulated").read_rows()[-1]
    assert (row["bytes_up"], row["bytes_down"]) == (simulation["bytes_up"], simulation["bytes_down"])


def test_a_whole_model_costs_what_paper_says(tmp_path: Path) -> None:
    _, row = played(tmp_path, "algorithm=fedavg", "placement=whole")
    assert (row["bytes_up"], row["bytes_down"]) == (2 * 3200, 2 * 3200)


def test_the_wire_carries_as_many_messages_as_paper_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step, its reply and the finish are as long as on paper; the half has a word before it, and its own form."""
    wire = Overheard(monkeypatch)
    stage, row = played(tmp_path, "cut=1")
    visit = {name: wire.up[name] + wire.down[name] for name in ("step", "reply", "finish", "chunk")}
    assert visit == {"step": 2 * 3, "reply": 2 * 3, "finish": 2, "chunk": 2 * 2}
    assert sum(visit.values()) == 2 * BY_HAND[""][0].messages
    assert [wire.lengths[name] for name in ("step", "reply", "finish")] == [{1532}, {1512}, {72}]
    assert row["bytes_up"] == 6 * 1532 + 2 * 72 + 2 * 256 and row["bytes_down"] == 6 * 1512 + 2 * 256
    around = {"hello": 2, "accept": 2, "ready": 2, "paid": 2, "deposit": 2}
    assert {name: number for name, number in wire.up.items() if name not in (*visit, "heartbeat")} == around
    said = [client.session.meter.messages for client in stage.clients.values()]
    assert said == [3 + 1 + 1 + 5] * 2  # steps, finish, half; what is around them
