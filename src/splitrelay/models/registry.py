"""kernels/builtin_models.py defines LeNet-5, VGG-11 and the other models; this module builds their torch layers.

It also loads the models of the user by name.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import lru_cache, partial

from torch import nn

from splitrelay.errors import InputError
from splitrelay.kernels.builtin_models import BUILTIN_MODELS, count_inputs, get_builtin_plan
from splitrelay.kernels.network_plan import Conv2d, Dropout, Flatten, Linear, MaxPool2d, Pair, Plan, ReLU
from splitrelay.models.model_spec import ModelSpec, convert_inputs
from splitrelay.tensor_types import TensorType
from splitrelay.user_functions import (
    PYTHON,
    check_takes_no_arguments,
    get_function_name,
    is_user_function,
    load_user_function,
)

Shape = tuple[int, ...]
MODELS = BUILTIN_MODELS
OWN_MODEL = "For a model of your own, give module:function."


def get_model_spec(
    model: str | nn.Module | Callable[[], nn.Module],
    inputs: tuple[TensorType, ...] | Shape,
    outputs: int,
    cut: str | int | None = None,
) -> ModelSpec:
    """Return a built-in model or a model of the user.

    Args:
        model: The name of a built-in model, `module:function`, a function that returns a module, or a module. A module
            is copied; training starts at its present weights.
        inputs: The types of the inputs, or the shape of the only input, such as (C, H, W) of an image.
        outputs: The number of outputs of a built-in model.
        cut: Another default cut than the model's own.

    Example:
        >>> get_model_spec("lenet5", (1, 28, 28), 10).layers()[:3]
        ['conv1', 'relu1', 'pool1']
    """
    types, own_cut = convert_inputs(inputs), 1 if cut is None else cut
    if not callable(model) and not isinstance(model, str):
        hint = "Give an nn.Module, a function that returns one, module:function, or the name of a built-in model."
        raise InputError("a model must be a module, a name or a function", value=type(model).__name__, hint=hint)
    if callable(model) or is_user_function(model):
        made = model if callable(model) else load_user_function("model", model)
        name = model if isinstance(model, str) else getattr(model, "__name__", type(model).__name__)
        name = get_function_name(name) if name.startswith(f"{PYTHON}:") else name
        if isinstance(made, nn.Module):
            return ModelSpec(name, partial(deepcopy, made), types, own_cut, has_own_start=True)
        check_takes_no_arguments("model", name, made)
        return ModelSpec(name, made, types, own_cut)
    if len(types) != 1 or not types[0].is_float:
        found = ", ".join(map(str, types))
        raise InputError(f"model {model} has one input of floats", value=found, hint=OWN_MODEL)
    return _get_builtin_spec(model, types, outputs, cut)


@lru_cache(64, typed=True)  # layers are checked once for each ModelSpec, and a process asks for the same model often
def _get_builtin_spec(model: str, types: tuple[TensorType, ...], outputs: int, cut: str | int | None) -> ModelSpec:
    plan = get_builtin_plan(model, _get_image_shape(model, types[0].shape), outputs)
    return ModelSpec(model, lambda: build_net(model, plan), types, MODELS[model].cut if cut is None else cut)


def _get_image_shape(model: str, shape: Shape) -> tuple[int, int, int]:
    """Return (C, H, W). Rows of d features have the shape (d, 1, 1); only models without convolutions accept them."""
    if len(shape) == 3:
        return shape[0], shape[1], shape[2]
    if len(shape) != 1:
        limit = "images (C, H, W) or rows (d,)"
        raise InputError(f"model {model} does not accept this shape", value=shape, limit=limit, hint=OWN_MODEL)
    if any(isinstance(layer, Conv2d) for layer in get_builtin_plan(model, (3, 64, 64), 2).layers):
        hint = f"Use model=mlp or model=logistic. {OWN_MODEL}"
        raise InputError(f"model {model} is for images", value=f"rows of {shape[0]} features", hint=hint)
    return shape[0], 1, 1


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
