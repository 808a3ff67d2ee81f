"""An algorithm's state as named tensors and numbers, and back: x, or a dataclass of such, or a mapping by client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch

from splitrelay.errors import WorkError


def flattened(state: Any) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """(tensors, numbers) under the paths at which they stand in the state."""
    tensors: dict[str, torch.Tensor] = {}
    numbers: dict[str, float] = {}
    for path, value in _leaves("state", state):
        if isinstance(value, torch.Tensor):
            tensors[path] = value.detach().cpu().clone()
        else:
            numbers[path] = value
    return tensors, numbers


def rebuilt(like: Any, tensors: Mapping[str, torch.Tensor], numbers: Mapping[str, float], path: str = "state") -> Any:
    """The state that was flattened; `like` is one of the same kind, such as the state before the first round.

    All tensors go to the device of those in `like`, also the clients' own, of which it may have none yet.
    """
    devices = (leaf.device for _, leaf in _leaves(path, like) if isinstance(leaf, torch.Tensor))
    device = next(devices, torch.device("cpu"))
    return _rebuilt(like, {name: tensor.to(device) for name, tensor in tensors.items()}, numbers, path)


def _rebuilt(like: Any, tensors: Mapping[str, torch.Tensor], numbers: Mapping[str, float], path: str) -> Any:
    if isinstance(like, torch.Tensor):
        return tensors[path]
    if is_dataclass(like) and not isinstance(like, type):
        parts = {f.name: _rebuilt(getattr(like, f.name), tensors, numbers, f"{path}.{f.name}") for f in fields(like)}
        return replace(like, **parts)
    if isinstance(like, Mapping):
        inside = sorted(int(name.rpartition(".")[2]) for name in tensors if name.rpartition(".")[0] == path)
        return {m: tensors[f"{path}.{m}"] for m in inside}
    return numbers[path]


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _leaves(f"{path}.{field.name}", getattr(value, field.name))
    elif isinstance(value, Mapping):
        for m in sorted(value):
            yield from _leaves(f"{path}.{m}", value[m])
    elif isinstance(value, torch.Tensor | int | float):
        yield path, value
    else:
        raise WorkError(f"{path} cannot be kept in a checkpoint", value=type(value).__name__)
