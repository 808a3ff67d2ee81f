"""From torch's layers to a plan. Nothing is imported from torch: layers are known by their names and numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from splitrelay.errors import InputError
from splitrelay.kernels.network_plan import Conv2d, Dropout, Flatten, Layer, Linear, MaxPool2d, Pair, Plan, ReLU

HOMES = ("torch.nn.modules.", "splitrelay.models.dropout")
WAY_OUT = "engine=reference runs any net."


class NotCovered(InputError):
    """A layer that the fast engine has no kernel for."""


def plan_of(net: Any, shape: tuple[int, ...]) -> Plan:
    """The plan of an nn.Sequential for inputs of this shape; a layer without a kernel is refused by its name."""
    if len(shape) != 3:
        raise NotCovered("the fast engine needs images (C, H, W)", value=shape, hint=WAY_OUT)
    try:
        layers = tuple(_layer(name, layer) for name, layer in net._modules.items())
        return Plan((int(shape[0]), int(shape[1]), int(shape[2])), layers)
    except NotCovered:
        raise
    except InputError as error:
        raise NotCovered(error.what, value=error.value, limit=error.limit, hint=WAY_OUT) from None


def why_not(net: Any, shape: tuple[int, ...]) -> str | None:
    """Why the fast engine cannot run this net, or None where it can."""
    try:
        plan_of(net, shape)
    except NotCovered as error:
        return error.what
    return None


def _layer(name: str, layer: Any) -> Layer:
    kind = type(layer).__name__
    if kind not in MAKERS or not type(layer).__module__.startswith(HOMES):
        raise NotCovered(f"layer '{name}' ({kind}) has no kernel in the fast engine", hint=WAY_OUT)
    if any(not parameter.requires_grad for parameter in layer.parameters()):
        raise NotCovered(f"layer '{name}' ({kind}) has weights that stay as they are", hint=WAY_OUT)
    return MAKERS[kind](name, layer)


def _conv(name: str, layer: Any) -> Layer:
    wanted = {"stride": (1, 1), "dilation": (1, 1), "groups": 1, "padding_mode": "zeros"}
    _refuse(name, layer, wanted)
    if isinstance(layer.padding, str):
        raise NotCovered(f"layer '{name}' (Conv2d) names its padding '{layer.padding}'", hint="Give numbers.")
    kernel, padding = _get_ints(layer.kernel_size), _get_ints(layer.padding)
    return Conv2d(name, int(layer.out_channels), kernel, padding, layer.bias is not None)


def _pool(name: str, layer: Any) -> Layer:
    _refuse(name, layer, {"dilation": 1, "ceil_mode": False, "return_indices": False})
    return MaxPool2d(name, _get_ints(layer.kernel_size), _get_ints(layer.stride), _get_ints(layer.padding))


def _flatten(name: str, layer: Any) -> Layer:
    _refuse(name, layer, {"start_dim": 1, "end_dim": -1})
    return Flatten(name)


def _refuse(name: str, layer: Any, wanted: dict[str, Any]) -> None:
    for key, value in wanted.items():
        found = getattr(layer, key)
        if found != value and _pair(found) != _pair(value):
            kind = type(layer).__name__
            raise NotCovered(f"layer '{name}' ({kind}) has {key}={found}, the fast engine's is {value}", hint=WAY_OUT)


def _pair(value: Any) -> Pair:
    first, second = value if isinstance(value, tuple | list) else (value, value)
    return first, second


def _get_ints(value: Any) -> Pair:
    first, second = _pair(value)
    return int(first), int(second)


MAKERS: dict[str, Callable[[str, Any], Layer]] = {
    "Conv2d": _conv,
    "ReLU": lambda name, _: ReLU(name),
    "MaxPool2d": _pool,
    "Flatten": _flatten,
    "Linear": lambda name, layer: Linear(name, int(layer.out_features), layer.bias is not None),
    "Dropout": lambda name, layer: Dropout(name, float(layer.p)),
}
