"""Trace any nn.Module with torch.fx and divide it into layers between which it can be cut.

A cut is possible where exactly one value is alive: everything behind it is computed from this one tensor. The tensor
must contain floats, and its first side must be the batch. Between two such places lies one layer, for example a block
with a skip connection.

What does not count as alive:
    - Parameters and buffers. They belong to the layer that uses them.
    - Sizes, and tensors that depend on sizes only, such as torch.arange(x.shape[1]). The input types of a model are
      fixed, so every size is a constant or the size of the batch. Each layer computes them again.

Modules of torch.nn are called as a whole. A module of the user is traced through. If that fails, for example because of
an `if` on the values of a tensor, the module is called as a whole too. The model cannot be traced only if its own
forward method fails; `Stages` is the way out.

Training and evaluation are traced separately, because torch.fx evaluates `self.training` while it traces. A layer has
the code of both. The result is compared with the module itself in both modes.

torch.fx replaces nn.Module.__call__ in the whole process while it traces. `ModuleTracer` therefore ignores the calls of
other threads.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn

from splitrelay.errors import InputError, find_user_code
from splitrelay.models.dropout import Dropout, replace_dropout
from splitrelay.models.layer_checks import TORCH_RNG_LOCK, make_zeros
from splitrelay.models.layers import Layers, check_no_shared_tensors, list_buffers, list_trained
from splitrelay.models.traced_graph import (
    SIZES,
    STAGES,
    Boundary,
    Graph,
    ModuleTracer,
    WatchState,
    get_node_name,
    get_tuple_source,
)
from splitrelay.tensor_types import TensorType


@dataclass(frozen=True)
class SegmentPlan:
    """One layer of a traced module: its code, and which parts of the module it uses.

    Attributes:
        inside: The modules in this layer after which no cut is possible.
        leaf: The name of the module if the layer only calls this module on its input.
    """

    name: str
    modules: tuple[str, ...]
    attributes: tuple[str, ...]
    training: Callable[..., torch.Tensor]
    evaluation: Callable[..., torch.Tensor]
    inside: tuple[str, ...]
    leaf: str | None


@dataclass(frozen=True)
class Trace:
    """The layers of a traced module.

    Attributes:
        constants: Tensors that the forward method of the module creates.
        shared: Buffers that several layers use. They are constants.
        aliases: Further names of a cut: the number of the client's layers by name.
        blocked: For each module after which no cut is possible, the values that would cross and the number of layers
            that end before it.
    """

    segments: tuple[SegmentPlan, ...]
    constants: Mapping[str, torch.Tensor]
    shared: frozenset[str]
    aliases: Mapping[str, int]
    blocked: Mapping[str, tuple[str, int]]

    def assemble(self, root: nn.Module) -> Layers:
        """Return the layers with the modules, parameters and buffers of `root`, a module of the same kind."""
        root.train()
        used: set[int] = set()
        layers: list[tuple[str, nn.Module, str]] = []
        for plan in self.segments:
            if plan.leaf is None:
                layers.append((plan.name, Segment(plan, root, self.constants, self.shared), ""))
                continue
            leaf = root.get_submodule(plan.leaf)
            leaf = deepcopy(leaf) if id(leaf) in used and not leaf.state_dict() else leaf
            used.add(id(leaf))
            layers.append((plan.name, replace_dropout(leaf), f"{plan.leaf}."))
        return Layers(layers)


class Segment(nn.Module):
    """A layer of a traced module. Its modules and tensors have their names in the user's module."""

    def __init__(
        self, plan: SegmentPlan, root: nn.Module, constants: Mapping[str, torch.Tensor], shared: frozenset[str]
    ) -> None:
        super().__init__()
        self._codes, self._paths = (plan.evaluation, plan.training), plan.modules
        for path in plan.modules:
            owner, name = self._make_owner(path)
            owner.add_module(name, root.get_submodule(path))
        for path in plan.attributes:
            owner, name = self._make_owner(path)
            if name in owner._parameters or name in owner._buffers or hasattr(owner, name):
                continue  # a tensor of a module that this layer also calls
            if path in constants:
                owner.register_buffer(name, constants[path].clone(), persistent=False)
                continue
            value = root.get_parameter(path) if _is_parameter(root, path) else root.get_buffer(path)
            if isinstance(value, nn.Parameter):
                owner.register_parameter(name, value)
            else:
                source = root.get_submodule(path.rpartition(".")[0])
                is_saved = name not in source._non_persistent_buffers_set and path not in shared
                owner.register_buffer(name, value, persistent=is_saved)

    @property
    def called(self) -> list[nn.Module]:
        """The modules that this layer calls."""
        return [self.get_submodule(path) for path in self._paths]

    def _make_owner(self, path: str) -> tuple[nn.Module, str]:
        *parents, name = path.split(".")
        owner: nn.Module = self
        for parent in parents:
            if parent not in owner._modules:
                owner.add_module(parent, nn.Module())
            child = owner._modules[parent]
            assert child is not None
            owner = child
        return owner, name

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Run the code of training or of evaluation."""
        return self._codes[self.training](self, *inputs)


def trace_module(root: nn.Module, inputs: tuple[TensorType, ...], name: str) -> Trace:
    """Divide a module into layers.

    Args:
        root: The module. It is not changed.
        inputs: The types of its inputs.
        name: The name of the model for error messages.

    Raises:
        InputError: The module cannot be traced, shares weights between layers, or does not return one tensor.
    """
    check_no_shared_tensors(root)
    with TORCH_RNG_LOCK, torch.random.fork_rng(devices=[]):
        opaque: set[type[nn.Module]] = set()
        modes = None
        while modes is None:
            modes = _trace_both_modes(root, inputs, opaque, name)
        found = _divide(*modes, _match_boundaries(*modes))
        found = replace(found, shared=_find_shared_buffers(found, root))
        layers = found.assemble(deepcopy(root))
        _check_shared_weights(layers)
        _compare_with_module(layers, root, inputs, name)
    return found


def _trace_both_modes(
    root: nn.Module, inputs: tuple[TensorType, ...], opaque: set[type[nn.Module]], name: str
) -> tuple[Graph, Graph] | None:
    """Return the graphs of training and evaluation, or None if a module was added to `opaque`."""
    graphs = []
    for training in (True, False):
        copy = deepcopy(root).train(training)
        for module in copy.modules():
            if hasattr(module, "inplace"):
                module.inplace = False  # type: ignore[assignment]
        tracer = ModuleTracer(_name_arguments(root, len(inputs), name), opaque)
        try:
            with WatchState(copy):
                graph = tracer.trace(copy)
        except Exception as error:  # whatever the user's code raises for a proxy
            if tracer.failed is not None:
                opaque.add(type(tracer.failed))
                return None
            place = find_user_code(error)
            what = f"model {name} cannot be traced" + (f", {place}" if place else "")
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(what, value=reason, hint=STAGES) from None
        graphs.append(Graph(graph, copy, inputs, name))
    return graphs[0], graphs[1]


def _name_arguments(root: nn.Module, number: int, name: str) -> list[str]:
    """Return the names of the first arguments of the module's forward method."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = list(inspect.signature(root.forward).parameters.values())
    known = [each.name for each in parameters if each.kind in kinds]
    has_rest = any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters)
    required = sum(each.default is inspect.Parameter.empty for each in parameters if each.kind in kinds)
    if required > number or (number > len(known) and not has_rest):
        what = f"model {name} takes other inputs than the data has"
        raise InputError(what, value=f"{number} inputs", limit=f"forward({', '.join(known)})")
    return [*known, *(f"input{j}" for j in range(len(known), number))][:number]


def _is_parameter(root: nn.Module, path: str) -> bool:
    owner, _, name = path.rpartition(".")
    return name in root.get_submodule(owner)._parameters


def _match_boundaries(training: Graph, evaluation: Graph) -> list[tuple[Boundary, Boundary]]:
    """Return the places that exist in both modes, in order."""
    found, start = [], -1
    others = {boundary.name: boundary for boundary in evaluation.boundaries}
    for boundary in training.boundaries:
        other = others.get(boundary.name)
        if other is not None and other.position > start:
            found.append((boundary, other))
            start = other.position
    return found


def _divide(training: Graph, evaluation: Graph, common: list[tuple[Boundary, Boundary]]) -> Trace:
    """Write the code of each layer."""
    end = training.place[training.result], evaluation.place[evaluation.result]
    last = get_node_name(training.result)
    places = [*common, (Boundary(last, end[0]), Boundary(last, end[1]))]
    names = _number_names([one.name for one, _ in places])
    segments: list[SegmentPlan] = []
    starts = -1, -1
    for name, (one, other) in zip(names, places, strict=True):
        parts = training.extract(starts[0], one.position), evaluation.extract(starts[1], other.position)
        inside = training.list_ends(starts[0] + 1, one.position)
        segments.append(_make_plan(name, parts, tuple(inside)))
        starts = one.position, other.position
    aliases, blocked = _list_other_names(training, names, [one.position for one, _ in places])
    return Trace(tuple(segments), {**training.constants, **evaluation.constants}, frozenset(), aliases, blocked)


def _number_names(names: Sequence[str]) -> list[str]:
    """Append _1, _2, ... to repeated names."""
    seen: dict[str, int] = {}
    numbered = []
    for name in names:
        seen[name] = seen.get(name, -1) + 1
        numbered.append(f"{name}_{seen[name]}" if seen[name] else name)
    return numbered


def _make_plan(name: str, parts: tuple[fx.Graph, fx.Graph], inside: tuple[str, ...]) -> SegmentPlan:
    nodes = [node for part in parts for node in part.nodes]
    modules = _list_outermost([str(node.target) for node in nodes if node.op == "call_module"])
    attributes = dict.fromkeys(str(node.target) for node in nodes if node.op == "get_attr")
    return SegmentPlan(
        name, modules, tuple(attributes), _compile(parts[0]), _compile(parts[1]), inside, _find_leaf(parts)
    )


def _list_outermost(paths: Sequence[str]) -> tuple[str, ...]:
    """Return the paths that are not inside another one, each once, in the order of their first use."""
    return tuple(p for p in dict.fromkeys(paths) if not any(p.startswith(f"{other}.") for other in paths))


def _find_leaf(parts: Sequence[fx.Graph]) -> str | None:
    """Return the module that a layer consists of, if it does nothing but call this module on its input."""
    found = set()
    for part in parts:
        first, *body, _ = part.nodes
        if len(body) != 1 or body[0].op != "call_module" or body[0].args != (first,) or body[0].kwargs:
            return None
        found.add(str(body[0].target))
    return found.pop() if len(found) == 1 else None


def _compile(graph: fx.Graph) -> Callable[..., torch.Tensor]:
    """Return the function forward(self, h) of a graph; `self` has the modules and tensors that the graph names."""
    graph.lint()
    code = graph.python_code("self")
    namespace = dict(code.globals)
    exec(compile(code.src, "<layer of a traced module>", "exec"), namespace)
    forward: Callable[..., torch.Tensor] = namespace["forward"]
    return forward


def _list_other_names(
    graph: Graph, names: Sequence[str], positions: Sequence[int]
) -> tuple[dict[str, int], dict[str, tuple[str, int]]]:
    """Return further names of the cuts, and the modules after which no cut is possible."""
    aliases: dict[str, int] = {}
    blocked: dict[str, tuple[str, int]] = {}
    for position, node in enumerate(graph.nodes):
        source = get_tuple_source(node)
        ends = [*node.meta.get("ends", []), *(source.meta.get("ends", []) if source is not None else [])]
        for path in ends:
            if position in positions:
                aliases[path] = positions.index(position) + 1
            elif node in graph.kept:
                crossing = ", ".join(f"'{get_node_name(each)}'" for each in graph.find_alive(position))
                blocked[path] = crossing, sum(each < position for each in positions)
    aliases = {name: j for name, j in aliases.items() if name not in names}
    return aliases, {name: value for name, value in blocked.items() if name not in names and name not in aliases}


def _find_shared_buffers(found: Trace, root: nn.Module) -> frozenset[str]:
    """Return the buffers that several layers read. They must be constants, because x has one place for each tensor."""
    uses: dict[str, int] = {}
    for plan in found.segments:
        for path in plan.attributes:
            uses[path] = uses.get(path, 0) + 1
    return frozenset(
        path for path, n in uses.items() if n > 1 and path not in found.constants and not _is_parameter(root, path)
    )


def _check_shared_weights(layers: Layers) -> None:
    """Raise InputError if two layers use the same weights."""
    owners: dict[int, tuple[str, str]] = {}
    for (name, layer), prefix in zip(layers._modules.items(), layers.prefixes, strict=True):
        assert layer is not None
        saved = ((path, buffer) for path, buffer, is_saved in list_buffers(layer) if is_saved)
        for path, tensor in (*list_trained(layer), *saved):
            first, tensor_name = owners.setdefault(id(tensor), (name, prefix + path))
            if first != name and (tensor.is_floating_point() or not isinstance(tensor, nn.Parameter)):
                hint = (
                    "Shared weights are not supported, because a cut could separate them. Give each use its own "
                    "weights, or put both uses into one stage of splitrelay.Stages([...])."
                )
                raise InputError(f"layers '{first}' and '{name}' share {tensor_name}", hint=hint)


@torch.no_grad()
def _compare_with_module(layers: Layers, root: nn.Module, inputs: tuple[TensorType, ...], name: str) -> None:
    """Raise InputError if the layers compute something else than the module, in training or in evaluation."""
    zeros = make_zeros(inputs, SIZES[0])
    values = tuple(
        torch.randn_like(each) if each.is_floating_point() else each
        for each in (zeros if isinstance(zeros, tuple) else (zeros,))
    )
    state = torch.get_rng_state()
    for training in (True, False):
        ours, theirs = deepcopy(layers).train(training), deepcopy(root).train(training)
        for module in ours.modules():
            if isinstance(module, Dropout):
                module.source = torch.rand
        torch.set_rng_state(state)
        expected = theirs(*(each.clone() for each in values))
        torch.set_rng_state(state)
        h: Any = tuple(each.clone() for each in values)
        for layer in ours:
            h = layer(*h) if isinstance(h, tuple) else layer(h.clone())
        if training and any(isinstance(module, Dropout) and module.p for module in ours.modules()):
            continue  # named masks are other masks than torch's
        if not torch.allclose(h, expected, rtol=1e-4, atol=1e-5, equal_nan=True):
            mode = "training" if training else "evaluation"
            what = f"the traced layers of model {name} compute other values than the model itself in {mode}"
            raise InputError(what, hint=STAGES)
