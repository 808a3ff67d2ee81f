"""The fast engine beside torch eager, tuned (gather by index, channels last, fused SGD), and the plain way.

Each figure is the best of many runs between two runs of its baseline; where these two differ by more than a tenth the
row says so, and nothing follows from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn

from benchmarks.learning import K, M, Plain, S, Work, _partition
from benchmarks.measure import Row, seconds
from splitrelay.algorithms import Step, Visit
from splitrelay.data.images import DataSet, ImageSet
from splitrelay.experiments.engines import Fast, FastEvaluator, pictures
from splitrelay.experiments.learning import Learning, Trial
from splitrelay.kernels import Scorer, plan_of
from splitrelay.models import Blueprint, blueprint
from splitrelay.models.summary import summarise
from splitrelay.objectives.batches import Batches
from splitrelay.objectives.images import DeviceImages
from splitrelay.objectives.network import Network
from splitrelay.randomness import Purpose, rng

STEADY = 0.10
STEPS = 10
STEP = Step[torch.Tensor](0.01, 1e-4)
ROUNDS = 2


class Tuned:
    """Torch at its best on one thread: no loader, no copy, memory formats that suit it."""

    def __init__(self, model: Blueprint, images: DeviceImages, batch: int, number: int = STEPS) -> None:
        self.net, self.images, self.batch = model.net().to(memory_format=torch.channels_last), images, batch
        self.number = number
        for layer in self.net:
            if type(layer).__name__ == "Dropout":
                layer.source = torch.rand  # unnamed masks are cheaper
        self.sgd = torch.optim.SGD(self.net.parameters(), lr=0.01, weight_decay=1e-4, fused=True)
        self.indices = torch.arange(batch * number) % len(images)

    def steps(self) -> None:
        """As many local steps as ours takes."""
        for k in range(self.number):
            features, labels = self.images.batch(self.indices[k * self.batch : (k + 1) * self.batch])
            features = features.contiguous(memory_format=torch.channels_last)
            nn.functional.cross_entropy(self.net(features), labels).backward()
            self.sgd.step()
            self.sgd.zero_grad()

    @torch.no_grad()
    def evaluate(self) -> None:
        """All images, in slices that fit the cache."""
        self.net.eval()
        for features, labels in self.images.slices(500):
            (self.net(features.contiguous(memory_format=torch.channels_last)).argmax(1) == labels).sum()
        self.net.train()


def best(work: Work, runs: int) -> float:
    """The best of some runs."""
    return min(seconds(work) for _ in range(runs))


def beside(what: str, ours: Work, theirs: Work, baseline_is: str, *, runs: int = 20, scale: float = 1.0) -> Row:
    """Baseline, ours, baseline again: are the two of one mind?"""
    theirs(), ours()
    before, mine, after = best(theirs, 5), best(ours, runs), best(theirs, 5)
    unsteady = abs(before - after) > STEADY * min(before, after)
    note = f"; NO CONCLUSION, its runs differ by {abs(before - after) / min(before, after):.0%}" if unsteady else ""
    return Row(what, mine / scale, min(before, after) / scale, baseline_is + note)


def images_of(shape: tuple[int, int, int], N: int) -> ImageSet:
    """Random images: what is in them does not matter here."""
    g, C = rng(1, Purpose.INSTANCES), shape[0]
    x = g.integers(0, 256, (N, *shape), dtype=np.uint8)
    return ImageSet(x, g.integers(0, 10, N), tuple("0123456789"), (0.1307,) * C, (0.3081,) * C)


def network(name: str, shape: tuple[int, int, int], batch: int) -> Network:
    """One client with enough images for a visit."""
    images = images_of(shape, STEPS * batch)
    return Network(blueprint(name, shape, 10), DeviceImages(images), [np.arange(len(images))], Batches(batch))


def a_step(name: str, shape: tuple[int, int, int], batch: int, number: int = STEPS, runs: int = 40) -> Row:
    """One local step of a model, as a part of visits of some steps."""
    net = network(name, shape, batch)
    engine, visit = Fast(net, 1, "whole"), Visit(0, 0, 0, net.blueprint.x0(1), STEP, number)
    tuned = Tuned(net.blueprint, net.images, batch, number)
    what = f"{name} step, batch {batch}"
    return beside(what, lambda: engine.run(visit), tuned.steps, "torch tuned", runs=runs, scale=number)


def peak() -> float:
    """FLOPs a second of one core: the better of torch's own matrix product in a few sizes."""
    found = 0.0
    for n in (256, 384, 512):
        a, b, c = torch.rand(n, n), torch.rand(n, n), torch.empty(n, n)
        found = max(found, 2 * n**3 / best(lambda a=a, b=b, c=c: torch.mm(a, b, out=c), 60))  # type: ignore[misc]
    return found


def dense_limit(batch: int = 20) -> float:
    """Seconds of a dense LeNet-5 step at the peak: forward, gradients of weights, gradients of inputs but the first."""
    layers = [row for row in summarise(blueprint("lenet5", (1, 28, 28), 10)).layers if row.parameters]
    flops = 3 * sum(row.flops for row in layers) - layers[0].flops
    return batch * flops / peak()


def rows() -> Iterator[Row]:
    """Every comparison, as it is measured."""
    torch.set_num_threads(1)
    found = []
    for row in _rows():
        found.append(row)
        yield row
    _draw(found)


def _rows() -> Iterator[Row]:
    grey, colour = (1, 28, 28), (3, 32, 32)
    lenet = a_step("lenet5", grey, 20)
    yield lenet
    yield Row("the same", lenet.ours, dense_limit(), "a dense step at the measured sgemm peak")
    for name, shape, batch in (
        ("lenet5", grey, 1), ("lenet5", grey, 64), ("mlp", grey, 20), ("logistic", grey, 20),
        ("cnncifar", colour, 20), ("cnnmnist", grey, 20),
    ):  # fmt: skip
        yield a_step(name, shape, batch)
    data = DataSet("random", images_of(grey, 60_000), images_of(grey, 10_000))
    learning = _learning(data, 1)
    plain = Plain(data, learning)
    yield _plain_step(learning, plain)
    yield from _evaluation(learning)
    yield _rounds_on_two_cores(data)
    yield from _with_evaluation(data, plain)
    yield from _outside(data)
    yield a_step("vgg11", colour, 20, number=1, runs=5)


def _learning(data: DataSet, workers: int, algorithm: str = "ssl", clients: int = M) -> Learning:
    trial = Trial(algorithm, "lenet5", S=S, K=K, order="sampled", placement="whole", eta=0.01, engine="fast")
    return Learning(trial, data, _partition(data, clients), workers=workers)


def _plain_step(learning: Learning, plain: Plain) -> Row:
    largest = int(np.argmax([len(held) for held in learning.network.holdings]))
    engine, visit = Fast(learning.network, 1, "whole"), Visit(0, 0, largest, learning.x0(), STEP, STEPS)
    theirs = _at_its_best(lambda: plain.steps(largest, STEPS))
    return beside("lenet5 step, batch 20", lambda: engine.run(visit), theirs, "the plain way", scale=STEPS)


def _evaluation(learning: Learning) -> Iterator[Row]:
    net, x = learning.network, learning.x0()
    images = DeviceImages(images_of((1, 28, 28), 10_000))
    scorer = Scorer(plan_of(net.blueprint.net(), net.blueprint.input_shape), pictures(images), threads=1)
    evaluator = FastEvaluator(net.blueprint, images)
    one: Work = lambda: scorer.score(x.numpy())  # noqa: E731
    two: Work = lambda: evaluator.score(x)  # noqa: E731
    yield beside("evaluation of 10,000 images", one, Tuned(net.blueprint, images, 20).evaluate, "torch tuned", runs=10)
    yield beside("the same on all cores", two, one, "one thread", runs=10)


def _rounds_on_two_cores(data: DataSet) -> Row:
    two, one = (_learning(data, workers, "fedavg") for workers in (2, 1))
    return beside(f"{ROUNDS} FedAvg rounds, S=10, K=10, 2 cores", _training(two), _training(one), "one core", runs=5)


def _training(learning: Learning) -> Work:
    """Rounds without a look at the test set."""
    state = learning.algorithm.init(learning.x0())

    def run() -> None:
        for r in range(ROUNDS):
            learning.algorithm.round(r, state, learning.order(r), learning.clients)

    return run


def _with_evaluation(data: DataSet, plain: Plain) -> Iterator[Row]:
    learning = _learning(data, 1)
    both, theirs = lambda: list(learning.run(ROUNDS)), _at_its_best(lambda: plain.rounds(ROUNDS))
    what = f"{ROUNDS} SSL rounds, S=10, K=10, each evaluated"
    row = beside(what, both, theirs, "the plain way", runs=3)
    yield row
    x = learning.x0()
    train, look = best(_training(learning), 5), best(lambda: learning.evaluator.score(x), 5)
    alone = max(train, (train + 2 * (ROUNDS + 1) * look) / 2)  # a look takes all of two cores
    yield Row("the same", row.ours, alone, "what the kernels alone need on two cores")


def _outside(data: DataSet) -> Iterator[Row]:
    """What a visit costs beside its steps: visits of 3 steps and of 1, and the difference taken away."""
    for clients in (M, 10_000):
        learning = _learning(data, 1, clients=clients)
        engine, x = Fast(learning.network, 1, "whole"), learning.x0()
        m = int(np.argmax([len(held) for held in learning.network.holdings]))
        long, short = (_visits(engine, Visit(0, 0, m, x, STEP, k)) for k in (3, 1))
        outside = short - (long - short) / 2
        yield Row(f"outside the kernels, a visit, M={clients:,}", outside, 60e-6, "the goal of 60 microseconds")


def _visits(engine: Fast, visit: Visit[torch.Tensor]) -> float:
    return best(lambda: engine.run(visit), 300)


def _at_its_best(work: Work) -> Work:
    """The plain way on as many threads as suit it."""
    times = {}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        work()
        times[threads] = seconds(work)
    torch.set_num_threads(1)
    fastest = min(times, key=lambda threads: times[threads])

    def run() -> None:
        torch.set_num_threads(fastest)
        work()
        torch.set_num_threads(1)

    return run


def _draw(found: list[Row]) -> None:
    """The ratios as bars, beside the JSON."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    names = [f"{row.what} / {row.baseline_is.split(';')[0]}" for row in found]
    axes.barh(names[::-1], [row.ratio for row in found][::-1], color="#0072B2")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("times faster")
    path = Path("results/benchmarks/kernels.png")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
