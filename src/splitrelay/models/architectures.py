"""kernels/builtin_plans.py defines LeNet-5, VGG-11 and the other models; this module builds their torch layers.

It also loads the models of the user by name.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from splitrelay.errors import InputError
from splitrelay.kernels.builtin_plans import BUILTIN_MODELS, count_inputs, get_builtin_plan
from splitrelay.kernels.network_plan import Conv2d, Dropout, Flatten, Linear, MaxPool2d, Pair, Plan, ReLU
from splitrelay.models.model_spec import ModelSpec
from splitrelay.models.user_functions import load_user_function

Shape = tuple[int, ...]
MODELS = BUILTIN_MODELS


def get_model_spec(
    model: str | Callable[[], nn.Sequential], shape: Shape, classes: int, cut: str | int | None = None
) -> ModelSpec:
    """Return a built-in model or a model of the user.

    Args:
        model: The name of a built-in model, a function that returns an nn.Sequential, or `module:function`.
        shape: The shape (C, H, W) of one image.
        classes: The number of outputs of a built-in model.
        cut: Another default cut than the model's own.

    Example:
        >>> get_model_spec("lenet5", (1, 28, 28), 10).layers()[:3]
        ['conv1', 'relu1', 'pool1']
    """
    if not callable(model) and not isinstance(model, str):
        raise InputError("a model must be a name or a function", value=type(model).__name__)
    if callable(model) or ":" in model:
        build = model if callable(model) else load_user_function("model", model)
        return ModelSpec(model if isinstance(model, str) else model.__name__, build, shape, 1 if cut is None else cut)
    plan = get_builtin_plan(model, (shape[0], shape[1], shape[2]), classes)
    return ModelSpec(model, lambda: build_net(model, plan), shape, MODELS[model].cut if cut is None else cut)


def build_net(name: str, plan: Plan) -> nn.Sequential:
    """Build the torch layers of a built-in model with the initialization that the model is known for."""
    net = nn.Sequential()
    for j, layer in enumerate(plan.layers):
        module = _build_layer(plan, j)
        if name == "vgg11":
            _initialize_vgg(module)
        net.add_module(layer.name, module)
    if name == "cnnmnist":
        for module in net:
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    return net


def _build_layer(plan: Plan, j: int) -> nn.Module:
    layer, inputs = plan.layers[j], count_inputs(plan, j)
    if isinstance(layer, Conv2d):
        kernel, padding = _simplify(layer.kernel), _simplify(layer.padding)
        return nn.Conv2d(inputs, layer.outputs, kernel, padding=padding, bias=layer.bias)
    if isinstance(layer, MaxPool2d):
        return nn.MaxPool2d(_simplify(layer.kernel), _simplify(layer.stride), _simplify(layer.padding))
    if isinstance(layer, Linear):
        return nn.Linear(inputs, layer.outputs, layer.bias)
    if isinstance(layer, Dropout):
        return nn.Dropout(layer.p)
    assert isinstance(layer, ReLU | Flatten)
    return nn.ReLU() if isinstance(layer, ReLU) else nn.Flatten()


def _simplify(pair: Pair) -> int | Pair:
    return pair[0] if pair[0] == pair[1] else pair


def _initialize_vgg(layer: nn.Module) -> None:
    if isinstance(layer, nn.Conv2d):
        nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    elif isinstance(layer, nn.Linear):
        nn.init.normal_(layer.weight, 0, 0.01)
    if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None:
        nn.init.zeros_(layer.bias)
