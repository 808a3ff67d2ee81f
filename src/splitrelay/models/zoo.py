"""The paper's two models, the small ones of its authors' later code, and ours for tests and the demo."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from splitrelay.errors import InputError, UnknownName
from splitrelay.models.blueprint import Blueprint
from splitrelay.models.own import own_function

Shape = tuple[int, ...]


def sequence(**layers: nn.Module) -> nn.Sequential:
    """Layers with names."""
    net = nn.Sequential()
    for name, layer in layers.items():
        net.add_module(name, layer)
    return net


def logistic(shape: Shape, classes: int) -> nn.Sequential:
    """Softmax regression; on MNIST 7,850 parameters."""
    return sequence(flatten=nn.Flatten(), fc=nn.Linear(math.prod(shape), classes))


def mlp(shape: Shape, classes: int) -> nn.Sequential:
    """784-64-10 with dropout before the relu; on MNIST 50,890 parameters."""
    return sequence(
        flatten=nn.Flatten(),
        fc1=nn.Linear(math.prod(shape), 64),
        dropout=nn.Dropout(0.5),
        relu=nn.ReLU(),
        fc2=nn.Linear(64, classes),
    )


def lenet5(shape: Shape, classes: int) -> nn.Sequential:
    """LeNet-5 as in the paper; on MNIST 44,426 parameters, 2,572 of them below the usual cut."""
    side = ((shape[1] - 4) // 2 - 4) // 2
    return sequence(
        conv1=nn.Conv2d(shape[0], 6, 5), relu1=nn.ReLU(), pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(6, 16, 5), relu2=nn.ReLU(), pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(16 * side * side, 120), relu3=nn.ReLU(),
        fc2=nn.Linear(120, 84), relu4=nn.ReLU(),
        fc3=nn.Linear(84, classes),
    )  # fmt: skip


def lenet_small(shape: Shape, classes: int) -> nn.Sequential:
    """A LeNet for 8x8 digits: two 3x3 convolutions with padding, each pooled."""
    side = shape[1] // 4
    return sequence(
        conv1=nn.Conv2d(shape[0], 8, 3, padding=1), relu1=nn.ReLU(), pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(8, 16, 3, padding=1), relu2=nn.ReLU(), pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(16 * side * side, 32), relu3=nn.ReLU(),
        fc2=nn.Linear(32, classes),
    )  # fmt: skip


def vgg11(shape: Shape, classes: int) -> nn.Sequential:
    """VGG-11 for 32x32 images, no batch norm; 9,750,922 parameters, 960,896 of them below the usual cut."""
    net, channels = nn.Sequential(), shape[0]
    for block, widths in enumerate(((64,), (128,), (256, 256), (512, 512), (512, 512)), 1):
        for j, width in enumerate(widths, 1):
            conv = nn.Conv2d(channels, width, 3, padding=1)
            nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(_bias(conv))
            net.add_module(f"conv{block}_{j}", conv)
            net.add_module(f"relu{block}_{j}", nn.ReLU())
            channels = width
        net.add_module(f"pool{block}", nn.MaxPool2d(2))
    return _vgg_head(net, channels * (shape[1] // 32) ** 2, classes)


def _vgg_head(net: nn.Sequential, width: int, classes: int) -> nn.Sequential:
    net.add_module("flatten", nn.Flatten())
    for j, (inputs, outputs) in enumerate(((width, 512), (512, 512), (512, classes)), 1):
        linear = nn.Linear(inputs, outputs)
        nn.init.normal_(linear.weight, 0, 0.01)
        nn.init.zeros_(linear.bias)
        net.add_module(f"fc{j}", linear)
        if j < 3:
            net.add_module(f"relu{j}", nn.ReLU())
            net.add_module(f"dropout{j}", nn.Dropout(0.5))
    return net


def _bias(layer: nn.Conv2d) -> torch.Tensor:
    assert layer.bias is not None
    return layer.bias


def cnnmnist(shape: Shape, classes: int) -> nn.Sequential:
    """Two 5x5 convolutions of 32 channels with padding; on MNIST 228,586 parameters, kaiming normal."""
    side = shape[1] // 4
    net = sequence(
        conv1=nn.Conv2d(shape[0], 32, 5, padding=2), relu1=nn.ReLU(), pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(32, 32, 5, padding=2), relu2=nn.ReLU(), pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(32 * side * side, 128), relu3=nn.ReLU(),
        fc2=nn.Linear(128, classes),
    )  # fmt: skip
    for layer in net:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return net


def cnncifar(shape: Shape, classes: int) -> nn.Sequential:
    """A small CNN for CIFAR-10 on a CPU: three pooled 3x3 convolutions of 16, 16 and 32 channels."""
    side = shape[1] // 8
    return sequence(
        conv1=nn.Conv2d(shape[0], 16, 3, padding=1), relu1=nn.ReLU(), pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(16, 16, 3, padding=1), relu2=nn.ReLU(), pool2=nn.MaxPool2d(2),
        conv3=nn.Conv2d(16, 32, 3, padding=1), relu3=nn.ReLU(), pool3=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(32 * side * side, 64), relu4=nn.ReLU(),
        fc2=nn.Linear(64, classes),
    )  # fmt: skip


# name: (layers, last layer of the client's half, smallest side of an image)
MODELS: dict[str, tuple[Callable[[Shape, int], nn.Sequential], str, int]] = {
    "logistic": (logistic, "flatten", 1),
    "mlp": (mlp, "relu", 1),
    "lenet5": (lenet5, "pool2", 16),
    "lenet-small": (lenet_small, "pool2", 4),
    "vgg11": (vgg11, "pool3", 32),
    "cnnmnist": (cnnmnist, "pool2", 4),
    "cnncifar": (cnncifar, "pool3", 8),
}


def blueprint(
    model: str | Callable[[], nn.Sequential], shape: Shape, classes: int, cut: str | int | None = None
) -> Blueprint:
    """A model of the house for images of this shape, or one's own: a function, or its name as module:function."""
    if callable(model) or ":" in model:
        build = model if callable(model) else own_function("model", model)
        return Blueprint(model if isinstance(model, str) else model.__name__, build, shape, 1 if cut is None else cut)
    if model not in MODELS:
        raise UnknownName("model", model, MODELS)
    layers, usual, least = MODELS[model]
    if min(shape[1:]) < least:
        raise InputError(f"{model} needs images of at least {least}x{least}", value="x".join(map(str, shape)))
    return Blueprint(model, lambda: layers(shape, classes), shape, usual if cut is None else cut)
