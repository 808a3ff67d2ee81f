"""The fast engine beside torch eager, tuned (gather by index, channels last, fused SGD), and the plain way.

A clock may swing by half within seconds, so what is compared is run in turn, A B A B ..., in turns of the same length,
and the best of each counts. Where the best of the first half of the turns and of the second, ours or the baseline's,
differ by more than a tenth, there are more turns; where they still do, the row says that nothing follows from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count, cycle
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import nn

from benchmarks.learning import K, M, Plain, S, _partition
from benchmarks.measure import Row, Times, Work, beside, in_turn, lasting, seconds, verdict
from splitrelay import kernels
from splitrelay.algorithms import SSL, Step, Visit
from splitrelay.data.images import DataSet, ImageSet, get_images
from splitrelay.engine.select import FastEngine, FastEvaluator, get_arrays
from splitrelay.engine.thread_pool import Pool
from splitrelay.kernels import ImageEvaluator, convert_net
from splitrelay.models import ModelSpec, get_model_spec
from splitrelay.models.summary import summarize_model
from splitrelay.objectives.batches import Batches
from splitrelay.objectives.network import DeviceImages, Network
from splitrelay.participation import Sampled
from splitrelay.randomness import Purpose, rng
from splitrelay.runs.spec import make_spec
from splitrelay.runs.trainer import Trainer

Shape = tuple[int, int, int]
STEPS = 10
STEP = Step[torch.Tensor](0.01, 1e-4)
ROUNDS = 2


class Tuned:
    """Torch at its best on one thread: no loader, no copy, memory formats that suit it."""

    def __init__(self, model: ModelSpec, images: DeviceImages, batch: int) -> None:
        self.net, self.images = model.net(), images
        self.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs do not know it
        for layer in self.net:
            if type(layer).__name__ == "Dropout":
                layer.source = torch.rand  # type: ignore[assignment]  # unnamed masks are cheaper
        self.sgd = torch.optim.SGD(self.net.parameters(), lr=0.01, weight_decay=1e-4, fused=True)
        self.batches = cycle(torch.arange(len(images)).split(batch))  # type: ignore[no-untyped-call]

    def step(self) -> None:
        """One local step, on the next batch."""
        features, labels = self.images.batch(next(self.batches))
        features = features.contiguous(memory_format=torch.channels_last)
        nn.functional.cross_entropy(self.net(features), labels).backward()  # type: ignore[no-untyped-call]
        self.sgd.step()
        self.sgd.zero_grad()

    @torch.no_grad()
    def evaluate(self) -> None:
        """All images, in slices that fit the cache."""
        self.net.eval()
        for features, labels in self.images.slices(500):
            (self.net(features.contiguous(memory_format=torch.channels_last)).argmax(1) == labels).sum()
        self.net.train()


def images_of(shape: Shape, N: int) -> ImageSet:
    """Random images: what is in them does not matter here."""
    g, C = rng(1, Purpose.INSTANCES), shape[0]
    x = g.integers(0, 256, (N, *shape), dtype=np.uint8)
    return ImageSet(x, g.integers(0, 10, N), tuple("0123456789"), (0.1307,) * C, (0.3081,) * C)


def network(name: str, shape: Shape, batch: int) -> Network:
    """One client with enough images for a visit."""
    images = images_of(shape, STEPS * batch)
    return Network(get_model_spec(name, shape, 10), DeviceImages(images), [np.arange(len(images))], Batches(batch))


def a_step(name: str, shape: Shape, batch: int, goal: str, number: int = STEPS, budget: float = 3) -> Row:
    """One local step of a model, as a part of visits of some steps."""
    net = network(name, shape, batch)
    engine, visit = FastEngine(net, 1, "whole"), Visit(0, 0, 0, net.model_spec.x0(1), STEP, number)
    assert isinstance(net.images, DeviceImages)
    tuned, what = Tuned(net.model_spec, net.images, batch), f"{name} step, batch {batch}"
    ours: Work = lambda: engine.run(visit)  # noqa: E731
    return beside(what, ours, tuned.step, f"torch tuned ({goal})", budget=budget, scale=number)


def dense_limit(batch: int = 20) -> Row:
    """A LeNet-5 step, and a dense one at the peak: the best of torch's own matrix product in a few sizes, in turn."""
    net, sizes = network("lenet5", (1, 28, 28), batch), (256, 384, 512)
    engine, visit = FastEngine(net, 1, "whole"), Visit(0, 0, 0, net.model_spec.x0(1), STEP, STEPS)
    (ours, visits), *products = (lasting(work) for work in (lambda: engine.run(visit), *map(_product, sizes)))
    mine, *theirs = in_turn(ours, *(product for product, _ in products), budget=6)
    flops = {2 * n**3 * often / min(t): t for n, (_, often), t in zip(sizes, products, theirs, strict=True)}
    peak = max(flops)
    layers = [row for row in summarize_model(net.model_spec).layers if row.parameters]
    dense = batch * (3 * sum(row.flops for row in layers) - layers[0].flops)  # nobody asks for its input's gradient
    what = f"a dense step at the sgemm peak of {peak / 1e9:.0f} GFLOPS (goal 1.0)"
    judged = what + verdict(ours=mine, the_peak=flops[peak])
    return Row(f"lenet5 step, batch {batch}", min(mine) / visits / STEPS, dense / peak, judged)


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
    yield a_step("vgg11", colour, 20, "goal 1", number=1, budget=9)


def _learning(data: DataSet, workers: int, algorithm: str = "ssl", clients: int = M) -> Trainer:
    trial = make_spec(
        algorithm=algorithm, model="lenet5", S=S, K=K, order="sampled", placement="whole", eta=0.01, engine="fast"
    )
    return Trainer(trial, data, _partition(data, clients), workers=workers)


def _plain_step(learning: Trainer, plain: Plain) -> Row:
    largest = int(np.argmax([len(held) for held in learning.network.holdings]))
    engine, visit = FastEngine(learning.network, 1, "whole"), Visit(0, 0, largest, learning.x0(), STEP, STEPS)
    theirs = _at_its_best(lambda: plain.steps(largest, STEPS))
    row = beside("lenet5 step, batch 20", lambda: engine.run(visit), theirs, "the plain way (goal 7.5)")
    return replace(row, ours=row.ours / STEPS, baseline=row.baseline / STEPS)


def _evaluation(learning: Trainer) -> Iterator[Row]:
    net, x = learning.network, learning.x0()
    images = DeviceImages(images_of((1, 28, 28), 10_000))
    scorer = ImageEvaluator(
        convert_net(net.model_spec.net(), net.model_spec.input_shape), get_arrays(images), threads=1
    )
    evaluator = FastEvaluator(net.model_spec, images)
    one: Work = lambda: scorer.evaluate(x.numpy())  # noqa: E731
    two: Work = lambda: evaluator.score(x)  # noqa: E731
    theirs = Tuned(net.model_spec, images, 20).evaluate
    yield beside("evaluation of 10,000 images", one, theirs, "torch tuned (goal 3)", budget=6)
    yield beside("evaluation of 10,000 images, all cores", two, one, "one thread (goal 1.85)")


def _rounds_on_two_cores(data: DataSet) -> Row:
    two, one = (_learning(data, workers, "fedavg") for workers in (2, 1))
    what = f"{ROUNDS} FedAvg rounds, S=10, K=10, 2 cores"
    return beside(what, _training(two), _training(one), "one core (goal 1.8)")


def _training(learning: Trainer) -> Work:
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
    yield beside(what, both, theirs, "the plain way (goal 10)", budget=12)
    ours, trains, looks = in_turn(both, _training(learning), lambda: learning.evaluator.score(x), budget=5)
    train, look = min(trains), min(looks)
    alone = max(train, (train + 2 * (ROUNDS + 1) * look) / 2)  # a look takes all of two cores
    judged = verdict(ours=ours, training=trains, looking=looks)
    yield Row(what, min(ours), alone, "what the kernels alone need on two cores (goal 0.85)" + judged)


def _outside(data: DataSet) -> Iterator[Row]:
    """What a visit and a round cost beside their steps: with 3 steps and with 1, and the difference taken away."""
    images = DeviceImages(get_images(data.train, "this benchmark"))
    for clients in (M, 10_000, 100_000):
        held = _overlapping(clients, len(data.train))
        net = Network(get_model_spec("lenet5", (1, 28, 28), 10), images, held)
        engine, x, order = (
            FastEngine(net, 1, "whole"),
            net.model_spec.x0(1),
            Sampled(clients, S, 1, kernels.draw_clients),
        )
        visits = [_one_visit(engine, Visit(0, 0, 0, x, STEP, k)) for k in (1, 3)]
        rounds = [_one_round(SSL(STEP, k), x, order, Pool([engine])) for k in (1, 3)]
        where = f"M={clients:,}, overlapping iid shards"
        yield _beside_steps(f"outside the steps, a visit, {where}", visits, 60e-6, "the goal, 60 microseconds")
        yield _beside_steps(f"outside the steps, a round of 10, {where}", rounds, 1e-3, "the goal, 1 ms")


def _overlapping(clients: int, N: int, each: int = 120) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """As many images for every client, wherever it finds them: a piece of one shuffled list."""
    g = rng(2, Purpose.INSTANCES)
    shuffled, starts = g.permutation(N), g.integers(0, N - each, clients)
    return [shuffled[start : start + each] for start in starts.tolist()]


def _one_visit(engine: FastEngine, visit: Visit[torch.Tensor]) -> Work:
    return lambda: engine.run(visit)


def _one_round(algorithm: SSL[torch.Tensor], x: torch.Tensor, order: Sampled, clients: Pool[torch.Tensor]) -> Work:
    """The next round: who takes part is drawn too."""
    numbers = count()

    def run() -> None:
        r = next(numbers) % 5
        algorithm.round(r, x, order(r), clients)

    return run


def _beside_steps(what: str, works: list[Work], goal: float, goal_is: str) -> Row:
    """Judged by itself, half by half: of so small a difference the turns, which are long, say too little."""
    times = in_turn(*works, budget=3, judged=lambda times: [_halves(times)])
    return Row(what, _difference(times), goal, goal_is + verdict(ours=_halves(times)))


def _halves(times: Times) -> tuple[float, float]:
    half = len(times[0]) // 2
    return _difference([one[:half] for one in times]), _difference([one[half:] for one in times])


def _difference(times: Times) -> float:
    short, long = map(min, times)
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
