"""Modules of many kinds, as a user would write them: none of them is an nn.Sequential of plain layers.

`ZOO` has for each name a function that makes the module, and the types of its inputs. All have five outputs.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from splitrelay.tensor_types import TensorType

IMAGE, SERIES = (TensorType((2, 8, 8)),), (TensorType((3, 16)),)
SEQUENCE, ROW = (TensorType((6, 8)),), (TensorType((12,)),)
TOKENS = (TensorType((7,), "int64"),)
CLASSES = 5


class Residual(nn.Module):
    """Two convolutions with a skip connection."""

    def __init__(self, channels: int, norm: Callable[[int], nn.Module] = nn.BatchNorm2d, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(channels, channels, 3, stride, 1, bias=False), norm(channels)
        self.conv2, self.norm2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False), norm(channels)
        self.relu = nn.ReLU(inplace=True)
        self.down = nn.Conv2d(channels, channels, 1, stride) if stride > 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        out += x if self.down is None else self.down(x)
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 8, 3, padding=1)
        self.layer1 = nn.Sequential(Residual(8, norm), Residual(8, norm))
        self.layer2 = Residual(8, norm, stride=2)
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.layer2(self.layer1(self.stem(x)))
        return self.fc(F.adaptive_avg_pool2d(h, 1).flatten(1))


class Functional(nn.Module):
    """The usual first example of torch: functions instead of modules, and dropout by a function."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(2, 6, 3), nn.Conv2d(6, 8, 3)
        self.fc1, self.fc2 = nn.Linear(32, 16), nn.Linear(16, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = x.view(x.size(0), -1)
        x = F.dropout(F.relu(self.fc1(x)), 0.3, training=self.training)
        return self.fc2(x)


class DepthwiseSeparable(nn.Module):
    """MobileNet: depthwise and pointwise convolutions with an inverted residual."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 8, 3, 2, 1)
        self.expand, self.depthwise = nn.Conv2d(8, 16, 1), nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.project, self.norm = nn.Conv2d(16, 8, 1), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu6(self.stem(x))
        h = h + self.norm(self.project(F.hardswish(self.depthwise(F.hardswish(self.expand(h))))))
        return self.head(h.mean((2, 3)))


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.squeeze, self.excite = nn.Linear(8, 4), nn.Linear(4, 8)
        self.head = nn.Linear(8 * 16, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.gelu(self.norm(self.conv(x)))
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(h.mean((2, 3))))))
        h = F.avg_pool2d(h * gate[:, :, None, None], 2)
        return self.head(h.reshape(h.shape[0], -1))


class UNet(nn.Module):
    """Two skips over the bottleneck, then a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.bottom = nn.Conv2d(8, 8, 3, padding=1)
        self.up2, self.up1 = nn.ConvTranspose2d(8, 8, 2, 2), nn.ConvTranspose2d(16, 4, 2, 2)
        self.merge, self.head = nn.Conv2d(8, 4, 3, padding=1), nn.Linear(4, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = F.relu(self.down1(x))
        two = F.relu(self.down2(F.max_pool2d(one, 2)))
        h = F.relu(self.bottom(F.max_pool2d(two, 2)))
        h = torch.cat([self.up2(h), two], 1)
        h = torch.cat([self.up1(h), one], 1)
        return self.head(F.relu(self.merge(h)).mean((2, 3)))


class DenseNet(nn.Module):
    """Every convolution sees all outputs before it."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(2 + 4 * j, 4, 3, padding=1) for j in range(3))
        self.transition, self.head = nn.Conv2d(14, 6, 1), nn.Linear(6, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv in self.convs:
            x = torch.cat([x, F.relu(conv(x))], 1)
        return self.head(F.relu(self.transition(x)).amax((2, 3)))


class Inception(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 6, 1)
        self.small, self.wide, self.pooled = nn.Conv2d(6, 4, 1), nn.Conv2d(6, 4, 5, padding=2), nn.Conv2d(6, 4, 1)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.stem(x).relu()
        h = torch.cat([self.small(h), self.wide(h), self.pooled(F.avg_pool2d(h, 3, 1, 1))], dim=1)
        return self.head(h.mean([-2, -1]))


class ConvNeXt(nn.Module):
    """Layer norm with channels last, and a learned scale."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.depthwise = nn.Conv2d(2, 8, 2, 2), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.scale, self.head = nn.Parameter(0.1 * torch.ones(8)), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.stem(x)
        inner = self.norm(self.depthwise(h).permute(0, 2, 3, 1))
        h = h + (self.scale * self.down(F.gelu(self.up(inner)))).permute(0, 3, 1, 2)
        return self.head(h.mean((2, 3)))


class StochasticDepth(nn.Module):
    """Leaves out the inner module for some samples of a batch."""

    def __init__(self, inner: nn.Module, p: float) -> None:
        super().__init__()
        self.inner, self.p = inner, p

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training or self.p == 0:
            return x + self.inner(x)
        keep = torch.rand(x.shape[0], *[1] * (x.dim() - 1), device=x.device) >= self.p
        return x + self.inner(x) * keep / (1 - self.p)


class StochasticDepthNet(nn.Module):
    def __init__(self, p: float = 0.4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 6, 3, 2, 1)
        self.blocks = nn.ModuleList(StochasticDepth(nn.Conv2d(6, 6, 3, padding=1), p) for _ in range(2))
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.stem(x)
        for block in self.blocks:
            h = torch.tanh(block(h))
        return self.head(h.mean((2, 3)))


class SizedTensors(nn.Module):
    """A forward method that makes a random mask and an initial state in the size of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rnn, self.head = nn.Linear(8, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, _ = self.rnn(x, torch.zeros(1, x.size(0), 8))
        h = torch.relu(self.first(out))
        if self.training:
            h = h + h * (torch.rand(h.shape[0], 1, 1, device=h.device) >= 0.3) / 0.7
        weights = torch.linspace(0, 1, x.size(1)) + torch.arange(x.size(1))
        return self.head((h * weights[:, None]).mean(1))


class ECG(nn.Module):
    """A residual net over time."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv1d(3, 8, 5, padding=2), nn.BatchNorm1d(8)
        self.conv1, self.conv2 = nn.Conv1d(8, 8, 3, padding=1), nn.Conv1d(8, 8, 3, padding=1)
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.norm(self.stem(x)))
        h = h + self.conv2(self.drop(F.relu(self.conv1(h))))
        return self.head(F.max_pool1d(h, 2).mean(-1))


class Dilated(nn.Module):
    """A temporal convolution that sees the past only."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(3 if not j else 6, 6, 3, dilation=2**j) for j in range(3))
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for j, conv in enumerate(self.convs):
            x = F.leaky_relu(conv(F.pad(x, (2 * 2**j, 0))))
        return self.head(x[:, :, -1])


class Recurrent(nn.Module):
    def __init__(self, kind: str, **more: float) -> None:
        super().__init__()
        self.rnn = getattr(nn, kind)(8, 6, batch_first=True, **more)
        self.head = nn.Linear(12 if more.get("bidirectional") else 6, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, _ = self.rnn(x)
        return self.head(out[:, -1])


class LastState(nn.Module):
    """A classifier on the last hidden state."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.gru = nn.Embedding(11, 8, padding_idx=0), nn.GRU(8, 6, batch_first=True)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        _, state = self.gru(self.embed(ids))
        return self.head(state[-1])


class Cells(nn.Module):
    """A loop over time in one module, which a cut cannot divide."""

    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(8, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            state = x.new_zeros(len(x), 6)
            for t in range(x.shape[1]):
                state = self.cell(x[:, t], state)
            return state

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.loop, self.head = nn.Linear(8, 8), self.Loop(), nn.Linear(6, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.loop(self.embed(x)))


class TextBag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag, self.norm, self.head = nn.EmbeddingBag(11, 8, mode="mean"), nn.LayerNorm(8), nn.Linear(8, CLASSES)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.bag(ids)))


class TextCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.convs = nn.ModuleList(nn.Conv1d(8, 4, width) for width in (2, 3))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = self.embed(ids).transpose(1, 2)
        return self.head(torch.cat([F.relu(conv(h)).amax(-1) for conv in self.convs], 1))


class Encoder(nn.Module):
    """Torch's own transformer layers with learned positions."""

    def __init__(self, dropout: float = 0.1, norm_first: bool = False) -> None:
        super().__init__()
        self.embed, self.positions = nn.Embedding(11, 8), nn.Parameter(0.1 * torch.randn(1, 7, 8))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True, norm_first=norm_first) for _ in range(2)
        )
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, CLASSES)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = self.embed(ids) + self.positions[:, : ids.shape[1]]
        for layer in self.layers:
            h = layer(h)
        return self.head(self.norm(h).mean(1))


class TorchEncoder(nn.Module):
    """nn.TransformerEncoder as a whole, with a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8), enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(7))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embed(ids), mask=self.mask)[:, -1])


class CausalAttention(nn.Module):
    """Attention written out, with sizes taken from the tensor and a buffer that torch does not save."""

    def __init__(self, width: int, heads: int, length: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.drop = nn.Dropout(dropout)
        self.register_buffer("past", torch.tril(torch.ones(length, length, dtype=torch.bool)), persistent=False)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        B, T, C = h.shape
        q, k, v = (each.view(B, T, self.heads, -1).transpose(1, 2) for each in self.qkv(h).chunk(3, -1))
        scores = (q @ k.transpose(-2, -1)) / (C // self.heads) ** 0.5
        scores = scores.masked_fill(~self.past[:T, :T], float("-inf")).softmax(-1)
        return self.out((self.drop(scores) @ v).transpose(1, 2).reshape(B, T, C))


class GPT(nn.Module):
    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(11, 8), nn.Embedding(7, 8)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm1": nn.LayerNorm(8),
                    "attention": CausalAttention(8, 2, 7, dropout),
                    "norm2": nn.LayerNorm(8),
                    "mlp": nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)),
                }
            )
            for _ in range(2)
        )
        self.head = nn.Linear(8, CLASSES)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        B, T = ids.shape
        h = self.tokens(ids) + self.positions(torch.arange(T, device=ids.device))
        for block in self.blocks:
            h = h + block["attention"](block["norm1"](h))
            h = h + block["mlp"](block["norm2"](h))
        return self.head(h.view(B, T, -1)[:, -1])


class ViT(nn.Module):
    """Patches, a class token, and attention of torch."""

    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        self.patches = nn.Conv2d(2, 8, 4, 4)
        self.token, self.positions = nn.Parameter(torch.zeros(1, 1, 8)), nn.Parameter(0.1 * torch.randn(1, 5, 8))
        self.norm, self.attention = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, dropout, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.patches(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(x.shape[0], -1, -1), h], 1) + self.positions
        normed = self.norm(h)
        h = h + self.attention(normed, normed, normed, need_weights=False)[0]
        return self.head(h[:, 0])


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(2, 8, 2, 2)
        self.norm1, self.tokens = nn.LayerNorm(8), nn.Sequential(nn.Linear(16, 8), nn.GELU(), nn.Linear(8, 16))
        self.norm2, self.channels = nn.LayerNorm(8), nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.patches(x).flatten(2).transpose(1, 2)
        h = h + self.tokens(self.norm1(h).transpose(1, 2)).transpose(1, 2)
        h = h + self.channels(self.norm2(h))
        return self.head(h.mean(1))


class MaskedText(nn.Module):
    """Two inputs, token ids and a mask, of which the mask is needed for the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.hidden, self.head = nn.Embedding(11, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        h = self.embed(ids) * mask[:, :, None]
        h = h.sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        return self.head(torch.tanh(self.hidden(h)))


class WideDeep(nn.Module):
    """Numbers and categories of one table."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.embed = nn.Linear(12, 4), nn.Embedding(11, 4)
        self.deep, self.head = nn.Linear(4 + 7 * 4, 8), nn.Linear(8, CLASSES)

    def forward(self, numbers: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        h = torch.cat([self.wide(numbers), self.embed(codes).flatten(1)], dim=1)
        return self.head(F.relu(self.deep(h)))


class TabularResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(12, 8), nn.Linear(8, CLASSES)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.1)) for _ in range(3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        for block in self.blocks:
            h = h + block(h)
        return self.head(F.relu(h))


class Experts(nn.Module):
    """A soft mixture of experts."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(12, 3), nn.ModuleList(nn.Linear(12, 6) for _ in range(3))
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.gate(x).softmax(-1)
        h = torch.stack([expert(x) for expert in self.experts], 1)
        return self.head(torch.relu((weights[:, :, None] * h).sum(1)))


class Highway(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 8)
        self.body, self.gate = nn.Linear(8, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x).tanh()
        gate = self.gate(h).sigmoid()
        h = gate * F.elu(self.body(h)) + (1 - gate) * h
        return self.head(h)


class RandomSlopes(nn.Module):
    """Randomness of three kinds: RReLU, alpha dropout and noise."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(12, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)
        self.rrelu, self.drop = nn.RReLU(), nn.AlphaDropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.rrelu(self.first(x))
        if self.training:
            h = h + 0.1 * torch.randn_like(h)
        return self.head(self.drop(F.selu(self.second(h))))


class LoRALinear(nn.Module):
    """A frozen linear layer with a trained correction of low rank."""

    def __init__(self, inputs: int, outputs: int, rank: int = 2) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.A = nn.Parameter(0.1 * torch.randn(rank, inputs))
        self.B = nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + F.linear(F.linear(x, self.A), self.B)


class LoRA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = LoRALinear(12, 8), LoRALinear(8, 8), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(self.second(F.relu(self.first(x)))))


class Counting(nn.Module):
    """An integer buffer that training changes, and that changes the result."""

    class Warm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("steps", torch.tensor(0))

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            if self.training:
                self.steps += 1
            return h * (1 + 0.1 * self.steps)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.warm, self.head = nn.Linear(12, 8), self.Warm(), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.warm(self.first(x).tanh()))


class InPlace(nn.Module):
    """Operations that change their input, also the tensor that would cross a cut."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(12, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        h *= 2
        F.relu(h, inplace=True)
        h = self.second(h).add_(1.0)
        h.clamp_(-1, 1)
        return self.head(h)


class SpectralNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.parametrizations.spectral_norm(nn.Linear(12, 8))
        self.second = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.sin(self.second(torch.sin(self.first(x)))))


class Conv3d(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv3d(1, 4, 2), nn.InstanceNorm3d(4, affine=True), nn.Linear(4, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.unsqueeze(1)
        return self.head(F.silu(self.norm(self.conv(h))).mean((2, 3, 4)))


Zoo = dict[str, tuple[Callable[[], nn.Module], tuple[TensorType, ...]]]

ZOO: Zoo = {
    "resnet, batch norm": (ResNet, IMAGE),
    "resnet, group norm": (lambda: ResNet(lambda channels: nn.GroupNorm(2, channels)), IMAGE),
    "resnet, instance norm": (lambda: ResNet(lambda channels: nn.InstanceNorm2d(channels, affine=True)), IMAGE),
    "functions and dropout": (Functional, IMAGE),
    "depthwise": (DepthwiseSeparable, IMAGE),
    "squeeze and excite": (SqueezeExcite, IMAGE),
    "u-net": (UNet, IMAGE),
    "densenet": (DenseNet, IMAGE),
    "inception": (Inception, IMAGE),
    "convnext": (ConvNeXt, IMAGE),
    "stochastic depth": (StochasticDepthNet, IMAGE),
    "vision transformer": (ViT, IMAGE),
    "mlp-mixer": (Mixer, IMAGE),
    "sizes of the batch": (SizedTensors, SEQUENCE),
    "conv3d": (Conv3d, IMAGE),
    "ecg": (ECG, SERIES),
    "dilated": (Dilated, SERIES),
    "lstm": (lambda: Recurrent("LSTM"), SEQUENCE),
    "lstm, dropout": (lambda: Recurrent("LSTM", num_layers=2, dropout=0.3), SEQUENCE),
    "gru, two directions": (lambda: Recurrent("GRU", bidirectional=True), SEQUENCE),
    "rnn": (lambda: Recurrent("RNN", num_layers=2), SEQUENCE),
    "cells": (Cells, SEQUENCE),
    "last state": (LastState, TOKENS),
    "embedding bag": (TextBag, TOKENS),
    "text cnn": (TextCNN, TOKENS),
    "transformer": (Encoder, TOKENS),
    "transformer, norm first": (lambda: Encoder(0.0, norm_first=True), TOKENS),
    "nn.TransformerEncoder": (TorchEncoder, TOKENS),
    "gpt": (GPT, TOKENS),
    "ids and mask": (MaskedText, (*TOKENS, TensorType((7,)))),
    "wide and deep": (WideDeep, (*ROW, *TOKENS)),
    "tabular resnet": (TabularResNet, ROW),
    "experts": (Experts, ROW),
    "highway": (Highway, ROW),
    "random slopes": (RandomSlopes, ROW),
    "lora": (LoRA, ROW),
    "counter": (Counting, ROW),
    "in place": (InPlace, ROW),
    "spectral norm": (SpectralNorm, ROW),
}


# Modules of the zoo for grey images of 8x8 pixels and ten classes: model=tests.support.image_modules:NAME.


class Images(nn.Module):
    """A module of the zoo between a first layer for images and a last one for ten classes."""

    def __init__(self, inner: nn.Module, rows: int | None = None) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 2, 1) if rows is None else nn.Linear(8, 8)
        self.inner, self.last, self.rows = inner, nn.Linear(5, 10), rows

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x if self.rows is None else x[:, 0, : self.rows])
        return self.last(self.inner(h))


class Row(nn.Module):
    """Twelve numbers of an image for a module on rows of a table."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first, self.inner, self.last = LoRALinear(64, 12), inner, nn.Linear(5, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.inner(self.first(x.flatten(1)).tanh()))


def resnet() -> nn.Module:
    return Images(ResNet())


def vision_transformer() -> nn.Module:
    return Images(ViT(0.2))


def volumes() -> nn.Module:
    return Images(Conv3d())


def lstm() -> nn.Module:
    return Images(Recurrent("LSTM", num_layers=2, dropout=0.3), rows=6)


def counter() -> nn.Module:
    return Row(Counting())
