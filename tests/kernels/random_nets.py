"""Random nets for the fast engine, and what autograd says about them in float64.

python tests/kernels/random_nets.py 300 checks as many and prints the worst; with SPLITRELAY_KERNELS=a sanitizer build
it runs the same nets under its eyes. With the word `bits` behind the number it prints a checksum of all gradients
instead, which is the same from every compiler and on every CPU.
"""

from __future__ import annotations

import hashlib
import math
import sys
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from splitrelay.algorithms.base import Step, Visit
from splitrelay.data.augment import Augmentation
from splitrelay.data.images import ImageSet
from splitrelay.kernels import Draw, SplitEngine, WholeEngine, convert_net
from splitrelay.models import ModelSpec
from splitrelay.randomness import Purpose, rng

DECISIONS = 30_000  # relus and windows a net may have: with more, float64 decides some of them otherwise
MARGIN = 3e-6


@dataclass(frozen=True)
class Case:
    """A net, images of its shape, and one batch of them."""

    model_spec: ModelSpec
    images: ImageSet
    draw: Draw
    x: torch.Tensor


def any_layers(g: np.random.Generator, shape: tuple[int, int, int], batch: int) -> list[nn.Module]:
    """Up to three convolutions, with and without padding, relu, pool and dropout; then up to two linear layers."""
    layers: list[nn.Module] = []
    (C, H, W), room = shape, DECISIONS // batch

    def flip(p: float = 0.5) -> bool:
        return bool(g.random() < p)

    for _ in range(int(g.integers(0, 4))):
        kernel = [int(k) for k in g.integers(1, 8, 2)] if flip(0.3) else [int(g.integers(1, 8))] * 2
        padding = [int(p) for p in g.integers(0, 4, 2)] if flip(0.3) else [int(g.integers(0, 4))] * 2
        OH, OW = (n + 2 * p - k + 1 for n, k, p in zip((H, W), kernel, padding, strict=True))
        if min(OH, OW) < 1:
            continue
        outputs = int(g.integers(1, max(2, min(71, room // (2 * OH * OW)))))
        layers.append(nn.Conv2d(C, outputs, kernel, padding=padding, bias=flip(0.9)))
        C, H, W = outputs, OH, OW
        room -= C * H * W
        behind: list[nn.Module] = [nn.ReLU()] if flip(0.7) else []
        if min(H, W) >= 2 and flip(0.7):
            size = int(g.integers(2, min(H, W, 3) + 1))
            pool = (
                nn.MaxPool2d(size) if flip(0.8) else nn.MaxPool2d(size, stride=int(g.integers(1, 4)), padding=size // 2)
            )
            behind.append(pool)
            H, W = ((n + 2 * (pool.padding or 0) - size) // pool.stride + 1 for n in (H, W))
        behind += [nn.Dropout(0.3)] if flip(0.3) else []
        g.shuffle(behind) if flip(0.2) else None
        layers += behind
    layers.append(nn.Flatten())
    inputs = C * H * W
    for _ in range(int(g.integers(0, 3))):
        outputs = int(g.integers(1, 130))
        layers += [nn.Linear(inputs, outputs, bias=flip(0.9)), *([nn.Dropout(0.5)] if flip(0.3) else []), nn.ReLU()]
        inputs = outputs
    return [*layers, nn.Linear(inputs, int(g.integers(2, 20)))]


def case(number: int) -> Case:
    """The net of this number."""
    g = rng(5, Purpose.INSTANCES, number)
    shape = (int(g.choice([1, 1, 2, 3, 3, 5, 8, 12])), int(g.integers(3, 20)), int(g.integers(3, 20)))
    batch = int(g.integers(1, 41))

    def build() -> nn.Sequential:
        return nn.Sequential(*any_layers(rng(6, Purpose.INSTANCES, number), shape, batch))

    classes = build()[-1].out_features
    x = g.integers(0, 256, (batch + 5, *shape), dtype=np.uint8)
    images = ImageSet(
        x, g.integers(0, classes, len(x)), tuple(map(str, range(classes))), (0.5,) * shape[0], (0.3,) * shape[0]
    )
    at = g.integers(0, len(x), batch)
    crops = Augmentation(2).draw(g, batch) if g.random() < 0.3 else None
    model_spec = ModelSpec(f"net {number}", build, shape, 1)
    return Case(model_spec, images, Draw(at, [batch], crops), model_spec.x0(number))


def ours(case: Case, cut: int | None = None) -> tuple[torch.Tensor, float]:
    """The fast engine's gradient of one step, laid out as x, and the loss."""
    plan = convert_net(case.model_spec.net(), case.model_spec.input_shape)
    visit = Visit(0, 0, 0, case.x.numpy(), Step(0.0), 1)
    if cut is None:
        whole = WholeEngine(plan, case.images, lambda _: case.draw, 3)
        loss = whole.run(visit).cost.loss
        return torch.from_numpy(whole.work.save_gradient()), loss
    two = SplitEngine(plan, case.images, lambda _: case.draw, 3, cut)
    loss = two.run(visit).cost.loss
    return torch.from_numpy(np.concatenate([two.bottom.save_gradient(), two.top.save_gradient()])), loss


def autograd(case: Case, dtype: torch.dtype) -> tuple[dict[str, torch.Tensor], float, float]:
    """Gradient, loss, and the margin of the closest decision that a relu or a pool made."""
    net = case.model_spec.net().to(dtype)
    net.load_state_dict(
        {name: t.to(dtype) for name, t in case.model_spec.layout().unpack(case.x).items()}, strict=False
    )
    pixels, labels = case.images.batch(case.draw.at, case.draw.crops)
    h, margin = torch.from_numpy(pixels).to(dtype), math.inf
    for j, layer in enumerate(net):
        if type(layer).__name__ == "Dropout":
            layer.source = lambda shape, j=j: torch.from_numpy(
                rng(3, Purpose.DROPOUT, 0, 0, 0, 0, j).random(shape, dtype="float32")
            )
        if isinstance(layer, nn.ReLU | nn.MaxPool2d):
            margin = min(margin, _margin(layer, h.detach()))
        h = layer(h)
    loss = nn.functional.cross_entropy(h, torch.from_numpy(labels))
    loss.backward()
    return {name: p.grad for name, p in net.named_parameters()}, float(loss.detach()), margin


def _margin(layer: nn.Module, h: torch.Tensor) -> float:
    """How near to another decision this layer came, relative to what it saw. Equals are equal in any precision."""
    scale = float(h.abs().max()) or 1.0
    if isinstance(layer, nn.ReLU):
        seen = h[h != 0].abs()
        return float(seen.min()) / scale if len(seen) else math.inf
    size, stride, padding = layer.kernel_size, layer.stride, layer.padding
    padded = nn.functional.pad(h, [padding] * 4, value=-math.inf)
    windows = padded.unfold(2, size, stride).unfold(3, size, stride).flatten(4)
    if windows.shape[-1] == 1:
        return math.inf
    best = windows.topk(2, dim=-1).values
    gaps = best[..., 0] - best[..., 1]
    gaps = gaps[gaps > 0]
    return float(gaps.min()) / scale if len(gaps) else math.inf


def errors(g: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> dict[str, float]:
    """The relative error of every tensor's gradient, in the norm; where one nearly cancels, against the whole."""
    whole = math.sqrt(sum(float(true.norm()) ** 2 for true in exact.values()))
    return {
        name: float((g[name].double() - true).norm()) / max(float(true.norm()), 0.1 * whole, 1e-12)
        for name, true in exact.items()
    }


@dataclass(frozen=True)
class Verdict:
    """Errors against float64: ours by tensor, that of the loss among them, and the largest of torch's in float32."""

    ours: dict[str, float]
    torch: float

    @property
    def worst(self) -> float:
        return max(self.ours.values())

    @property
    def good(self) -> bool:
        return self.worst <= max(1e-6, 2 * self.torch)

    def __str__(self) -> str:
        return ", ".join(f"{name} {error:.1e}" for name, error in self.ours.items()) + f"; torch {self.torch:.1e}"


def checked(number: int) -> Verdict | None:
    """How far we are from float64; None where a decision is too close to be compared."""
    one = case(number)
    exact, loss, margin = autograd(one, torch.float64)
    if margin < MARGIN:
        return None
    g, mine = ours(one)
    own = {"loss": abs(mine - loss) / max(1.0, abs(loss)), **errors(one.model_spec.layout().unpack(g), exact)}
    return Verdict(own, max(errors(autograd(one, torch.float32)[0], exact).values()))


def kinds(number: int) -> set[str]:
    """Of the layers of a net."""
    return {type(layer).__name__ for layer in case(number).model_spec.build()}


def main(wanted: int) -> None:
    torch.set_num_threads(1)
    found: dict[int, Verdict] = {}
    number = 0
    while len(found) < wanted:
        verdict = checked(number)
        if verdict is not None:
            found[number] = verdict
            if not verdict.good:
                print(f"net {number}: {verdict}", case(number).model_spec.build(), flush=True)
        number += 1
    bad = [number for number, verdict in found.items() if not verdict.good]
    worst = max(verdict.worst for verdict in found.values())
    print(f"{len(found)} nets of {number}: worst relative error {worst:.2e}, {len(bad)} beyond max(1e-6, 2x torch's)")
    if bad:
        print(f"in every net that is wrong: {', '.join(sorted(set.intersection(*map(kinds, bad))))}")
        print("Errors grow backwards: of a net's tensors, the last that is wrong lies just before the fault.")
    sys.exit(bool(bad))


def bits(wanted: int) -> None:
    digest = hashlib.sha256()
    for number in range(wanted):
        digest.update(ours(case(number))[0].numpy().tobytes())
    print(f"{wanted} nets: {digest.hexdigest()[:16]}")


if __name__ == "__main__":
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    bits(number) if "bits" in sys.argv else main(number)
