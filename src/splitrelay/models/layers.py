"""The layers of a model in their order, and which of their tensors belong to x.

A layer is anything between two possible cuts: a layer of an nn.Sequential, a stage of `Stages`, or a part of a traced
module (tracing.py). The tensors of a layer are divided as follows.

x:
    parameters that are trained, float buffers such as the running values of batch norm, and integer buffers that
    training changes (counters). Everything in x is handed over, averaged and saved.
constants:
    frozen parameters (requires_grad=False), integer buffers that never change, and buffers that torch does not save
    (persistent=False). Every host builds them itself. They never travel; a digest identifies them.

Batch norm's num_batches_tracked belongs to neither: it has no effect, because a momentum is required.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy

import torch
from torch import nn

from splitrelay.errors import InputError, OutOfRange


class Stages(nn.Sequential):
    """Modules that are called one after another; the model can be cut between any two of them.

    Use it for a model that cannot be traced. It is an nn.Sequential whose first module may take several inputs.

    Args:
        stages: The modules in their order, or a mapping from names to modules.

    Example:
        >>> list(dict(Stages({"embed": nn.Embedding(5, 4), "head": nn.Linear(4, 2)}).named_children()))
        ['embed', 'head']
    """

    def __init__(self, stages: Sequence[nn.Module] | Mapping[str, nn.Module]) -> None:
        super().__init__()
        if not stages:
            raise OutOfRange("stages of a model", limit="at least 1", value=0)
        named = stages if isinstance(stages, Mapping) else {str(j): stage for j, stage in enumerate(stages)}
        for name, stage in named.items():
            if not isinstance(stage, nn.Module):
                raise InputError(f"stage {name} must be an nn.Module", value=type(stage).__name__)
            self.add_module(name, stage)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Call the first stage with all inputs, and each further stage with the result before it."""
        first, *rest = self
        h: torch.Tensor = first(*inputs)
        for stage in rest:
            h = stage(h)
        return h


class Layers(nn.Sequential):
    """Layers by name. In contrast to torch's containers, a name may contain dots, such as `blocks.0`.

    Attributes:
        prefixes: For each layer, what its tensors' names in the user's module begin with.
    """

    def __init__(self, layers: Iterable[tuple[str, nn.Module, str]] = ()) -> None:
        super().__init__()
        self.prefixes: list[str] = []
        for name, layer, prefix in layers:
            self._modules[name] = layer
            self.prefixes.append(prefix)

    def part(self, first: int, last: int) -> Layers:
        """Return the layers first, ..., last - 1."""
        named = zip(self._modules.items(), self.prefixes, strict=True)
        return Layers((name, layer, prefix) for (name, layer), prefix in list(named)[first:last] if layer is not None)

    def list_tensors(self, counters: Collection[str] = ()) -> Iterator[tuple[int, str, torch.Tensor]]:
        """Yield (layer, name, tensor) of all tensors of x; `counters` are the integer buffers that belong to x."""
        for j, (layer, prefix) in enumerate(zip(self, self.prefixes, strict=True)):
            for name, tensor in list_trained(layer):
                yield j, prefix + name, tensor
            for name, buffer, is_saved in list_buffers(layer):
                if prefix + name in counters or (is_saved and buffer.is_floating_point()):
                    yield j, prefix + name, buffer

    def list_constants(self, counters: Collection[str] = ()) -> Iterator[tuple[int, str, torch.Tensor]]:
        """Yield (layer, name, tensor) of all tensors that never change and are not part of x."""
        for j, (layer, prefix) in enumerate(zip(self, self.prefixes, strict=True)):
            for name, parameter in layer.named_parameters():
                if not parameter.requires_grad:
                    yield j, prefix + name, parameter
            for name, buffer, is_saved in list_buffers(layer):
                if prefix + name not in counters and not (is_saved and buffer.is_floating_point()):
                    yield j, prefix + name, buffer

    def find_owner(self, layer: int, name: str) -> tuple[nn.Module, str]:
        """Return the module that has a tensor, and the name of the tensor in this module."""
        path, _, attribute = name.removeprefix(self.prefixes[layer]).rpartition(".")
        return self[layer].get_submodule(path), attribute


def list_trained(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield (name, parameter) of the parameters that are trained."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            yield name, parameter


def list_buffers(module: nn.Module) -> Iterator[tuple[str, torch.Tensor, bool]]:
    """Yield (name, buffer, does torch save it), without batch norm's counter of batches."""
    for path, owner in module.named_modules():
        for name, buffer in owner._buffers.items():
            is_idle = isinstance(owner, nn.modules.batchnorm._NormBase) and name == "num_batches_tracked"
            if buffer is not None and not is_idle:
                is_saved = name not in owner._non_persistent_buffers_set
                yield f"{path}.{name}" if path else name, buffer, is_saved


def list_sequence(net: nn.Sequential) -> Iterator[tuple[str, nn.Module]]:
    """Yield (name, layer) for every position. Torch's named_children omits a layer that is used a second time."""
    seen: set[int] = set()
    for name, layer in net._modules.items():
        assert layer is not None
        is_repeated = id(layer) in seen
        if is_repeated and layer.state_dict():
            hint = "Shared weights are not supported. Create a separate layer for each use."
            raise InputError(f"layer '{name}' is used twice", hint=hint)
        seen.add(id(layer))
        yield name, deepcopy(layer) if is_repeated else layer


def check_no_shared_tensors(net: nn.Module) -> None:
    """Raise InputError if a trained parameter has two names. Frozen parameters may be shared: they are constants."""
    owners: dict[int, str] = {}
    for name, parameter in net.named_parameters(remove_duplicate=False):
        first = owners.setdefault(id(parameter), name)
        if first != name and parameter.requires_grad:
            hint = "Shared weights are not supported, because a cut could separate them. Give each layer its own."
            raise InputError(f"{first} and {name} share one tensor", hint=hint)
