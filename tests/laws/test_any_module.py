"""Modules of all kinds give the same bits whole, cut and with deferred gradients, and the numbers of plain torch."""

from collections.abc import Iterator
from dataclasses import dataclass
from threading import Thread

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from splitrelay.algorithms import Step, Visit
from splitrelay.engine.base import LocalServerHalf, split_visit, train_client_half
from splitrelay.engine.torch_engine import (
    DeferredServerLayers,
    LocalTraining,
    SplitEngine,
    TorchClientHalf,
    TorchServerLayers,
    WholeEngine,
)
from splitrelay.models import ModelSpec, SubModel, get_model_spec
from splitrelay.models.submodel import Features
from splitrelay.objectives.network import Name
from splitrelay.randomness import Purpose, rng
from tests.support.module_zoo import CLASSES, ZOO, Encoder, Recurrent, StochasticDepthNet, ViT

torch.set_num_threads(1)
STEP = Step[torch.Tensor](eta=0.05, weight_decay=1e-2, clip=1.0, momentum=0.9)
BATCH, K = 4, 2
# Convolution kernels are stored channels last, so torch adds in another order; the other modules agree to the bit.
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Samples:
    """What an engine needs of a Network, with random inputs of any type."""

    model_spec: ModelSpec
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    loss = staticmethod(F.cross_entropy)

    def samples(self, name: Name, K: int) -> Iterator[tuple[Features, torch.Tensor]]:
        generator = name.rng(Purpose.BATCHES)
        for _ in range(K):
            yield draw_features(self.model_spec, generator), torch.from_numpy(generator.integers(0, CLASSES, BATCH))


def draw_features(model_spec: ModelSpec, generator: np.random.Generator) -> Features:
    inputs = []
    for each in model_spec.inputs:
        shape = (BATCH, *each.shape)
        array = generator.standard_normal(shape, dtype="float32") if each.is_float else generator.integers(0, 11, shape)
        inputs.append(torch.from_numpy(array))
    return tuple(inputs) if len(inputs) > 1 else inputs[0]


def make(name: str) -> Samples:
    build, inputs = ZOO[name]
    return Samples(get_model_spec(build, inputs, CLASSES))


def make_visit(network: Samples, step: Step[torch.Tensor] = STEP) -> Visit[torch.Tensor]:
    return Visit(2, 1, 3, network.model_spec.x0(7), step, K)


@pytest.mark.parametrize("name", ZOO)
def test_whole_is_cut_everywhere(name: str) -> None:
    network = make(name)
    whole = WholeEngine(network, 5).run(make_visit(network))
    assert not torch.equal(whole.x, network.model_spec.x0(7))
    layers = len(network.model_spec.layers())
    assert layers > 1
    for cut in range(1, layers):
        done = SplitEngine(network, 5, cut).run(make_visit(network))
        assert torch.equal(done.x, whole.x) and done.cost.loss == whole.cost.loss, f"cut {cut}"


@pytest.mark.parametrize("name", ZOO)
def test_deferred_gradients_are_the_same(name: str) -> None:
    """A deployed server computes the gradients of its weights after the reply."""
    network = make(name)
    spec, visit = network.model_spec, make_visit(network, Step(eta=0.05))
    cut, layers = 1, len(network.model_spec.layers())
    bottom, top = SubModel(spec, 0, cut, torch.float32), SubModel(spec, cut, layers, torch.float32)
    below, above = split_visit(visit, spec.layout().ends[cut])
    training = LocalTraining(bottom, below, 5)
    client = TorchClientHalf(training, network.samples(training.name, K))
    server = DeferredServerLayers(TorchServerLayers(LocalTraining(top, above, 5), F.cross_entropy))
    train_client_half(client, LocalServerHalf(server), K)
    assert torch.equal(torch.cat([bottom.x, top.x]), WholeEngine(network, 5).run(visit).x)


@pytest.mark.parametrize("name", ZOO)
def test_loss_and_gradients_are_those_of_torch(name: str) -> None:
    """In evaluation mode, which draws nothing; named random numbers are others than torch's."""
    network = make(name)
    spec = network.model_spec
    submodel = SubModel(spec, 0, len(spec.layers()), torch.float32)
    submodel.load(spec.x0(7))
    submodel.layers.eval()
    features, labels = next(network.samples(Name(5, 0, 0, 0), 1))
    ours = F.cross_entropy(submodel.forward(features), labels)
    ours.backward()

    module = ZOO[name][0]()
    constants = {each: tensor for _, each, tensor in spec.net().list_constants()}
    state = {**constants, **spec.layout().unpack(spec.x0(7))}
    known = module.state_dict()
    module.load_state_dict({each: tensor for each, tensor in state.items() if each in known}, strict=False)
    inputs = features if isinstance(features, tuple) else (features,)
    theirs = F.cross_entropy(module.eval()(*inputs), labels)
    theirs.backward()
    torch.testing.assert_close(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)
    gradients = {each: tensor.grad for each, tensor in module.named_parameters() if tensor.requires_grad}
    slots = {slot.name: slot.view(submodel.g) for slot in spec.layout().slots if slot.parameter}
    assert slots.keys() == gradients.keys()
    for each, gradient in gradients.items():
        torch.testing.assert_close(slots[each], gradient, rtol=10 * TOLERANCE, atol=TOLERANCE, msg=each)
        has_convolutions = any(isinstance(part, nn.Conv2d | nn.ConvTranspose2d) for part in module.modules())
        assert has_convolutions or torch.equal(slots[each], gradient), each


@pytest.mark.parametrize("name", ["transformer", "lstm, dropout", "random slopes", "stochastic depth"])
def test_random_layers_draw_the_same_numbers_in_parallel_threads(name: str) -> None:
    """Torch has one generator for all threads. Named numbers do not depend on the other threads."""
    network = make(name)
    expected, before = WholeEngine(network, 5).run(make_visit(network)).x, torch.get_rng_state()
    engines = [WholeEngine(network, 5) for _ in range(3)]
    found: list[torch.Tensor] = []
    threads = [Thread(target=lambda e=e: found.append(e.run(make_visit(network)).x)) for e in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3 and all(torch.equal(x, expected) for x in found)
    assert torch.equal(torch.get_rng_state(), before)


def test_random_numbers_depend_on_every_part_of_their_name() -> None:
    spec = get_model_spec(lambda: nn.Sequential(*(nn.Sequential(nn.Dropout()) for _ in range(2))), (40,), CLASSES)
    submodel, x = SubModel(spec, 0, 2, torch.float32), torch.ones(1, 40)
    names = [(5, 2, 1, 3, 0), (6, 2, 1, 3, 0), (5, 1, 1, 3, 0), (5, 2, 0, 3, 0), (5, 2, 1, 2, 0), (5, 2, 1, 3, 1)]
    masks = set()
    for seed, r, i, m, k in names:  # seed, round, occurrence, client, step
        outputs: list[torch.Tensor] = []
        LocalTraining(submodel, Visit(r, i, m, spec.x0(7), STEP, K), seed).forward(k, x, outputs)
        first, both = (output.ne(0).squeeze().tolist() for output in outputs)
        assert not all(both[j] for j, kept in enumerate(first) if kept)  # the second layer drops others than the first
        masks.add(tuple(first))
    assert len(masks) == len(names)


@pytest.mark.parametrize(
    ("with_p", "name"),
    [
        (lambda p: Encoder(p), "transformer"),
        (lambda p: Recurrent("LSTM", num_layers=2, dropout=p), "lstm"),
        (lambda p: StochasticDepthNet(p), "stochastic depth"),
        (lambda p: ViT(p), "vision transformer"),
    ],
)
def test_randomness_with_probability_zero_is_the_identity(with_p, name: str) -> None:
    inputs = ZOO[name][1]
    specs = [get_model_spec(lambda p=p: with_p(p), inputs, CLASSES) for p in (0.0, 0.5)]
    assert not specs[0].facts.random and specs[1].facts.random
    features = draw_features(specs[0], rng(1, Purpose.INSTANCES))
    ends = []
    for spec in specs:
        submodel = SubModel(spec, 0, len(spec.layers()), torch.float32)
        submodel.load(spec.x0(7))
        if spec is specs[1]:
            submodel.layers.eval()  # without randomness, training equals evaluation for these modules
        ends.append(submodel.forward(features).detach())
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-5, atol=1e-6)
