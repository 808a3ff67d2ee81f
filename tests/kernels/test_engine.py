"""The fast engine keeps the reference engine's promise: the same visits, costs and errors; whole is cut to the bit."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from splitrelay.algorithms import SSL, FedAvg, Scaffold, Step, Visit
from splitrelay.data.augment import Augmentation
from splitrelay.data.images import ImageSet
from splitrelay.engine.base import LocalServerHalf
from splitrelay.engine.select import FastEngine, FastEvaluator
from splitrelay.engine.thread_pool import Pool
from splitrelay.engine.torch_engine import SplitEngine, WholeEngine
from splitrelay.errors import Diverged, InputError, OutOfRange, WorkError
from splitrelay.evaluation import Evaluator
from splitrelay.kernels import convert_net
from splitrelay.kernels.local_steps import KernelServerLayers, LocalTraining
from splitrelay.kernels.workspace import Workspace
from splitrelay.models import ModelSpec, get_model_spec
from splitrelay.objectives.batches import Batches
from splitrelay.objectives.network import DeviceImages, Network
from splitrelay.participation import Permutation
from splitrelay.randomness import Purpose, rng
from splitrelay.training import train
from tests.kernels.random_nets import case, checked, ours
from tests.support.error_fields import expect_error

torch.set_num_threads(1)
EVERYTHING = Step[torch.Tensor](eta=0.05, weight_decay=1e-2, clip=1.0, momentum=0.9, prox=0.1)
SHAPES = {"lenet5": (1, 28, 28), "cnncifar": (3, 32, 32), "cnnmnist": (1, 28, 28)}
NAMES = ["lenet5", "mlp", "logistic", "lenet-small", "cnncifar", "cnnmnist"]


def pictures(shape: tuple[int, int, int], N: int = 120) -> ImageSet:
    generator = rng(1, Purpose.INSTANCES)
    x = generator.integers(0, 256, (N, *shape), dtype=np.uint8)
    return ImageSet(x, generator.integers(0, 10, N), tuple("0123456789"), (0.5,) * shape[0], (0.3,) * shape[0])


def network(name: str, **more) -> Network:
    shape = SHAPES.get(name, (1, 8, 8))
    images = pictures(shape)
    settings = {"batches": Batches(7), "augmentation": Augmentation(pad=2), **more}
    holdings = np.array_split(np.arange(len(images)), 4)
    return Network(get_model_spec(name, shape, 10), DeviceImages(images), holdings, **settings)


def visit(net: Network, step: Step, K: int = 6) -> Visit:
    """Of 30 samples in batches of 7: the fifth is short."""
    x = net.model_spec.x0(7)
    return Visit(2, 1, 3, x, replace(step, shift=1e-3 * x) if step.prox else step, K)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.numpy().tobytes() == b.numpy().tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_a_visit_is_the_reference_engines(name: str) -> None:
    net = network(name)
    given = visit(net, EVERYTHING, K=2)  # few steps: later a relu may fall to the other side in either engine
    mine, theirs = FastEngine(net, 5, "whole").run(given), WholeEngine(net, 5).run(given)
    moved = (theirs.x - given.x).norm()
    assert float((mine.x - theirs.x).norm()) <= 1e-4 * float(moved)
    assert mine.cost.loss == pytest.approx(theirs.cost.loss, rel=1e-5)
    assert (mine.cost.up, mine.cost.down) == (theirs.cost.up, theirs.cost.down)


@pytest.mark.parametrize("name", NAMES)
def test_whole_is_cut_at_every_layer(name: str) -> None:
    net = network(name)
    whole = FastEngine(net, 5, "whole").run(visit(net, EVERYTHING))
    for cut in range(1, len(net.model_spec.layers())):
        halves = FastEngine(net, 5, "cut", cut).run(visit(net, EVERYTHING))
        assert same(halves.x, whole.x) and halves.cost.loss == whole.cost.loss, f"cut {cut}"


@pytest.mark.parametrize("step", [Step(0.05), EVERYTHING, Step(0.05, clip=0.1, per_half=True)])
def test_a_cut_costs_what_it_costs_the_reference_engine(step: Step) -> None:
    net = network("lenet-small")
    mine, theirs = (
        engine.run(visit(net, step, K=5)).cost for engine in (FastEngine(net, 5, "cut"), SplitEngine(net, 5))
    )
    assert (mine.up, mine.down) == (theirs.up, theirs.down)


def test_clipping_per_half_is_the_reference_engines_and_refused_where_x_is_whole() -> None:
    net, step = network("lenet-small"), Step(0.5, clip=1e-3, per_half=True)
    mine, theirs = (engine.run(visit(net, step, K=2)).x for engine in (FastEngine(net, 5, "cut"), SplitEngine(net, 5)))
    jointly = FastEngine(net, 5, "cut").run(visit(net, Step(0.5, clip=1e-3), K=2)).x
    assert torch.allclose(mine, theirs, rtol=0, atol=1e-7) and not torch.allclose(mine, jointly, rtol=0, atol=1e-5)
    with expect_error(InputError, hint=("placement=cut", "clip")):
        FastEngine(net, 5, "whole").run(visit(net, step))


@pytest.mark.parametrize("size", [1, 29, 64])
def test_batches_of_any_size(size: int) -> None:
    net = network("lenet-small", batches=Batches(size))
    whole = FastEngine(net, 5, "whole").run(visit(net, EVERYTHING)).x
    assert same(whole, FastEngine(net, 5, "cut").run(visit(net, EVERYTHING)).x)


@pytest.mark.parametrize("algorithm", [SSL(EVERYTHING, 2), FedAvg(EVERYTHING, 2), Scaffold(Step(0.05), 2, M=4)])
def test_every_algorithm_is_the_same_whole_cut_and_on_two_threads(algorithm) -> None:
    net, ends = network("lenet-small"), []
    for engines in (
        [FastEngine(net, 5, "whole")],
        [FastEngine(net, 5, "cut", "pool1")],
        [FastEngine(net, 5, "cut"), FastEngine(net, 5, "whole")],
    ):
        *_, (_, state) = train(algorithm, net.model_spec.x0(7), Permutation(4, 1), Pool(engines), R=2)
        ends.append(algorithm.model(state))
    assert same(ends[0], ends[1]) and same(ends[0], ends[2])


def test_a_visit_leaves_what_it_was_given_and_can_be_made_again() -> None:
    net, engine = network("mlp"), FastEngine(network("mlp"), 5, "whole")
    given = visit(net, EVERYTHING)
    before = given.x.clone()
    first = engine.run(given).x
    engine.run(replace(given, r=9, step=Step(0.3)))
    assert same(given.x, before) and same(engine.run(given).x, first)


@pytest.mark.parametrize("placement", ["whole", "cut"])
def test_a_run_that_diverges_is_told_of(placement: str) -> None:
    net = network("lenet-small", augmentation=None)
    with expect_error(Diverged, what=("client 3", "round 2", "eta=1e+20"), hint=("eta", "clip")):
        FastEngine(net, 5, placement).run(visit(net, Step(1e20)))
    with expect_error(Diverged, what=("client 3", "round 2", "eta=3e+38"), hint=("eta", "clip")):
        FastEngine(net, 5, placement).run(visit(net, Step(3e38, weight_decay=100.0), K=1))


@pytest.mark.parametrize("name", NAMES)
def test_a_score_is_the_reference_engines(name: str) -> None:
    net = network(name)
    x = net.model_spec.x0(7)
    mine = FastEvaluator(net.model_spec, net.images).score(x)
    theirs = Evaluator(net.model_spec, net.images, 10, net.loss, net.dtype).score(x)
    assert mine.loss == pytest.approx(theirs.loss, rel=1e-6)
    assert mine.accuracy == theirs.accuracy and mine.per_class == pytest.approx(theirs.per_class)


def test_a_net_without_biases_and_with_an_odd_pool() -> None:
    layers = [
        nn.Conv2d(1, 5, 3, bias=False),
        nn.MaxPool2d(3, 2, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(45, 10, bias=False),
    ]
    net = replace(network("lenet-small"), model_spec=ModelSpec("odd", lambda: nn.Sequential(*layers), (1, 8, 8), 1))
    given = visit(net, EVERYTHING, K=3)
    whole = FastEngine(net, 5, "whole").run(given).x
    assert torch.allclose(whole, WholeEngine(net, 5).run(given).x, rtol=1e-4, atol=1e-6)
    assert all(same(FastEngine(net, 5, "cut", cut).run(given).x, whole) for cut in range(1, 5))


def test_a_client_on_the_fast_engine_needs_no_torch() -> None:
    needed = "splitrelay.kernels, splitrelay.objectives.batches, splitrelay.data.images"
    code = f"import sys; sys.modules['torch'] = None; import {needed}"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_does_not_fit_never_reaches_the_kernels() -> None:
    net = network("lenet-small", augmentation=None)
    given, engine = visit(net, EVERYTHING), FastEngine(net, 5, "cut")
    with expect_error(InputError, what="vector", value=True, limit=True):
        engine.run(replace(given, x=given.x[:-16]))
    with expect_error(InputError, value=(1, 9, 9), limit=(1, 8, 8)):
        FastEngine(replace(net, images=DeviceImages(pictures((1, 9, 9)))), 5, "whole")
    with expect_error(OutOfRange, value="0 to 9", limit="0 <= y < 4"):
        FastEngine(replace(net, model_spec=get_model_spec("lenet-small", (1, 8, 8), 4)), 5, "whole")
    with pytest.raises(IndexError):
        FastEngine(replace(net, holdings=[np.arange(120, 150)] * 4), 5, "whole").run(given)


def top_half(net: Network) -> tuple[LocalServerHalf, np.ndarray, np.ndarray]:
    plan, x = convert_net(net.model_spec.net(), net.model_spec.input_shape), net.model_spec.x0(7).numpy()
    work = Workspace(plan, 6, len(plan.layers), 8, input_gradient=True)
    training = LocalTraining(work, Visit(0, 0, 0, x[plan.ends[6] :], Step(0.1, clip=1.0), 3), 5)
    top = LocalServerHalf(KernelServerLayers(training))
    h = rng(3, Purpose.INSTANCES).random((7, 2, 2, 16), dtype=np.float32)
    return top, h, np.arange(7)


def test_a_step_that_comes_again_changes_nothing_and_one_out_of_order_is_refused() -> None:
    top, h, labels = top_half(network("lenet-small"))
    first = top.step(0, h, labels, 0.0)
    assert top.step(0, h, labels, 0.0) is first
    with expect_error(WorkError, value=3, limit=("0", "1")):
        top.step(3, h, labels, 0.0)
    with expect_error(WorkError, what="server half", hint=True):
        top.predict(h)
    top.finish(0.5)
    top.finish(0.5)
    assert top.predict(h).shape == (7, 10)
    with expect_error(InputError, value=(2, 2, 8), limit=(2, 2, 16)):
        top.predict(h[..., :8])


# Gradients of random nets against autograd in float64, and to the bit wherever a net is cut.


@settings(max_examples=40)
@given(st.integers(0, 10_000))
def test_gradients_are_autograds(number: int) -> None:
    verdict = checked(number)
    assume(verdict is not None)
    assert verdict.good, f"net {number}: {verdict}; {case(number).model_spec.build()}"


@pytest.mark.parametrize("number", range(8))
def test_whole_is_cut_at_every_layer_of_any_net(number: int) -> None:
    one = case(number)
    g, loss = ours(one)
    for cut in range(1, len(one.model_spec.layers())):
        mine, other = ours(one, cut)
        assert mine.numpy().tobytes() == g.numpy().tobytes() and other == loss, f"cut {cut}"
