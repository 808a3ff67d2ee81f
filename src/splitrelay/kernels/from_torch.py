"""Convert torch's layers to a plan. torch is not imported: layers are recognized by their names and attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from splitrelay.errors import InputError
from splitrelay.kernels.network_plan import Conv2d, Dropout, Flatten, Layer, Linear, MaxPool2d, Pair, Plan, ReLU

HOMES = ("torch.nn.modules.", "splitrelay.models.dropout")
WAY_OUT = "engine=reference runs any net."


class NotCovered(InputError):
    """A layer that the fast engine has no kernel for."""


def convert_net(net: Any, shape: tuple[int, ...]) -> Plan:
    """Return the plan of an nn.Sequential for inputs of this shape.

    Raises:
        NotCovered: A layer has no kernel; the error names it.
    """
    if len(shape) == 1:
        shape = (shape[0], 1, 1)  # a row of features is an image with one pixel
    if len(shape) != 3:
        raise NotCovered("the fast engine needs images (C, H, W) or rows (d,)", value=shape, hint=WAY_OUT)
    try:
        layers = tuple(_convert_layer(name, layer) for name, layer in net._modules.items())
        return Plan((int(shape[0]), int(shape[1]), int(shape[2])), layers)
    except NotCovered:
        raise
    except InputError as error:
        raise NotCovered(error.what, value=error.value, limit=error.limit, hint=WAY_OUT) from None


def find_uncovered(net: Any, shape: tuple[int, ...]) -> str | None:
    """Return why the fast engine cannot run this net, or None."""
    try:
        convert_net(net, shape)
    except NotCovered as error:
        return error.what
    return None


def _convert_layer(name: str, layer: Any) -> Layer:
    kind = type(layer).__name__
    if kind not in CONVERTERS or not type(layer).__module__.startswith(HOMES):
        raise NotCovered(f"layer '{name}' ({kind}) has no kernel in the fast engine", hint=WAY_OUT)
    if any(not parameter.requires_grad for parameter in layer.parameters()):
        raise NotCovered(f"layer '{name}' ({kind}) has weights that stay as they are", hint=WAY_OUT)
    return CONVERTERS[kind](name, layer)


def _convert_conv(name: str, layer: Any) -> Layer:
    wanted = {"stride": (1, 1), "dilation": (1, 1), "groups": 1, "padding_mode": "zeros"}
    _check_attributes(name, layer, wanted)
    if isinstance(layer.padding, str):
        raise NotCovered(f"layer '{name}' (Conv2d) names its padding '{layer.padding}'", hint="Give numbers.")
    kernel, padding = _get_ints(layer.kernel_size), _get_ints(layer.padding)
    return Conv2d(name, int(layer.out_channels), kernel, padding, layer.bias is not None)


def _convert_pool(name: str, layer: Any) -> Layer:
    _check_attributes(name, layer, {"dilation": 1, "ceil_mode": False, "return_indices": False})
    return MaxPool2d(name, _get_ints(layer.kernel_size), _get_ints(layer.stride), _get_ints(layer.padding))


def _convert_flatten(name: str, layer: Any) -> Layer:
    _check_attributes(name, layer, {"start_dim": 1, "end_dim": -1})
    return Flatten(name)


def _check_attributes(name: str, layer: Any, required: dict[str, Any]) -> None:
    for key, value in required.items():
        found = getattr(layer, key)
        if found != value and _get_pair(found) != _get_pair(value):
            kind = type(layer).__name__
            raise NotCovered(f"layer '{name}' ({kind}) has {key}={found}, the fast engine's is {value}", hint=WAY_OUT)


def _get_pair(value: Any) -> Pair:
    first, second = value if isinstance(value, tuple | list) else (value, value)
    return first, second


def _get_ints(value: Any) -> Pair:
    first, second = _get_pair(value)
    return int(first), int(second)


CONVERTERS: dict[str, Callable[[str, Any], Layer]] = {
    "Conv2d": _convert_conv,
    "ReLU": lambda name, _: ReLU(name),
    "MaxPool2d": _convert_pool,
    "Flatten": _convert_flatten,
    "Linear": lambda name, layer: Linear(name, int(layer.out_features), layer.bias is not None),
    "Dropout": lambda name, layer: Dropout(name, float(layer.p)),
}
