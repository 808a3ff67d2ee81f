"""Train a module with a skip connection over a cut. Any nn.Module can be cut where one tensor crosses."""

import torch
import torch.nn.functional as F
from torch import nn

from splitrelay.data import draw_partition, load
from splitrelay.runs.spec import make_spec
from splitrelay.runs.trainer import Trainer


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.conv2, self.norm2 = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(x + h)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block, self.head = nn.Conv2d(1, 16, 3, padding=1), Block(16), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.max_pool2d(self.block(self.stem(x)), 2)
        return self.head(F.dropout(h.amax((2, 3)), 0.1, training=self.training))


if __name__ == "__main__":
    data = load("digits")
    partition = draw_partition("exdir", data.train.y, M=10, C=2, alpha=10.0, seed=1)
    spec = make_spec(cut="max_pool2d", eta=0.05)  # the client holds everything up to the pooling
    for row, _ in Trainer(spec, data, partition, model=Net).run(R=6, every=2):
        print(f"round {row.r}: {row.score.accuracy:.0%} right, {(row.up + row.down) / 1e6:.1f} MB over the cut")
