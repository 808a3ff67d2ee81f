"""The inner seam keeps its promises: lost replies, repeated and misplaced steps, losses that travel, predictions."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from splitrelay.algorithms import Step, Visit
from splitrelay.data.images import ImageSet
from splitrelay.engine.base import (
    HEADER,
    LABEL,
    LOSS,
    NORM,
    ByteCountingHalf,
    LocalServerHalf,
    Reply,
    ServerHalf,
    compute_mean_loss,
    split_visit,
    train_client_half,
)
from splitrelay.engine.torch_engine import (
    LocalTraining,
    SplitEngine,
    TorchClientHalf,
    TorchServerLayers,
    WholeEngine,
)
from splitrelay.errors import WorkError
from splitrelay.kernels import local_steps
from splitrelay.models import ModelSpec, SubModel, get_model_spec
from splitrelay.models.submodel import copy_to_canonical
from splitrelay.objectives.batches import Batches
from splitrelay.objectives.network import DeviceImages, Network
from splitrelay.randomness import Purpose, rng
from tests.support.engines import ENGINES, in_two
from tests.support.error_fields import expect_error

torch.set_num_threads(1)
STEP = Step[torch.Tensor](eta=0.05, weight_decay=1e-2, clip=0.5, momentum=0.9)


def with_batch_norm() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.3), nn.Flatten(), nn.Linear(144, 8),
        nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 10),
    )  # fmt: skip


def network(model: ModelSpec | None = None) -> Network:
    generator = rng(1, Purpose.INSTANCES)
    x = generator.integers(0, 256, (60, 1, 8, 8), dtype=np.uint8)
    images = ImageSet(x, generator.integers(0, 10, 60), tuple("0123456789"), (0.5,), (0.3,))
    model = model or ModelSpec("own", with_batch_norm, (1, 8, 8), 3)
    return Network(model, DeviceImages(images), np.array_split(np.arange(60), 2), Batches(7))


def visit(net: Network, K: int = 4, step: Step[torch.Tensor] = STEP) -> Visit[torch.Tensor]:
    return Visit(2, 0, 1, net.model_spec.x0(7), step, K)


class Halves:
    """A visit with both halves in hand, so that a test can stand between them."""

    def __init__(self, net: Network, K: int = 4) -> None:
        self.engine, self.visit = SplitEngine(net, 5), visit(net, K)
        client_visit, server_visit = split_visit(self.visit, self.engine.boundary)
        training = LocalTraining(self.engine.bottom, client_visit, 5)
        self.samples = list(net.samples(training.name, K))
        self.bottom = TorchClientHalf(training, self.samples)
        self.top = LocalServerHalf(TorchServerLayers(LocalTraining(self.engine.top, server_visit, 5), net.loss))

    def against(self, top: ServerHalf) -> torch.Tensor:
        self.losses = train_client_half(self.bottom, top, self.visit.K)
        return torch.cat([self.engine.bottom.x, self.engine.top.x])


class Link:
    """A top whose every message comes `times` times, with the losses as a wire would bring them."""

    def __init__(self, top: ServerHalf, times: int = 1) -> None:
        self.top, self.times = top, times

    def step(self, k: int, h: torch.Tensor, labels: torch.Tensor, norm2: float) -> Reply:
        replies = [self.top.step(k, h.detach().clone(), labels, norm2) for _ in range(self.times)]
        assert all(torch.equal(reply.gradient, replies[0].gradient) for reply in replies)
        return replace(replies[-1], loss=float(replies[-1].loss))

    def finish(self, norm2: float) -> None:
        for _ in range(self.times):
            self.top.finish(norm2)


def test_a_repeated_step_gets_the_same_reply_and_changes_nothing() -> None:
    net = network()
    once = SplitEngine(net, 5).run(visit(net))
    halves = Halves(net)
    assert torch.equal(halves.against(Link(halves.top, times=3)), once.x)
    assert compute_mean_loss(halves.losses, halves.visit) == once.cost.loss  # also as numbers that have travelled


@pytest.mark.parametrize(("steps", "wrong"), [((), 1), ((0, 1), 0), ((0, 1), 3), ((0,), -1), ((), -1)])
def test_a_step_out_of_order_is_refused_and_leaves_the_half_as_it_was(steps: tuple[int, ...], wrong: int) -> None:
    halves = Halves(network())
    h, labels = halves.bottom.forward(0)
    for k in steps:
        halves.top.step(k, h.clone(), labels, 0.0)
    before = halves.engine.top.x.clone()
    with expect_error(WorkError, value=wrong, limit=True):
        halves.top.step(wrong, h, labels, 0.0)
    assert torch.equal(halves.engine.top.x, before)


def test_after_the_end_of_a_visit_only_its_last_step_is_answered() -> None:
    halves = Halves(network())
    h, labels = halves.bottom.forward(0)
    reply = halves.top.step(0, h, labels, 0.0)
    halves.top.finish(1.0)
    after = halves.engine.top.x.clone()
    halves.top.finish(2.0)
    assert halves.top.step(0, h, labels, 0.0) is reply
    with expect_error(WorkError, value=1, limit="0"):
        halves.top.step(1, h, labels, 0.0)
    assert torch.equal(halves.engine.top.x, after)


@pytest.mark.parametrize(
    "model", [get_model_spec("lenet5", (1, 28, 28), 10), ModelSpec("own", with_batch_norm, (1, 8, 8), 1)]
)
def test_predicting_over_every_cut_is_predicting_with_the_whole(model: ModelSpec) -> None:
    x, layers = model.x0(3), len(model.layers())
    features = torch.from_numpy(rng(1, Purpose.INSTANCES).random((20, *model.input_shape), dtype="float32"))
    whole = SubModel(model, 0, layers, torch.float32)
    whole.load(x)
    outputs = whole.predict(features)
    for cut in range(1, layers):
        bottom, top = SubModel(model, 0, cut, torch.float32), SubModel(model, cut, layers, torch.float32)
        boundary = model.layout().ends[cut]
        bottom.load(x[:boundary])
        training = LocalTraining(top, Visit(0, 0, 0, x[boundary:], STEP, 1), 5)
        half = LocalServerHalf(TorchServerLayers(training, nn.functional.cross_entropy))
        assert torch.equal(half.predict(copy_to_canonical(bottom.predict(features))), outputs), f"cut {cut}"


def test_predicting_between_visits_changes_nothing_and_in_a_visit_is_refused() -> None:
    net = network()
    plain = SplitEngine(net, 5).run(visit(net)).x
    halves = Halves(net)
    (features, labels), *_ = halves.samples
    h = copy_to_canonical(halves.engine.bottom.predict(features))
    halves.top.predict(h)
    assert torch.equal(halves.against(halves.top), plain)
    other = Halves(net)
    other.top.step(0, h.clone(), labels, 0.0)
    with expect_error(WorkError, what="server half", hint=True):
        other.top.predict(h)


def test_every_byte_of_a_visit_is_counted() -> None:
    net = network(get_model_spec("lenet-small", (1, 8, 8), 10))
    engine, given = SplitEngine(net, 5), visit(net, K=3)
    halves = Halves(net, K=3)
    line = ByteCountingHalf(halves.top)
    halves.against(line)
    smashed, own, B, tensors = 64 * 4, 4 * engine.boundary, 7, 4  # floats of one image; two linear layers above
    up = 3 * (HEADER + B * (smashed + LABEL) + NORM) + HEADER + NORM
    down = 3 * (HEADER + B * smashed + tensors * NORM + LOSS)
    assert (line.up, line.down) == (up, down)
    cost = engine.run(given).cost
    assert (cost.up, cost.down) == (up + HEADER + own, down + HEADER + own)


def test_scaffolds_shift_travels_with_the_part_of_the_model_that_does() -> None:
    net = network(get_model_spec("lenet-small", (1, 8, 8), 10))
    x = net.model_spec.x0(7)
    shifted = visit(net, step=replace(STEP, shift=0.001 * x))
    for engine, part in ((WholeEngine(net, 5), len(x)), (SplitEngine(net, 5), SplitEngine(net, 5).boundary)):
        plain, more = engine.run(visit(net)).cost, engine.run(shifted).cost
        assert (more.up, more.down) == (plain.up, plain.down + HEADER + 4 * part)


class Repeating:
    """A fast top whose every message comes three times, on memory of its own, as from a wire."""

    def __init__(self, top: LocalServerHalf) -> None:
        self.top = top

    def step(self, k: int, h: np.ndarray, labels: np.ndarray, norm2: float) -> Reply:
        replies = [self.top.step(k, h.copy(), labels.copy(), norm2) for _ in range(3)]
        assert replies[0] is replies[2]
        return replies[0]

    def finish(self, norm2: float) -> None:
        for _ in range(3):
            self.top.finish(norm2)


@pytest.mark.skipif("fast" not in ENGINES, reason="the kernels are not built here")
@pytest.mark.parametrize("cut", ["conv1", "pool1", "pool2"])
def test_a_repeated_step_changes_nothing_on_the_fast_engine(cut: str) -> None:
    net = network(get_model_spec("lenet-small", (1, 8, 8), 10))
    engine, given = in_two("fast", net, cut=cut), visit(net)
    once, inner = engine.run(given), engine.inner
    client_visit, server_visit = split_visit(replace(given, x=given.x.numpy()), inner.boundary)
    training = local_steps.LocalTraining(inner.bottom, client_visit, 5)
    bottom = local_steps.KernelClientHalf(training, inner.table, inner.draw(given))
    layers = local_steps.KernelServerLayers(local_steps.LocalTraining(inner.top, server_visit, 5))
    losses = train_client_half(bottom, Repeating(LocalServerHalf(layers)), given.K)
    x = np.concatenate([inner.bottom.save()[0], inner.top.save()[0]])
    assert x.tobytes() == once.x.numpy().tobytes()
    assert compute_mean_loss(losses, given) == once.cost.loss
