"""The built-in models as plans: the one definition of their layers, which needs no torch.

`splitrelay.models` builds torch's layers from these plans, and a client without torch trains them with the kernels. A
client therefore never needs the layers of a built-in model from its server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

from splitrelay.errors import InputError, OutOfRange, UnknownName
from splitrelay.kernels.network_plan import Conv2d, Dropout, Flatten, Layer, Linear, MaxPool2d, Plan, ReLU, Shape


@dataclass(frozen=True)
class BuiltinModel:
    """A model that every installation knows: its layers, its usual cut, the smallest side of an image."""

    layers: Callable[[Shape, int], Iterator[Layer]]
    cut: str
    least_side: int


def logistic(shape: Shape, classes: int) -> Iterator[Layer]:
    """Softmax regression; on MNIST 7,850 parameters."""
    yield Flatten("flatten")
    yield Linear("fc", classes)


def mlp(shape: Shape, classes: int) -> Iterator[Layer]:
    """784-64-10 with dropout before the relu; on MNIST 50,890 parameters."""
    yield Flatten("flatten")
    yield Linear("fc1", 64)
    yield Dropout("dropout", 0.5)
    yield ReLU("relu")
    yield Linear("fc2", classes)


def lenet5(shape: Shape, classes: int) -> Iterator[Layer]:
    """LeNet-5 as in the paper; on MNIST 44,426 parameters, 2,572 of them below the usual cut."""
    yield from _build_convolution(1, 6, kernel=5)
    yield from _build_convolution(2, 16, kernel=5)
    yield Flatten("flatten")
    yield from _build_linear(1, 120, relu=3)
    yield from _build_linear(2, 84, relu=4)
    yield Linear("fc3", classes)


def lenet_small(shape: Shape, classes: int) -> Iterator[Layer]:
    """A LeNet for 8x8 digits: two 3x3 convolutions with padding, each pooled."""
    yield from _build_convolution(1, 8, kernel=3, padding=1)
    yield from _build_convolution(2, 16, kernel=3, padding=1)
    yield Flatten("flatten")
    yield from _build_linear(1, 32, relu=3)
    yield Linear("fc2", classes)


def vgg11(shape: Shape, classes: int) -> Iterator[Layer]:
    """VGG-11 for 32x32 images, no batch norm; 9,750,922 parameters, 960,896 of them below the usual cut."""
    for block, widths in enumerate(((64,), (128,), (256, 256), (512, 512), (512, 512)), 1):
        for j, width in enumerate(widths, 1):
            yield Conv2d(f"conv{block}_{j}", width, (3, 3), (1, 1))
            yield ReLU(f"relu{block}_{j}")
        yield MaxPool2d(f"pool{block}", (2, 2), (2, 2))
    yield Flatten("flatten")
    for j in (1, 2):
        yield from _build_linear(j, 512, relu=j)
        yield Dropout(f"dropout{j}", 0.5)
    yield Linear("fc3", classes)


def cnnmnist(shape: Shape, classes: int) -> Iterator[Layer]:
    """Two 5x5 convolutions of 32 channels with padding; on MNIST 228,586 parameters, kaiming normal."""
    yield from _build_convolution(1, 32, kernel=5, padding=2)
    yield from _build_convolution(2, 32, kernel=5, padding=2)
    yield Flatten("flatten")
    yield from _build_linear(1, 128, relu=3)
    yield Linear("fc2", classes)


def cnncifar(shape: Shape, classes: int) -> Iterator[Layer]:
    """A small CNN for CIFAR-10 on a CPU: three pooled 3x3 convolutions of 16, 16 and 32 channels."""
    for j, width in enumerate((16, 16, 32), 1):
        yield from _build_convolution(j, width, kernel=3, padding=1)
    yield Flatten("flatten")
    yield from _build_linear(1, 64, relu=4)
    yield Linear("fc2", classes)


def _build_convolution(j: int, width: int, *, kernel: int, padding: int = 0) -> Iterator[Layer]:
    yield Conv2d(f"conv{j}", width, (kernel, kernel), (padding, padding))
    yield ReLU(f"relu{j}")
    yield MaxPool2d(f"pool{j}", (2, 2), (2, 2))


def _build_linear(j: int, width: int, *, relu: int) -> Iterator[Layer]:
    yield Linear(f"fc{j}", width)
    yield ReLU(f"relu{relu}")


BUILTIN_MODELS = {
    "logistic": BuiltinModel(logistic, "flatten", 1),
    "mlp": BuiltinModel(mlp, "relu", 1),
    "lenet5": BuiltinModel(lenet5, "pool2", 16),
    "lenet-small": BuiltinModel(lenet_small, "pool2", 4),
    "vgg11": BuiltinModel(vgg11, "pool3", 32),
    "cnnmnist": BuiltinModel(cnnmnist, "pool2", 4),
    "cnncifar": BuiltinModel(cnncifar, "pool3", 8),
}


def get_builtin_plan(name: str, shape: Shape, classes: int) -> Plan:
    """Return the layers of a built-in model for images of this shape.

    Raises UnknownName for another name, and InputError where the images are too small for the model.
    """
    if name not in BUILTIN_MODELS:
        raise UnknownName("model", name, BUILTIN_MODELS)
    model = BUILTIN_MODELS[name]
    if min(shape[1:]) < model.least_side:
        least = f"{model.least_side}x{model.least_side}"
        raise InputError(f"{name} needs images of at least {least}", value="x".join(map(str, shape)))
    return Plan(shape, tuple(model.layers(shape, classes)))


def find_cut(plan: Plan, name: str, cut: str | int | None) -> int:
    """Return how many layers of a plan the client holds.

    `cut` is the name of the client's last layer or the number of its layers; None means the usual cut of the built-in
    model `name`, and one layer for every other model.
    """
    names = [layer.name for layer in plan.layers]
    if cut is None:
        cut = BUILTIN_MODELS[name].cut if name in BUILTIN_MODELS else 1
    if isinstance(cut, str) and not cut.lstrip("-").isdigit():
        if cut not in names:
            raise UnknownName(f"layer of {name}", cut, names)
        cut = names.index(cut) + 1
    if not 1 <= int(cut) < len(names):
        limit = f"1 <= cut <= {len(names) - 1}, so that both sides have a layer"
        raise OutOfRange(f"cut of {name}", limit=limit, value=int(cut))
    return int(cut)


def count_inputs(plan: Plan, j: int) -> int:
    """Return the inputs of layer j: channels of a convolution, numbers of a linear layer."""
    return plan.shapes[j][0] if isinstance(plan.layers[j], Conv2d) else prod(plan.shapes[j])
