"""Reconstruct images from smashed data, as a curious server could that follows the protocol.

A server knows the client half (on the centralized route it relays it) and receives smashed data of private images. With
public images of the same kind it trains a decoder from smashed data back to images, and then guesses for each private
image which of all private images it was.

    python examples/reconstruct_images.py            # digits, a few seconds
    python examples/reconstruct_images.py mnist      # after: splitrelay data get mnist
"""

import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

from splitrelay.data import load
from splitrelay.models import SubModel, find_cut_index
from splitrelay.models.weights_io import load_weights
from splitrelay.runs.execute import build_trainer, execute
from splitrelay.runs.run_directory import RunDirectory
from splitrelay.runs.spec import load_spec

MODELS = {"digits": "lenet-small", "mnist": "lenet5"}
PRIVATE = 1000  # images to find out


def train_client_half(name: str, folder: Path) -> SubModel:
    """Train a model for some rounds and return its client half at the default cut."""
    spec = load_spec(None, [f"data={name}", f"model={MODELS[name]}", "M=10", "C=2", "R=20", "seed=1"])
    directory = RunDirectory(folder)
    for _ in execute(spec, directory):
        pass
    learning, _ = build_trainer(spec)
    cut = find_cut_index(learning.model_spec, None)
    half = SubModel(learning.model_spec, 0, cut, torch.float32)
    half.load(load_weights(directory.model, learning.model_spec.layout())[: half.x.numel()])
    return half


def train_decoder(h: torch.Tensor, images: torch.Tensor, epochs: int = 60) -> nn.Sequential:
    """Train a small network that maps smashed data to images."""
    torch.manual_seed(1)  # noqa: TID251 - of this program's own decoder
    decoder = nn.Sequential(nn.Linear(h.shape[1], 512), nn.ReLU(), nn.Linear(512, images.shape[1]), nn.Sigmoid())
    optimiser = torch.optim.Adam(decoder.parameters(), 1e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(h)).split(50):
            optimiser.zero_grad()
            nn.functional.mse_loss(decoder(h[batch]), images[batch]).backward()
            optimiser.step()
    return decoder


def structural_similarity(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the mean SSIM of flat images in [0, 1], each taken as one window."""
    mean_a, mean_b = a.mean(1), b.mean(1)
    var_a, var_b = a.var(1, unbiased=False), b.var(1, unbiased=False)
    both = ((a - mean_a[:, None]) * (b - mean_b[:, None])).mean(1)
    c1, c2 = 0.01**2, 0.03**2
    found = (2 * mean_a * mean_b + c1) * (2 * both + c2) / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))
    return float(found.mean())


def main(name: str) -> None:
    """Print how many private images are found again, and how similar their reconstructions are."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        half = train_client_half(name, Path(folder) / "run")
    train = load(name).train
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(1)).numpy()
    private, public = train.part(order[:PRIVATE]), train.part(order[PRIVATE : PRIVATE + 10000])
    with torch.no_grad():
        smashed = [half.predict(torch.from_numpy(part.normalize(part.x))).flatten(1) for part in (private, public)]
    pixels = [torch.from_numpy(part.x / part.peak).float().flatten(1) for part in (private, public)]
    decoder = train_decoder(smashed[1], pixels[1], epochs=60 if len(public) < 5000 else 12)
    with torch.no_grad():
        guesses = decoder(smashed[0])
    nearest = torch.cdist(guesses, pixels[0]).argmin(1)
    found = float((nearest == torch.arange(len(private))).float().mean())
    print(f"{name}: the server has {len(public)} public images and the smashed data of {len(private)} private ones")
    similarity = structural_similarity(guesses, pixels[0])
    print(f"found again among {len(private)}: {found:.0%}; structural similarity {similarity:.2f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "digits")
