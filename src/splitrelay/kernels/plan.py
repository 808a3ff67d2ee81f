"""A net as data: its layers with all their numbers, from which buffers and kernels follow. It travels as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from math import prod
from typing import Any

from splitrelay.errors import InputError

BOUNDARY = 16  # floats: every tensor of x starts on 64 bytes, as in models.layout

Pair = tuple[int, int]
Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Conv2d:
    """A convolution of stride 1."""

    name: str
    outputs: int
    kernel: Pair
    padding: Pair = (0, 0)
    bias: bool = True


@dataclass(frozen=True)
class ReLU:
    """max(0, h)."""

    name: str


@dataclass(frozen=True)
class MaxPool2d:
    """The largest of each window."""

    name: str
    kernel: Pair
    stride: Pair
    padding: Pair = (0, 0)

    @property
    def apart(self) -> bool:
        """Windows that neither overlap nor leave gaps: such a pool is part of the convolution before it."""
        return self.kernel == self.stride and self.padding == (0, 0)


@dataclass(frozen=True)
class Flatten:
    """Images as vectors."""

    name: str


@dataclass(frozen=True)
class Linear:
    """W h + b."""

    name: str
    outputs: int
    bias: bool = True


@dataclass(frozen=True)
class Dropout:
    """Zeroes with probability p, by named masks."""

    name: str
    p: float


Layer = Conv2d | ReLU | MaxPool2d | Flatten | Linear | Dropout
KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Conv2d, ReLU, MaxPool2d, Flatten, Linear, Dropout)}


@dataclass(frozen=True)
class Parameter:
    """One tensor of x, under torch's name: where it starts, and its shape (kernels lie channels last in memory)."""

    name: str
    start: int
    shape: tuple[int, ...]
    layer: int


@dataclass(frozen=True)
class Plan:
    """The shape (C, H, W) of one input, and the layers."""

    shape: Shape
    layers: tuple[Layer, ...]

    def __post_init__(self) -> None:
        self.shapes  # noqa: B018 - a net that cannot be is refused here, by the name of its layer

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """What stands before each layer, and behind the last; a vector of F features is (F, 1, 1) once it is linear."""
        shapes = [self.shape]
        for j, layer in enumerate(self.layers):
            shapes.append(self._after(j, layer, shapes[-1]))
        if not self.flat(len(self.layers)):
            raise InputError("the net ends in images, not in one number per class", way_out="End it in nn.Linear.")
        return tuple(shapes)

    def flat(self, j: int) -> bool:
        """Whether what stands before layer j is a vector."""
        return any(isinstance(layer, Flatten) for layer in self.layers[:j])

    def _after(self, j: int, layer: Layer, shape: Shape) -> Shape:
        C, H, W = shape
        if isinstance(layer, Linear):
            if not self.flat(j):
                raise InputError(f"layer '{layer.name}' (Linear) stands before nn.Flatten")
            return layer.outputs, 1, 1
        if isinstance(layer, Conv2d | MaxPool2d):
            stride = layer.stride if isinstance(layer, MaxPool2d) else (1, 1)
            sides = [
                (n + 2 * p - k) // s + 1 for n, k, s, p in zip((H, W), layer.kernel, stride, layer.padding, strict=True)
            ]
            if self.flat(j) or min(sides) < 1:
                raise InputError(f"layer '{layer.name}' does not fit what comes before it", value=f"{C}x{H}x{W}")
            return layer.outputs if isinstance(layer, Conv2d) else C, sides[0], sides[1]
        return shape

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """All tensors of x, in order."""
        return tuple(self._parameters())

    def _parameters(self) -> Iterator[Parameter]:
        start = 0
        for j, layer in enumerate(self.layers):
            if not isinstance(layer, Conv2d | Linear):
                continue
            inputs = self.shapes[j][0] if isinstance(layer, Conv2d) else prod(self.shapes[j])
            kernel = layer.kernel if isinstance(layer, Conv2d) else ()
            tensors: list[tuple[str, tuple[int, ...]]] = [("weight", (layer.outputs, inputs, *kernel))]
            tensors += [("bias", (layer.outputs,))] if layer.bias else []
            for name, shape in tensors:
                yield Parameter(f"{layer.name}.{name}", start, shape, j)
                start += -(-prod(shape) // BOUNDARY) * BOUNDARY

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """ends[j] is where the first j layers end in x: ends[cut] is the length of the client's half."""
        ends, parameters = [0], list(self.parameters)
        for j in range(len(self.layers)):
            last = [p.start + -(-prod(p.shape) // BOUNDARY) * BOUNDARY for p in parameters if p.layer == j]
            ends.append(max(last, default=ends[-1]))
        return tuple(ends)

    @property
    def size(self) -> int:
        """The length of x, gaps included."""
        return self.ends[-1]

    @property
    def classes(self) -> int:
        """Outputs of the last layer."""
        return prod(self.shapes[-1])

    def document(self) -> dict[str, Any]:
        """The plan as plain lists and numbers, for JSON."""
        layers = [{"kind": type(layer).__name__, **asdict(layer)} for layer in self.layers]
        return {"shape": list(self.shape), "layers": layers}


def plan_from(document: dict[str, Any]) -> Plan:
    """The plan that was written down."""
    layers = []
    for entry in document["layers"]:
        fields = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
        layers.append(KINDS[str(fields.pop("kind"))](**fields))
    C, H, W = document["shape"]
    return Plan((C, H, W), tuple(layers))
