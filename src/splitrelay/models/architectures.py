"""The built-in models as torch layers, made from their plans, and the user's own models by name."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from splitrelay.kernels.builtin_plans import BUILTIN_MODELS, count_inputs, get_builtin_plan
from splitrelay.kernels.network_plan import Conv2d, Dropout, Flatten, Linear, MaxPool2d, Pair, Plan, ReLU
from splitrelay.models.model_spec import Blueprint
from splitrelay.models.user_functions import own_function

Shape = tuple[int, ...]


def sequence(**layers: nn.Module) -> nn.Sequential:
    """Layers with names."""
    net = nn.Sequential()
    for name, layer in layers.items():
        net.add_module(name, layer)
    return net


def build_net(name: str, plan: Plan) -> nn.Sequential:
    """Build the torch layers of a built-in model, in order, with the initial weights that the model is known for."""
    net = nn.Sequential()
    for j, layer in enumerate(plan.layers):
        made = _build_layer(plan, j)
        if name == "vgg11":
            _initialise_vgg(made)
        net.add_module(layer.name, made)
    if name == "cnnmnist":
        for made in net:
            if isinstance(made, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(made.weight, nonlinearity="relu")
    return net


def _build_layer(plan: Plan, j: int) -> nn.Module:
    layer, inputs = plan.layers[j], count_inputs(plan, j)
    if isinstance(layer, Conv2d):
        kernel, padding = _side(layer.kernel), _side(layer.padding)
        return nn.Conv2d(inputs, layer.outputs, kernel, padding=padding, bias=layer.bias)
    if isinstance(layer, MaxPool2d):
        return nn.MaxPool2d(_side(layer.kernel), _side(layer.stride), _side(layer.padding))
    if isinstance(layer, Linear):
        return nn.Linear(inputs, layer.outputs, layer.bias)
    if isinstance(layer, Dropout):
        return nn.Dropout(layer.p)
    assert isinstance(layer, ReLU | Flatten)
    return nn.ReLU() if isinstance(layer, ReLU) else nn.Flatten()


def _side(pair: Pair) -> int | Pair:
    return pair[0] if pair[0] == pair[1] else pair


def _initialise_vgg(layer: nn.Module) -> None:
    if isinstance(layer, nn.Conv2d):
        nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(layer, nn.Linear):
        nn.init.normal_(layer.weight, 0, 0.01)
    if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None:
        nn.init.zeros_(layer.bias)


MODELS = BUILTIN_MODELS


def blueprint(
    model: str | Callable[[], nn.Sequential], shape: Shape, classes: int, cut: str | int | None = None
) -> Blueprint:
    """A built-in model for images of this shape, or the user's own: a function, or its name as module:function."""
    if callable(model) or ":" in model:
        build = model if callable(model) else own_function("model", model)
        return Blueprint(model if isinstance(model, str) else model.__name__, build, shape, 1 if cut is None else cut)
    plan = get_builtin_plan(model, (shape[0], shape[1], shape[2]), classes)
    return Blueprint(model, lambda: build_net(model, plan), shape, MODELS[model].cut if cut is None else cut)
