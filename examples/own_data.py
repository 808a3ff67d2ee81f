"""Train on your own data: any arrays x (N, C, H, W) and y (here two kinds of stripes), or `load("folder-or-file")`."""

import numpy as np

from splitrelay.data import draw_partition, load_user_dataset
from splitrelay.randomness import Purpose, rng
from splitrelay.runs.spec import make_spec
from splitrelay.runs.trainer import Trainer


class Stripes:
    """A data set with the two attributes that are needed, `data` and `targets`, as in torchvision."""

    def __init__(self, N: int) -> None:
        noise = rng(1, Purpose.INSTANCES).integers(0, 120, (N, 8, 8))
        self.targets = np.arange(N) % 2
        stripe = 120 * (np.indices((8, 8)) % 2)
        self.data = (noise + stripe[self.targets]).astype(np.uint8)


if __name__ == "__main__":
    data = load_user_dataset(Stripes(600), test=Stripes(200))
    partition = draw_partition("exdir", data.train.y, M=6, C=1, alpha=1.0, seed=1)
    for row, _ in Trainer(make_spec(algorithm="fedavg", eta=0.3), data, partition).run(R=4):
        print(f"round {row.r}: {row.score.accuracy:.0%} right")
