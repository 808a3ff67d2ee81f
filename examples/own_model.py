"""Train your own model over a cut. The model can be any nn.Module; residual_net.py has a skip connection."""

from torch import nn

from splitrelay.data import draw_partition, load
from splitrelay.runs.spec import make_spec
from splitrelay.runs.trainer import Trainer


def net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(8 * 36, 10)
    )


if __name__ == "__main__":
    data = load("digits")
    partition = draw_partition("exdir", data.train.y, M=10, C=2, alpha=10.0, seed=1)
    spec = make_spec(cut=3, eta=0.05)  # the client holds the first three layers
    for row, _ in Trainer(spec, data, partition, model=net).run(R=6, every=2):
        print(f"round {row.r}: {row.score.accuracy:.0%} right, {(row.up + row.down) / 1e6:.1f} MB over the cut")
