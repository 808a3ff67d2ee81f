"""Whole and cut give the same bits, at every layer, with everything switched on."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from splitrelay.algorithms import SSL, FedAvg, Scaffold, Step, Visit
from splitrelay.data.augment import Augmentation
from splitrelay.data.images import ImageSet
from splitrelay.deploy.sealed_state import make_first_state
from splitrelay.engine.thread_pool import Pool
from splitrelay.engine.torch_engine import SplitEngine, WholeEngine
from splitrelay.engine.vector import take_local_steps
from splitrelay.errors import Diverged, InputError
from splitrelay.models import ModelSpec, SubModel, find_cut_index, get_model_spec
from splitrelay.objectives.batches import Batches
from splitrelay.objectives.network import DeviceImages, Name, Network
from splitrelay.participation import Permutation
from splitrelay.randomness import Purpose, rng
from splitrelay.training import train
from tests.support.engines import ENGINES, in_two, whole
from tests.support.error_fields import expect_error

torch.set_num_threads(1)
BOTH = pytest.mark.parametrize("engine", ENGINES)
EVERYTHING = Step[torch.Tensor](eta=0.05, weight_decay=1e-2, clip=1.0, momentum=0.9, prox=0.1)


def pictures(shape: tuple[int, int, int], N: int = 120) -> ImageSet:
    generator = rng(1, Purpose.INSTANCES)
    x = generator.integers(0, 256, (N, *shape), dtype=np.uint8)
    mean, std = (0.5,) * shape[0], (0.3,) * shape[0]
    return ImageSet(x, generator.integers(0, 10, N), tuple("0123456789"), mean, std)


def network(name: str, dtype: torch.dtype = torch.float32, **more) -> Network:
    shape = {"lenet5": (1, 28, 28), "vgg11": (3, 32, 32), "cnncifar": (3, 32, 32)}.get(name, (1, 8, 8))
    images = pictures(shape)
    holdings = np.array_split(np.arange(len(images)), 4)
    settings = {"batches": Batches(7), "augmentation": Augmentation(pad=2), **more}
    return Network(get_model_spec(name, shape, 10), DeviceImages(images, dtype), holdings, dtype=dtype, **settings)


def cuts(name: str) -> range:
    return range(1, len(network(name).model_spec.layers()))


def visit(net: Network, step: Step, K: int = 3) -> Visit:
    x = net.model_spec.x0(7, net.dtype)
    return Visit(2, 1, 3, x, replace(step, shift=1e-3 * x) if step.shift is None and step.prox else step, K)


@pytest.mark.parametrize("name", ["lenet5", "mlp", "lenet-small", "cnncifar"])
def test_whole_is_cut_at_every_layer(name: str) -> None:
    net = network(name)
    whole = WholeEngine(net, 5).run(visit(net, EVERYTHING, K=6)).x
    for cut in cuts(name):
        assert torch.equal(SplitEngine(net, 5, cut).run(visit(net, EVERYTHING, K=6)).x, whole), f"cut {cut}"


@pytest.fixture(scope="module")
def on_vgg11() -> tuple[Network, Visit, torch.Tensor]:
    """A network, a visit, and the result of the whole model."""
    net = network("vgg11")
    given = visit(net, EVERYTHING, 2)
    return net, given, WholeEngine(net, 5).run(given).x


@pytest.mark.parametrize("cut", ["pool1", "conv3_1", "pool3", "pool5", "fc1", "dropout1", "relu2"])
def test_whole_is_cut_on_vgg11(cut: str, on_vgg11: tuple[Network, Visit, torch.Tensor]) -> None:
    net, given, expected = on_vgg11
    assert torch.equal(SplitEngine(net, 5, cut).run(given).x, expected)


def test_whole_is_cut_in_double_precision() -> None:
    net = network("lenet-small", torch.float64)
    assert torch.equal(
        SplitEngine(net, 5).run(visit(net, EVERYTHING)).x, WholeEngine(net, 5).run(visit(net, EVERYTHING)).x
    )


def with_batch_norm() -> ModelSpec:
    return ModelSpec(
        "bn",
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(144, 8),
            nn.BatchNorm1d(8),
            nn.Linear(8, 10),
        ),
        (1, 8, 8),
        3,
    )


def test_batch_norms_running_values_are_part_of_x_at_every_cut() -> None:
    net = replace(network("lenet-small"), model_spec=with_batch_norm())
    whole = WholeEngine(net, 5).run(visit(net, EVERYTHING)).x
    layout = net.model_spec.layout()
    running = next(slot for slot in layout.slots if slot.name == "1.running_mean")
    assert not torch.equal(running.view(whole), running.view(net.model_spec.x0(7)))
    for cut in range(1, 7):
        assert torch.equal(SplitEngine(net, 5, cut).run(visit(net, EVERYTHING)).x, whole)


class ChannelsBehind(nn.Module):
    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h.permute(0, 2, 3, 1)


# Nets of one's own in which a gradient or an activation comes in another memory format than the cut hands over.
ODD = {
    "dropouts": lambda: [nn.Dropout(0.2), nn.Conv2d(1, 4, 3), nn.Dropout(), nn.Flatten(), nn.Linear(144, 10)],
    "wide": lambda: [nn.Conv2d(1, 17, 3), nn.ReLU(), nn.Conv2d(17, 19, 1), nn.Flatten(), nn.Linear(684, 10)],
    "permuted": lambda: [
        nn.Conv2d(1, 4, 3),
        ChannelsBehind(),
        nn.Linear(4, 6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(216, 10),
    ],
    "flat": lambda: [nn.Flatten(2), nn.Conv1d(1, 4, 5), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(120, 10)],
    "one channel": lambda: [
        nn.Conv2d(1, 1, 3),
        nn.Conv2d(1, 4, 6),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 10),
    ],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ODD)
def test_whole_is_cut_in_odd_nets_and_batches_of_any_size(name: str, dtype: torch.dtype) -> None:
    odd = ModelSpec(name, lambda: nn.Sequential(*ODD[name]()), (1, 8, 8), 1)
    for size, K in ((1, 3), (7, 6), (29, 2), (64, 1)):  # 30 samples a client: a last batch of 2, of 1, all at once
        net = replace(network("lenet-small", dtype), model_spec=odd, batches=Batches(size))
        whole = WholeEngine(net, 5).run(visit(net, EVERYTHING, K)).x
        for cut in range(1, len(odd.layers())):
            assert torch.equal(SplitEngine(net, 5, cut).run(visit(net, EVERYTHING, K)).x, whole), (
                f"cut {cut}, size {size}"
            )


def with_a_frozen_layer() -> nn.Sequential:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(inplace=True), nn.Linear(8, 8), nn.Linear(8, 10))
    net[3].requires_grad_(False)
    return net


def test_a_frozen_layer_stays_as_it_is_at_every_cut() -> None:
    net = replace(network("lenet-small"), model_spec=ModelSpec("own", with_a_frozen_layer, (1, 8, 8), 1))
    whole, x0, layout = WholeEngine(net, 5).run(visit(net, EVERYTHING)).x, net.model_spec.x0(7), net.model_spec.layout()
    changed = {slot.name for slot in layout.slots if not torch.equal(slot.view(whole), slot.view(x0))}
    assert changed == {"1.weight", "1.bias", "4.weight", "4.bias"}
    for cut in range(1, 5):
        assert torch.equal(SplitEngine(net, 5, cut).run(visit(net, EVERYTHING)).x, whole)


def test_batch_norms_running_values_are_averaged_not_lost() -> None:
    net = replace(network("lenet-small"), model_spec=with_batch_norm())
    clients, x0 = Pool([WholeEngine(net, 5)]), net.model_spec.x0(7)
    running = next(slot for slot in net.model_spec.layout().slots if slot.name == "1.running_var")
    x = FedAvg(Step(0.1), K=2).round(0, x0, (0, 1), clients)
    alone = [FedAvg(Step(0.1), K=2).round(0, x0, (m,), clients) for m in (0, 1)]
    assert torch.equal(running.view(x), (running.view(alone[0]) + running.view(alone[1])) / 2)


@pytest.mark.parametrize("algorithm", [SSL(EVERYTHING, 2), FedAvg(EVERYTHING, 2), Scaffold(Step(0.05), 2, M=4)])
@BOTH
def test_every_algorithm_is_the_same_whole_cut_and_in_a_pool(algorithm, engine: str) -> None:
    net = network("lenet-small")
    ends = []
    alone, cut = whole(engine, net), [in_two(engine, net, cut=cut) for cut in ("pool1", None, 1)]
    for engines in ([alone], cut[:1], [cut[1], alone, cut[2]]):
        *_, (_, state) = train(algorithm, net.model_spec.x0(7), Permutation(4, 1), Pool(engines), R=2)
        ends.append(algorithm.model(state))
    assert torch.equal(ends[0], ends[1]) and torch.equal(ends[0], ends[2])


@BOTH
def test_steps_are_torchs_own_sgd(engine: str) -> None:
    """Written again in plain PyTorch: nn.Module, clip_grad_norm_, optim.SGD; decay is added after clipping."""
    net, K, eta, decay, clip = network("lenet5", augmentation=None), 4, 0.05, 1e-2, 0.5
    module = net.model_spec.net()
    module.load_state_dict(net.model_spec.layout().unpack(net.model_spec.x0(7)))
    sgd = torch.optim.SGD(module.parameters(), lr=eta)
    for features, labels in net.samples(Name(5, 2, 3, 1), K):
        sgd.zero_grad()
        nn.functional.cross_entropy(module(features), labels).backward()
        nn.utils.clip_grad_norm_(module.parameters(), clip)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.grad.add_(parameter, alpha=decay)
        sgd.step()
    plain = net.model_spec.layout().pack(module.state_dict())
    ours = whole(engine, net).run(Visit(2, 1, 3, net.model_spec.x0(7), Step(eta, decay, clip), K)).x
    assert torch.allclose(ours, plain, rtol=1e-5, atol=1e-6 if engine == "fast" else 1e-7)


def test_without_clipping_one_step_is_torchs_own_to_the_bit() -> None:
    net = network("lenet5", augmentation=None)
    module = net.model_spec.net().to(memory_format=torch.channels_last)  # as kernels lie in x
    module.load_state_dict(net.model_spec.layout().unpack(net.model_spec.x0(7)))
    sgd = torch.optim.SGD(module.parameters(), lr=0.05, weight_decay=1e-2)
    for features, labels in net.samples(Name(5, 2, 3, 1), 1):
        nn.functional.cross_entropy(module(features), labels).backward()
        sgd.step()
    ours = WholeEngine(net, 5).run(Visit(2, 1, 3, net.model_spec.x0(7), Step(0.05, 1e-2), 1)).x
    assert torch.equal(ours, net.model_spec.layout().pack(module.state_dict()))


def test_clipping_per_half_bounds_each_half_by_itself() -> None:
    net, eta, clip = network("lenet-small", torch.float64), 0.5, 1e-3
    x, engine = net.model_spec.x0(7, torch.float64), SplitEngine(net, 5)
    moved = engine.run(Visit(0, 0, 0, x, Step(eta, clip=clip, per_half=True), 1)).x - x
    for half in (moved[: engine.boundary], moved[engine.boundary :]):
        assert float(half.norm()) == pytest.approx(eta * clip, rel=0.01)  # torch's floor of 1e-6 shortens it a little
    jointly = engine.run(Visit(0, 0, 0, x, Step(eta, clip=clip), 1)).x - x
    assert float(jointly.norm()) == pytest.approx(eta * clip, rel=0.01)
    with expect_error(InputError, hint=("placement=cut", "clip")):
        WholeEngine(net, 5).run(Visit(0, 0, 0, x, Step(eta, clip=clip, per_half=True), 1))


@BOTH
def test_a_visit_leaves_what_it_was_given(engine: str) -> None:
    net = network("lenet-small")
    given = visit(net, EVERYTHING)
    before = given.x.clone()
    whole(engine, net).run(given)
    in_two(engine, net).run(given)
    assert torch.equal(given.x, before)


def test_the_cut_is_where_the_paper_cuts() -> None:
    for name, bottom in (("lenet5", 2572), ("vgg11", 960_896)):
        model = network(name).model_spec
        layout, cut = model.layout(), find_cut_index(model, None)
        assert layout.between(0, cut).parameters == bottom
        assert layout.parameters == {"lenet5": 44_426, "vgg11": 9_750_922}[name]


def test_averaging_sealed_halves_is_refused() -> None:
    x = make_first_state(torch.zeros(3))
    for combine in (lambda: x + x, lambda: x - x, lambda: 0.5 * x, lambda: x / 2):
        with pytest.raises(InputError):
            combine()


@pytest.mark.parametrize("step", [Step(0.05), Step(0.05, weight_decay=1e-2, momentum=0.9, prox=0.1)])
@BOTH
def test_the_engine_in_place_is_the_functional_form(step: Step, engine: str) -> None:
    net = network("lenet-small", augmentation=None)
    layers = SubModel(net.model_spec, 0, len(net.model_spec.layers()), net.dtype)

    def gradient(m: int, x: torch.Tensor, xi: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        layers.load(x)
        net.loss(layers.forward(xi[0]), xi[1]).backward()
        return layers.g.clone()

    given = Visit(2, 1, 3, net.model_spec.x0(7), step, 5)
    functional = take_local_steps(given, list(net.samples(Name(5, 2, 3, 1), 5)), gradient)
    assert torch.allclose(
        whole(engine, net).run(given).x, functional, rtol=1e-6, atol=1e-6 if engine == "fast" else 1e-8
    )


@BOTH
def test_a_model_that_overflows_in_the_last_step_is_told_of(engine: str) -> None:
    net = network("lenet-small", augmentation=None)
    with expect_error(Diverged, what=("client 3", "round 2", "eta=3e+38"), hint=("eta", "clip")):
        whole(engine, net).run(visit(net, Step(3e38, weight_decay=100.0), K=1))


@BOTH
def test_every_client_may_have_its_own_number_of_steps(engine: str) -> None:
    net = network("lenet-small")
    clients, x0 = Pool([in_two(engine, net)]), net.model_spec.x0(7)
    own = SSL(EVERYTHING, K={0: 1, 1: 3, 2: 2, 3: 1}).round(0, x0, (1,), clients)
    assert torch.equal(own, SSL(EVERYTHING, K=3).round(0, x0, (1,), clients))
