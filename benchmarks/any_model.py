"""Models of the user: a ResNet, a transformer and an MLP on a table, against a plain torch loop at its best threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

import splitrelay as sr
from benchmarks.measure import Row, compared
from splitrelay.randomness import Purpose, rng
from splitrelay.runs.trainer import Trainer

STEPS, ROUNDS, M, K, BATCH, N, TESTED = 20, 2, 4, 5, 20, 400, 2000


class Block(nn.Module):
    """Two convolutions, group norm, and a skip connection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(channels, channels, 3, padding=1), nn.GroupNorm(4, channels)
        self.conv2, self.norm2 = nn.Conv2d(channels, channels, 3, padding=1), nn.GroupNorm(4, channels)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        inner = torch.relu(self.norm1(self.conv1(h)))
        return torch.relu(h + self.norm2(self.conv2(inner)))


class ResNet(nn.Module):
    """Six convolutions on images of 28 x 28."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(Block(16), Block(16))
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.head(self.blocks(torch.relu(self.stem(x))).mean(dim=(2, 3)))
        return outputs


class Transformer(nn.Module):
    """Two encoder layers on sequences of 32 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 64)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True) for _ in range(2))
        self.head = nn.Linear(64, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.embedding(tokens)
        for layer in self.layers:
            h = layer(h)
        outputs: torch.Tensor = self.head(h.mean(dim=1))
        return outputs


def make_mlp() -> nn.Module:
    """Return an MLP on rows of 30 numbers."""
    return nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


@dataclass(frozen=True)
class Case:
    """A model and the shape of its inputs."""

    name: str
    make: Callable[[], nn.Module]
    cut: str | int
    shape: tuple[int, ...]
    is_tokens: bool = False

    def make_data(self) -> tuple[np.ndarray, np.ndarray]:
        """Return random samples: what is in them does not matter here."""
        generator = rng(1, Purpose.INSTANCES)
        count = N + TESTED
        x = (
            generator.integers(0, 1000, (count, *self.shape))
            if self.is_tokens
            else generator.random((count, *self.shape))
        )
        return x if self.is_tokens else x.astype(np.float32), generator.integers(0, 10, count)


CASES = (
    Case("ResNet, 28 x 28", ResNet, "blocks.0", (1, 28, 28)),
    Case("transformer, 32 tokens", Transformer, "layers.0", (32,), is_tokens=True),
    Case("MLP, 30 columns", make_mlp, 2, (30,)),
)


class PlainLoop:
    """What one writes without us: tensors, a module, an optimiser; with a given number of threads."""

    def __init__(self, case: Case, threads: int) -> None:
        x, y = case.make_data()
        self.x, self.y, self.threads = torch.from_numpy(x), torch.from_numpy(y), threads
        self.net, self.loss = case.make(), nn.CrossEntropyLoss()

    def take_steps(self, number: int) -> None:
        """Take SGD steps on batches of random rows."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        sgd = torch.optim.SGD(self.net.parameters(), lr=0.01)
        for _ in range(number):
            rows = torch.randint(0, N, (BATCH,))
            sgd.zero_grad()
            self.loss(self.net(self.x[rows]), self.y[rows]).backward()
            sgd.step()
        torch.set_num_threads(before)

    @torch.no_grad()
    def evaluate(self) -> float:
        """Return the accuracy on the test set."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        right = sum(
            int((self.net(self.x[i : i + 500]).argmax(1) == self.y[i : i + 500]).sum())
            for i in range(N, N + TESTED, 500)
        )
        torch.set_num_threads(before)
        return right / TESTED

    def run_rounds(self, number: int) -> None:
        """Take the steps of all visits of each round, then evaluate."""
        for _ in range(number):
            self.take_steps(M * K)
            self.evaluate()


def rows() -> Iterator[Row]:
    """Compare steps and evaluated rounds of each case with the faster of one and of all threads."""
    for case in CASES:
        yield from compare_case(case)


def compare_case(case: Case) -> Iterator[Row]:
    """Yield the rows of one model."""
    x, y = case.make_data()
    settings: dict[str, Any] = {"cut": case.cut, "batch": BATCH, "placement": "whole", "draw": "replacement"}
    settings |= {"K": K, "eta": 0.01, "threads": 0}  # threads: measured, as the baseline's number is
    task = sr.SplitTask(case.make, data=(x[:N], y[:N]), test=(x[N:], y[N:]), partition=sr.IID(M=M), **settings)
    clients, start = task.clients(), task.x0()
    step: sr.Step[torch.Tensor] = sr.Step(eta=0.01)

    def take_steps() -> None:
        clients.run(sr.Visit(0, 0, 0, start, step, STEPS))

    # The loop of sr.fit with its default threads=1: one core trains while the others evaluate the round before.
    trainer = Trainer(task.spec.model_copy(update={"threads": 1}), task.data, task.partition)

    def run_rounds() -> None:
        for _ in trainer.run(ROUNDS):
            pass

    loops = [PlainLoop(case, threads) for threads in sorted({1, torch.get_num_threads()})]
    yield compare_best(f"{case.name}: a step", take_steps, [partial(loop.take_steps, STEPS) for loop in loops], STEPS)
    rounds = [partial(loop.run_rounds, ROUNDS) for loop in loops]
    yield compare_best(f"{case.name}: a round, evaluated", run_rounds, rounds, ROUNDS)


def compare_best(what: str, ours: Callable[[], None], baselines: Sequence[Callable[[], None]], count: int) -> Row:
    """Compare ours with the fastest baseline, per unit of work."""
    found = min((compared(what, ours, each, "") for each in baselines), key=lambda row: row.baseline)
    return Row(what, found.ours / count, found.baseline / count, "plain torch, best number of threads")
