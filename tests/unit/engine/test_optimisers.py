"""Local steps equal a plain torch loop with torch.optim on the same batches."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import pytest
import torch

from splitrelay.algorithms import SSL, Step, Visit
from splitrelay.algorithms.base import Memory, UpdateRule
from splitrelay.algorithms.optimiser_memory import Remembered
from splitrelay.algorithms.schedules import Schedule, Scheduled
from splitrelay.engine import InProcess
from splitrelay.engine.thread_pool import Pool
from splitrelay.engine.torch_engine import SplitEngine, WholeEngine
from splitrelay.engine.vector import compute_update
from splitrelay.errors import InputError, UnknownName
from splitrelay.models import SubModel
from splitrelay.objectives.network import Name, Network
from splitrelay.objectives.quadratic import ScalarQuadratics
from splitrelay.participation import Fixed
from splitrelay.training import train
from tests.support.engines import make_network
from tests.support.error_fields import expect_error

torch.set_num_threads(1)
OPTIMISERS: dict[str, tuple[UpdateRule, float, Callable[..., torch.optim.Optimizer]]] = {
    "sgd": (UpdateRule(), 0.0, torch.optim.SGD),
    "momentum": (UpdateRule(), 0.9, partial(torch.optim.SGD, momentum=0.9)),
    "nesterov": (UpdateRule(nesterov=True), 0.9, partial(torch.optim.SGD, momentum=0.9, nesterov=True)),
    "adam": (UpdateRule("adam"), 0.0, torch.optim.Adam),
    "adam with betas": (
        UpdateRule("adam", beta1=0.5, beta2=0.9, epsilon=1e-3),
        0.0,
        partial(torch.optim.Adam, betas=(0.5, 0.9), eps=1e-3),
    ),
    "adamw": (UpdateRule("adamw"), 0.0, torch.optim.AdamW),
    "adagrad": (UpdateRule("adagrad", epsilon=1e-10), 0.0, torch.optim.Adagrad),
}
ALL = pytest.mark.parametrize("name", OPTIMISERS)


def make_step(name: str, **more: Any) -> Step[torch.Tensor]:
    rule, momentum, _ = OPTIMISERS[name]
    return Step(0.02, weight_decay=0.01, clip=0.5, momentum=momentum, rule=replace(rule, **more))


Batch = tuple[torch.Tensor, torch.Tensor]


def train_with_torch(
    net: Network, name: str, x: torch.Tensor, batches: Iterable[Batch], factor: Callable[[int], float] = lambda k: 1.0
) -> torch.Tensor:
    """Run a plain loop: torch.optim, clip_grad_norm_ and a schedule over the steps k."""
    model = SubModel(net.model_spec, 0, len(net.model_spec.layers()), net.dtype)
    model.load(x)
    optimiser = OPTIMISERS[name][2](model.layers.parameters(), lr=0.02, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, factor)
    for features, labels in batches:
        optimiser.zero_grad(set_to_none=False)
        net.loss(model.layers(features), labels).backward()
        torch.nn.utils.clip_grad_norm_(model.layers.parameters(), 0.5)
        optimiser.step()
        schedule.step()
    return model.x


@ALL
def test_steps_equal_torch_optim(name: str) -> None:
    net = make_network(torch.float64)
    x = net.model_spec.x0(7, net.dtype)
    ours = WholeEngine(net, 5).run(Visit(2, 0, 1, x, make_step(name), 12)).x
    assert not torch.allclose(ours, x, atol=1e-3)
    assert torch.allclose(ours, train_with_torch(net, name, x, net.samples(Name(5, 2, 1, 0), 12)), rtol=0, atol=1e-6)


@ALL
def test_rounds_with_a_schedule_equal_torch_optim(name: str) -> None:
    """Four rounds of one client that keeps its optimiser, with clipping, weight decay, warm-up and a cosine."""
    net, step, K = make_network(torch.float64, M=1), make_step(name, memory="kept"), 3
    x, schedule = net.model_spec.x0(7, net.dtype), Schedule("cosine", warmup=1, period=4)
    ssl: Any = Scheduled(lambda step: SSL(step, K), step, schedule)
    algorithm = Remembered(ssl, step.rule, step.momentum)
    *_, (_, state) = train(algorithm, x, Fixed((0,)), Pool([WholeEngine(net, 5)]), R=4)
    batches = chain(*(net.samples(Name(5, r, 0, 0), K) for r in range(4)))
    expected = train_with_torch(net, name, x, batches, lambda k: schedule.compute_factor(k // K))
    assert torch.allclose(algorithm.model(state), expected, rtol=0, atol=1e-6)


@ALL
def test_whole_is_cut_in_single_precision(name: str) -> None:
    net = make_network()
    visit = Visit(2, 0, 1, net.model_spec.x0(7), make_step(name), 6)
    whole = WholeEngine(net, 5).run(visit).x
    for cut in range(1, len(net.model_spec.layers())):
        assert torch.equal(SplitEngine(net, 5, cut).run(visit).x, whole), f"cut {cut}"


@ALL
def test_the_functional_form_takes_the_same_steps(name: str) -> None:
    step, generator = make_step(name), torch.Generator().manual_seed(3)
    x = torch.randn(50, generator=generator, dtype=torch.float64)
    gradients = [torch.randn(50, generator=generator, dtype=torch.float64) for _ in range(5)]
    weights = torch.nn.Parameter(x.clone())
    optimiser = OPTIMISERS[name][2]([weights], lr=0.02)
    memory: Memory[torch.Tensor] | None = None
    for g in gradients:
        weights.grad = g.clone()
        if step.rule.kind == "adamw":
            x = x - 0.02 * 0.01 * x
        direction, memory = compute_update(step, g, memory)
        x = x - 0.02 * direction
        optimiser.step()
    assert torch.allclose(x, weights.detach(), rtol=0, atol=1e-12)
    assert memory is not None and len(memory.vectors) == step.rule.count_vectors(step.momentum)


@pytest.mark.parametrize("name", ["nesterov", "adamw"])
def test_a_state_that_is_handed_on_continues_the_optimiser(name: str) -> None:
    """Two visits with the state between them are one visit of all their steps; without it they are not."""
    net, step = make_network(torch.float64), make_step(name, memory="handed")
    x = net.model_spec.x0(7, net.dtype)
    batches = chain(*(net.samples(Name(5, 0, m, 0), 4) for m in (0, 1)))
    expected = train_with_torch(net, name, x, batches)
    for engine in (WholeEngine(net, 5), SplitEngine(net, 5)):
        first = engine.run(Visit(0, 0, 0, x, step, 4))
        assert first.memory is not None and first.memory.steps == 4
        second = engine.run(Visit(0, 0, 1, first.x, step, 4, first.memory))
        assert torch.allclose(second.x, expected, rtol=0, atol=1e-9)
        assert not torch.allclose(engine.run(Visit(0, 0, 1, first.x, step, 4)).x, expected, atol=1e-4)
        vectors, part = len(first.memory.vectors), len(x) if isinstance(engine, WholeEngine) else engine.boundary
        reset = engine.run(Visit(0, 0, 0, x, make_step(name), 4))
        assert reset.memory is None
        assert first.cost.up - reset.cost.up == vectors * (64 + 8 * part) + 8
        assert (
            first.cost.down == reset.cost.down and second.cost.down - first.cost.down == first.cost.up - reset.cost.up
        )


@pytest.mark.parametrize(("memory", "end"), [("handed", 0.0), ("kept", 0.75)])
def test_the_state_of_a_round_by_hand(memory: Any, end: float) -> None:
    rule = UpdateRule(memory=memory)
    clients = InProcess(ScalarQuadratics(h=(1.0, 1.0), a=(1.0, -1.0)))
    ssl = Remembered(SSL(Step(0.5, momentum=0.5, rule=rule), K=1), rule, 0.5)
    states = [state for _, state in train(ssl, 2.0, Fixed((0, 1)), clients, R=2)]
    assert ssl.model(states[1]) == end
    if memory == "kept":  # client 1: v = 3/2 + 7/4, x = 3/4 - 13/8 = -7/8; client 2: v = -1/4 - 15/8, x = 3/16
        assert states[1].steps == {0: 1, 1: 1} and ssl.model(states[2]) == 0.1875


def test_each_half_has_its_own_rate_in_the_whole_and_in_the_cut_model() -> None:
    net = make_network()
    x = net.model_spec.x0(7)
    for kind in ("sgd", "adamw"):
        step = Step[torch.Tensor](0.02, weight_decay=0.1, rule=UpdateRule(kind), eta_server=0.005)
        visit = Visit(2, 0, 1, x, step, 3)
        cut, whole = SplitEngine(net, 5, 3), WholeEngine(net, 5, 3)
        assert torch.equal(cut.run(visit).x, whole.run(visit).x)
        single = replace(visit, K=1)
        same, boundary = replace(single, step=replace(step, eta_server=None)), cut.boundary
        assert torch.equal(cut.run(single).x[:boundary], cut.run(same).x[:boundary])
        moved, moved_at_eta = cut.run(single).x - x, cut.run(same).x - x
        assert torch.allclose(4 * moved[boundary:], moved_at_eta[boundary:], rtol=1e-3, atol=1e-6)


def test_unknown_optimisers_and_rates_without_halves_are_refused() -> None:
    net = make_network(torch.float64)
    wrong: Any = UpdateRule("lion")  # type: ignore[arg-type]
    with pytest.raises(UnknownName):
        WholeEngine(net, 5).run(Visit(0, 0, 0, net.model_spec.x0(7, net.dtype), Step(0.1, rule=wrong), 1))
    clients = InProcess(ScalarQuadratics(h=(1.0,), a=(1.0,)))
    with expect_error(InputError):
        clients.run(Visit(0, 0, 0, 2.0, Step(0.5, eta_server=0.1), 1))
