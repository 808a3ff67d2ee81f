"""Learning, on the reference engine and as shipped, against plain PyTorch (DataLoader, nn.Module, optim.SGD)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.measure import Row, compared, seconds
from splitrelay.algorithms import Step, Visit
from splitrelay.data.images import DataSet, ImageSet, get_images
from splitrelay.data.partition import Partition
from splitrelay.data.partition_schemes import draw_partition
from splitrelay.randomness import Purpose, rng
from splitrelay.runs.build import build_engine
from splitrelay.runs.spec import make_spec
from splitrelay.runs.trainer import Trainer

STEPS, ROUNDS, M, S, K = 100, 5, 500, 10, 10
Work = Callable[[], object]


def pictures(N: int) -> ImageSet:
    """Random images of MNIST's form: what is in them does not matter here."""
    generator = rng(1, Purpose.INSTANCES)
    x = generator.integers(0, 256, (N, 1, 28, 28), dtype=np.uint8)
    return ImageSet(x, generator.integers(0, 10, N), tuple("0123456789"), (0.1307,), (0.3081,))


class Plain:
    """What one writes without us: a copy of the data for each client, a loader, a module, an optimiser."""

    def __init__(self, data: DataSet, learning: Trainer) -> None:
        self.learning = learning
        train, test = (get_images(part, "this benchmark") for part in (data.train, data.test))
        x, y = (torch.from_numpy(a.copy()) for a in (train.x, train.y))
        x = (x.float() / 255 - 0.1307) / 0.3081
        holdings = [torch.from_numpy(held.copy()) for held in learning.network.holdings]
        self.clients = [TensorDataset(x[held], y[held]) for held in holdings]
        self.test = TensorDataset(
            (torch.from_numpy(test.x.copy()).float() / 255 - 0.1307) / 0.3081, torch.from_numpy(test.y.copy())
        )
        self.net = learning.model_spec.net()

    def steps(self, m: int, number: int) -> None:
        """SGD on one client's loader, as often as it takes."""
        sgd, loss, k = torch.optim.SGD(self.net.parameters(), lr=0.01, weight_decay=1e-4), nn.CrossEntropyLoss(), 0
        while k < number:
            for features, labels in DataLoader(self.clients[m], 20, shuffle=True):
                sgd.zero_grad()
                loss(self.net(features), labels).backward()
                sgd.step()
                k += 1
                if k == number:
                    break

    @torch.no_grad()
    def evaluate(self) -> float:
        """Accuracy on the test set."""
        right = 0
        for features, labels in DataLoader(self.test, 1000):
            right += int((self.net(features).argmax(1) == labels).sum())
        return right / len(self.test)

    def rounds(self, number: int) -> None:
        """The test, then S clients in sequence and the test again, round by round."""
        self.evaluate()
        for _ in range(number):
            for m in range(S):
                self.steps(m, K)
            self.evaluate()

    def batches(self, number: int) -> None:
        """Batches of one loader, without a step."""
        loaded = 0
        while loaded < number:
            for _ in DataLoader(self.clients[0], 20, shuffle=True):
                loaded += 1

    def at_its_best(self, work: str, *args: int) -> int:
        """The number of threads at which this work is fastest."""
        times = {}
        for threads in (1, 2):
            torch.set_num_threads(threads)
            getattr(self, work)(*args)
            times[threads] = seconds(lambda: getattr(self, work)(*args))
        return min(times, key=lambda threads: times[threads])


def rows() -> Iterator[Row]:
    """Every comparison, as it is measured."""
    data = DataSet("random", pictures(60_000), pictures(10_000))
    trial = make_spec(model="lenet5", S=S, K=K, order="sampled", placement="whole", eta=0.01, engine="reference")
    learning = Trainer(trial, data, _partition(data))
    plain = Plain(data, learning)
    for comparison in (_steps, _evaluation, _rounds, _gather):
        yield comparison(learning, plain)
    shipped = Trainer(trial.model_copy(update={"engine": "auto"}), data, _partition(data))
    for comparison in (_steps, _evaluation, _rounds):
        row = comparison(shipped, plain)
        yield replace(row, what=f"engine=auto: {row.what}")
    yield compared(
        "ExDir(2, 10), M=10,000",
        lambda: _partition(data, 10_000),
        lambda: _loop_partition(data, 10_000),
        "a loop over classes and clients",
    )
    yield _memory()


def _against(plain: Plain, what: str, ours: Work, work: str, *args: int) -> Row:
    """Ours on one thread against the plain way on as many as suit it."""
    best = plain.at_its_best(work, *args)
    theirs = _with_threads(best, lambda: getattr(plain, work)(*args))
    return compared(what, _with_threads(1, ours), theirs, f"plain PyTorch, {best} thread(s)")


def _with_threads(number: int, work: Work) -> Work:
    def run() -> None:
        torch.set_num_threads(number)
        work()

    return run


def _steps(learning: Trainer, plain: Plain) -> Row:
    largest = int(np.argmax([len(held) for held in learning.network.holdings]))
    engine, x = build_engine(learning.spec, learning.network), learning.model_spec.x0(1)
    visit = Visit(0, 0, largest, x, Step(0.01, 1e-4), STEPS)
    return _against(plain, f"{STEPS} LeNet-5 steps, batch 20", lambda: engine.run(visit), "steps", largest, STEPS)


def _evaluation(learning: Trainer, plain: Plain) -> Row:
    x = learning.model_spec.x0(1)
    return _against(plain, "evaluation of 10,000 images", lambda: learning.evaluator.score(x), "evaluate")


def _rounds(learning: Trainer, plain: Plain) -> Row:
    what = f"{ROUNDS} rounds, S=10, K=10, each evaluated (overlapped)"
    return _against(plain, what, lambda: list(learning.run(ROUNDS)), "rounds", ROUNDS)


def _gather(learning: Trainer, plain: Plain) -> Row:
    indices = torch.arange(0, 20_000, 1000)
    return _against(
        plain,
        "100 batches gathered and normalised",
        lambda: [learning.network.images.batch(indices) for _ in range(100)],
        "batches",
        100,
    )


def _partition(data: DataSet, clients: int = M) -> Partition:
    return draw_partition("exdir", data.train.y, M=clients, C=2, alpha=10.0, seed=1)


def _loop_partition(data: DataSet, clients: int) -> list[list[int]]:
    """The usual way: for each class a Dirichlet draw, a split, and a loop that deals it out."""
    generator, labels = rng(1, Purpose.PARTITION), data.train.y
    holders = [set(generator.choice(10, 2, replace=False).tolist()) for _ in range(clients)]
    held: list[list[int]] = [[] for _ in range(clients)]
    for c in range(10):
        mine = [m for m in range(clients) if c in holders[m]]
        samples = generator.permutation(np.flatnonzero(labels == c))
        cuts = (np.cumsum(generator.dirichlet(np.full(len(mine), 10.0))) * len(samples)).astype(int)[:-1]
        for m, part in zip(mine, np.split(samples, cuts), strict=True):
            held[m].extend(part.tolist())
    return held


MEMORY = """
import resource, sys
from benchmarks.learning import DataSet, Trainer, make_spec, _partition, pictures
data = DataSet("random", pictures(60_000), pictures(1_000))
trial = make_spec(model="lenet5", S=10, K=2, order="sampled", engine="reference")
learning = Trainer(trial, data, _partition(data, int(sys.argv[1])))
list(learning.run(3))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def _memory() -> Row:
    """Peak memory of a process; reported in GB where the other rows have seconds."""
    small, large = (int(subprocess.run([sys.executable, "-c", MEMORY, str(clients)], check=True, capture_output=True,
                                       text=True).stdout) / 1e6 for clients in (500, 10_000))  # fmt: skip
    return Row("peak GB: M=10,000 (ours) and M=500 (baseline)", large, small, "the same run with M=500")
