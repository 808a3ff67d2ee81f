"""The fast engine beside torch eager, tuned (gather by index, channels last, fused SGD), and the plain way.

A clock may swing by half within seconds, so what is compared is run in turn, A B A B ..., and the best of each counts.
Where the baseline's best of the first half and of the second differ by more than a tenth the row says so, and nothing
follows from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn

from benchmarks.learning import K, M, Plain, S, Work, _partition
from benchmarks.measure import Row, seconds
from splitrelay.algorithms import SSL, Step, Visit
from splitrelay.clients.pool import Pool
from splitrelay.data.images import DataSet, ImageSet
from splitrelay.experiments.engines import Fast, FastEvaluator, pictures
from splitrelay.experiments.learning import Learning, Trial
from splitrelay.kernels import Scorer, plan_of
from splitrelay.models import Blueprint, blueprint
from splitrelay.models.summary import summarise
from splitrelay.objectives.batches import Batches
from splitrelay.objectives.images import DeviceImages
from splitrelay.objectives.network import Network
from splitrelay.orders import Sampled
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


def in_turn(*works: Work, runs: int) -> list[list[float]]:
    """Seconds of every run of each, one after the other, again and again; the first of each does not count."""
    for work in works:
        work()
    turns = [[seconds(work) for work in works] for _ in range(runs)]
    return [list(one) for one in zip(*turns, strict=True)]


def unsteady(times: list[float]) -> str:
    """What is to be said of a baseline whose first and second half differ."""
    half = len(times) // 2
    before, after = min(times[:half]), min(times[half:])
    apart = abs(before - after) / min(before, after)
    return f"; NO CONCLUSION, its runs differ by {apart:.0%}" if apart > STEADY else ""


def beside(what: str, ours: Work, theirs: Work, baseline_is: str, *, runs: int = 20, scale: float = 1.0) -> Row:
    """Ours and the baseline in turn: the best of each."""
    mine, other = in_turn(ours, theirs, runs=runs)
    return Row(what, min(mine) / scale, min(other) / scale, baseline_is + unsteady(other))


def images_of(shape: tuple[int, int, int], N: int) -> ImageSet:
    """Random images: what is in them does not matter here."""
    g, C = rng(1, Purpose.INSTANCES), shape[0]
    x = g.integers(0, 256, (N, *shape), dtype=np.uint8)
    return ImageSet(x, g.integers(0, 10, N), tuple("0123456789"), (0.1307,) * C, (0.3081,) * C)


def network(name: str, shape: tuple[int, int, int], batch: int) -> Network:
    """One client with enough images for a visit."""
    images = images_of(shape, STEPS * batch)
    return Network(blueprint(name, shape, 10), DeviceImages(images), [np.arange(len(images))], Batches(batch))


def a_step(name: str, shape: tuple[int, int, int], batch: int, goal: str, number: int = STEPS, runs: int = 40) -> Row:
    """One local step of a model, as a part of visits of some steps."""
    net = network(name, shape, batch)
    engine, visit = Fast(net, 1, "whole"), Visit(0, 0, 0, net.blueprint.x0(1), STEP, number)
    tuned = Tuned(net.blueprint, net.images, batch, number)
    what, visits = f"{name} step, batch {batch}", max(1, 20 // batch)  # a turn so short would measure cold caches
    ours, theirs = _again(lambda: engine.run(visit), visits), _again(tuned.steps, visits)
    return beside(what, ours, theirs, f"torch tuned ({goal})", runs=runs, scale=number * visits)


def _again(work: Work, times: int) -> Work:
    """The same a few times."""

    def run() -> None:
        for _ in range(times):
            work()

    return run


def dense_limit(batch: int = 20) -> Row:
    """A LeNet-5 step, and a dense one at the peak: the best of torch's own matrix product in a few sizes, in turn."""
    net, sizes = network("lenet5", (1, 28, 28), batch), (256, 384, 512)
    engine, visit = Fast(net, 1, "whole"), Visit(0, 0, 0, net.blueprint.x0(1), STEP, STEPS)
    products = [_product(n) for n in sizes]
    ours, *theirs = in_turn(lambda: engine.run(visit), *products, runs=100)
    peak = max(2 * n**3 / min(times) for n, times in zip(sizes, theirs, strict=True))
    layers = [row for row in summarise(net.blueprint).layers if row.parameters]
    flops = batch * (
        3 * sum(row.flops for row in layers) - layers[0].flops
    )  # nobody asks for the first's input gradient
    what = f"a dense step at the sgemm peak of {peak / 1e9:.0f} GFLOPS (goal 1.0)"
    return Row(f"lenet5 step, batch {batch}", min(ours) / STEPS, flops / peak, what)


def _product(n: int) -> Work:
    a, b, c = torch.rand(n, n), torch.rand(n, n), torch.empty(n, n)
    return lambda: torch.mm(a, b, out=c)


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
    yield a_step("lenet5", grey, 20, "goal 6")
    yield dense_limit()
    for name, shape, batch, goal in (
        ("lenet5", grey, 1, "goal 20"), ("lenet5", grey, 64, "goal 4.5"), ("mlp", grey, 20, "goal 5"),
        ("logistic", grey, 20, "goal 5"), ("cnncifar", colour, 20, "goal 1.8"), ("cnnmnist", grey, 20, "what we reach"),
    ):  # fmt: skip
        yield a_step(name, shape, batch, goal)
    data = DataSet("random", images_of(grey, 60_000), images_of(grey, 10_000))
    learning = _learning(data, 1)
    plain = Plain(data, learning)
    yield _plain_step(learning, plain)
    yield from _evaluation(learning)
    yield _rounds_on_two_cores(data)
    yield from _with_evaluation(data, plain)
    yield from _outside(data)
    yield a_step("vgg11", colour, 20, "goal 1", number=1, runs=12)


def _learning(data: DataSet, workers: int, algorithm: str = "ssl", clients: int = M) -> Learning:
    trial = Trial(algorithm, "lenet5", S=S, K=K, order="sampled", placement="whole", eta=0.01, engine="fast")
    return Learning(trial, data, _partition(data, clients), workers=workers)


def _plain_step(learning: Learning, plain: Plain) -> Row:
    largest = int(np.argmax([len(held) for held in learning.network.holdings]))
    engine, visit = Fast(learning.network, 1, "whole"), Visit(0, 0, largest, learning.x0(), STEP, STEPS)
    theirs = _at_its_best(lambda: plain.steps(largest, STEPS))
    return beside("lenet5 step, batch 20", lambda: engine.run(visit), theirs, "the plain way (goal 7.5)", scale=STEPS)


def _evaluation(learning: Learning) -> Iterator[Row]:
    net, x = learning.network, learning.x0()
    images = DeviceImages(images_of((1, 28, 28), 10_000))
    scorer = Scorer(plan_of(net.blueprint.net(), net.blueprint.input_shape), pictures(images), threads=1)
    evaluator = FastEvaluator(net.blueprint, images)
    one: Work = lambda: scorer.score(x.numpy())  # noqa: E731
    two: Work = lambda: evaluator.score(x)  # noqa: E731
    theirs = Tuned(net.blueprint, images, 20).evaluate
    yield beside("evaluation of 10,000 images", one, theirs, "torch tuned (goal 3)", runs=20)
    yield beside("evaluation of 10,000 images, all cores", two, one, "one thread (goal 1.85)", runs=30)


def _rounds_on_two_cores(data: DataSet) -> Row:
    two, one = (_learning(data, workers, "fedavg") for workers in (2, 1))
    what = f"{ROUNDS} FedAvg rounds, S=10, K=10, 2 cores"
    return beside(what, _training(two), _training(one), "one core (goal 1.8)", runs=30)


def _training(learning: Learning) -> Work:
    """Rounds without a look at the test set."""
    state = learning.algorithm.init(learning.x0())

    def run() -> None:
        for r in range(ROUNDS):
            learning.algorithm.round(r, state, learning.order(r), learning.clients)

    return run


def _with_evaluation(data: DataSet, plain: Plain) -> Iterator[Row]:
    """Rounds that are looked at, beside the plain way; and beside training and looking by themselves."""
    learning, x = _learning(data, 1), _learning(data, 1).x0()
    both, theirs = lambda: list(learning.run(ROUNDS)), _at_its_best(lambda: plain.rounds(ROUNDS))
    what = f"{ROUNDS} SSL rounds, S=10, K=10, each evaluated"
    yield beside(what, both, theirs, "the plain way (goal 10)", runs=6)
    ours, trains, looks = in_turn(both, _training(learning), lambda: learning.evaluator.score(x), runs=20)
    train, look = min(trains), min(looks)
    alone = max(train, (train + 2 * (ROUNDS + 1) * look) / 2)  # a look takes all of two cores
    yield Row(what, min(ours), alone, "what the kernels alone need on two cores (goal 0.85)" + unsteady(trains))


def _outside(data: DataSet) -> Iterator[Row]:
    """What a visit and a round cost beside their steps: with 3 steps and with 1, and the difference taken away."""
    images = DeviceImages(data.train)
    for clients in (M, 10_000, 100_000):
        held = _overlapping(clients, len(data.train))
        net = Network(blueprint("lenet5", (1, 28, 28), 10), images, held)
        engine, x, order = Fast(net, 1, "whole"), net.blueprint.x0(1), Sampled(clients, S, 1)
        visits = [_one_visit(engine, Visit(0, 0, 0, x, STEP, k)) for k in (1, 3)]
        rounds = [_one_round(SSL(STEP, k), x, order, Pool([engine])) for k in (1, 3)]
        where = f"M={clients:,}, overlapping iid shards"
        yield Row(
            f"outside the steps, a visit, {where}", _beside_steps(visits, 300), 60e-6, "the goal, 60 microseconds"
        )
        yield Row(f"outside the steps, a round of 10, {where}", _beside_steps(rounds, 60), 1e-3, "the goal, 1 ms")


def _overlapping(clients: int, N: int, each: int = 120) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """As many images for every client, wherever it finds them: a piece of one shuffled list."""
    g = rng(2, Purpose.INSTANCES)
    shuffled, starts = g.permutation(N), g.integers(0, N - each, clients)
    return [shuffled[start : start + each] for start in starts.tolist()]


def _one_visit(engine: Fast, visit: Visit[torch.Tensor]) -> Work:
    return lambda: engine.run(visit)


def _one_round(algorithm: SSL[torch.Tensor], x: torch.Tensor, order: Sampled, clients: Pool[torch.Tensor]) -> Work:
    """The next round: who takes part is drawn too."""
    numbers = count()

    def run() -> None:
        r = next(numbers) % 5
        algorithm.round(r, x, order(r), clients)

    return run


def _beside_steps(works: list[Work], runs: int) -> float:
    short, long = (min(times) for times in in_turn(*works, runs=runs))
    return short - (long - short) / 2


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
    figure = Figure(figsize=(10, 0.6 + 0.26 * len(found)), layout="constrained")
    axes = figure.subplots()
    names = [f"{row.what} / {row.baseline_is.split(';')[0].split(' (goal')[0]}" for row in found]
    axes.tick_params(labelsize=7)
    axes.barh(names[::-1], [row.ratio for row in found][::-1], color="#0072B2")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("times faster")
    path = Path("results/benchmarks/kernels.png")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
