"""A model without weights: how to build its layers, its inputs, its default cut and its start x^0."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import nn

from splitrelay.errors import InputError, OutOfRange, SplitrelayError, UnknownName, find_user_code
from splitrelay.models.dropout import replace_dropout
from splitrelay.models.layer_checks import TORCH_RNG_LOCK, LayerFacts, check_layer_types, inspect_layers
from splitrelay.models.layers import Layers, Stages, check_no_shared_tensors, list_sequence
from splitrelay.models.layout import Layout, build_layout
from splitrelay.models.tracing import Trace, trace_module
from splitrelay.randomness import Purpose, rng
from splitrelay.tensor_types import TensorType

DTYPES = (torch.float32, torch.float64)


@dataclass(frozen=True)
class ModelSpec:
    """The definition of a model.

    Attributes:
        build: Returns a new module. An nn.Sequential has its own layers; any other module is traced (tracing.py).
        inputs: The type of each input, without the batch. A plain shape means one input of floats.
        cut: The default cut: the name of the client's last layer, or the number of its layers.
        has_own_start: Whether x^0 are the weights of the module as it is built, for every seed. This is so for a
            module that the user has made: it cannot be initialized again.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: tuple[TensorType, ...]
    cut: str | int
    has_own_start: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", convert_inputs(self.inputs))

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of the input of a model with one input."""
        if len(self.inputs) != 1:
            raise InputError(f"model {self.name} has several inputs", value=len(self.inputs))
        return self.inputs[0].shape

    def net(self) -> Layers:
        """Build the layers. Torch's generator is in the same state afterwards.

        All nets have the same constants, because torch's generator has a fixed seed here. Weights come from x.
        """
        return self._assemble(self._build(0))

    def layout(self, dtype: torch.dtype = torch.float32) -> Layout:
        """Return the position of every tensor in x."""
        return self._describe_structure.layouts[dtype]

    def x0(self, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return the start x^0: torch's own initialization of each layer, drawn in float32."""
        layout, counters = self.layout(dtype), self.facts.counters
        net = self._assemble(self._build(seed))
        return layout.pack({name: tensor.detach() for _, name, tensor in net.list_tensors(counters)})

    def layers(self) -> list[str]:
        """Return the names of the layers. The model can be cut after each of them but the last."""
        return list(self._describe_structure.layers)

    @property
    def facts(self) -> LayerFacts:
        """What training must know about the layers."""
        return self._describe_structure.facts

    @property
    def trace(self) -> Trace | None:
        """The layers of a traced module, or None for a sequence of layers."""
        return self._describe_structure.trace

    @property
    def constants_digest(self) -> str:
        """The SHA-256 of all constants, such as frozen parameters, or an empty text if there are none.

        Hosts that train the same model must have the same constants.
        """
        return self._describe_structure.constants_digest

    def _build(self, seed: int) -> nn.Module:
        """Build the user's module with this seed of the initialization."""
        with TORCH_RNG_LOCK, torch.random.fork_rng(devices=[]):  # the only place that seeds torch
            torch.manual_seed(int(rng(seed, Purpose.INIT).integers(2**63)))  # noqa: TID251
            try:
                net = self.build()
            except SplitrelayError:
                raise
            except Exception as error:  # the user's code can raise anything
                place = find_user_code(error)
                what = f"model {self.name} cannot be built" + (f": error in your code, {place}" if place else "")
                raise InputError(what, value=f"{type(error).__name__}: {error}".splitlines()[0]) from error
        if not isinstance(net, nn.Module):
            raise InputError(f"model {self.name} must be an nn.Module", value=type(net).__name__)
        return net

    def _assemble(self, net: nn.Module) -> Layers:
        """Return the layers of the user's module, with named dropout."""
        if is_sequence(net):
            assert isinstance(net, nn.Sequential)
            layers = Layers((name, replace_dropout(layer), f"{name}.") for name, layer in list_sequence(net))
            if self.has_own_start:
                layers.train()
        else:
            assert self.trace is not None
            layers = self.trace.assemble(net)
        check_layer_types(layers)
        return layers

    @cached_property
    def _describe_structure(self) -> Structure:
        """Build and check the model only once: to build a large model takes longer than many steps of a small one."""
        net = self._build(0)
        if is_sequence(net):
            assert isinstance(net, nn.Sequential)
            if len(net) == 0:
                raise InputError(f"model {self.name} has no layers", hint="Give it at least two, to cut between them.")
            trace = None
            layers = self._assemble(net)
            check_no_shared_tensors(layers)
        else:
            trace = trace_module(net, self.inputs, self.name)
            layers = trace.assemble(net)
            check_layer_types(layers)
        facts = inspect_layers(layers, self.inputs)
        others = frozenset(name for name in net.state_dict()) | {name for _, name, _ in layers.list_constants()}
        layouts = {dtype: replace(build_layout(layers, dtype, facts.counters), others=others) for dtype in DTYPES}
        digest = compute_constants_digest(layers, facts)
        return Structure(tuple(layers._modules), layouts, facts, trace, digest)


@dataclass(frozen=True)
class Structure:
    """The names of the layers and the layout for each dtype. They are the same for every net of a ModelSpec."""

    layers: tuple[str, ...]
    layouts: Mapping[torch.dtype, Layout]
    facts: LayerFacts
    trace: Trace | None
    constants_digest: str


def compute_constants_digest(layers: Layers, facts: LayerFacts) -> str:
    """Return the SHA-256 of the names and bytes of all constants, or an empty text if there are none."""
    digest = hashlib.sha256()
    constants = {name: tensor for _, name, tensor in layers.list_constants(facts.counters)}
    for name, tensor in sorted(constants.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest() if constants else ""


def convert_inputs(inputs: tuple[TensorType, ...] | tuple[int, ...]) -> tuple[TensorType, ...]:
    """Return the types of the inputs. A plain shape means one input of floats."""
    types = tuple(each for each in inputs if isinstance(each, TensorType))
    if types and len(types) == len(inputs):
        return types
    return (TensorType(tuple(int(side) for side in inputs if not isinstance(side, TensorType))),)


def is_sequence(net: nn.Module) -> bool:
    """Return whether a module is a plain sequence of layers, which need not be traced."""
    return isinstance(net, nn.Sequential) and type(net).forward in (nn.Sequential.forward, Stages.forward)


def find_cut_index(model_spec: ModelSpec, cut: str | int | None) -> int:
    """Return the number of layers of the client half.

    Args:
        model_spec: The model.
        cut: The name of the client's last layer, the number of its layers (also as text), or None for the default.
            Torch names layers "0", "1", ... if the user gives no names. Digits always mean the number of layers, so
            the cut after layer "0" is cut=1.
    """
    layers = model_spec.layers()
    cut = model_spec.cut if cut is None else cut
    if isinstance(cut, str) and not cut.lstrip("-").isdigit():
        cut = _find_name(model_spec, cut, layers)
    if not 1 <= int(cut) <= len(layers) - 1:
        limit = f"1 <= cut <= {len(layers) - 1}, so that both halves have a layer"
        what, hint = f"cut of {model_spec.name}", None
        if len(layers) == 1 and (model_spec.trace is None or not model_spec.trace.blocked):
            what = f"model {model_spec.name} has one layer, so it cannot be cut"
            raise OutOfRange(what, limit="at least two layers", value=layers[0])
        if len(layers) == 1 and model_spec.trace is not None:
            what = f"model {model_spec.name} cannot be cut: one float tensor of the batch must cross, and nothing else"
            crossing = next((values for values, _ in model_spec.trace.blocked.values()), "")
            hint = f"Behind its first module the values {crossing} would cross." if crossing else None
        raise OutOfRange(what, limit=limit, value=int(cut), hint=hint)
    return int(cut)


def _find_name(model_spec: ModelSpec, cut: str, layers: list[str]) -> int:
    trace = model_spec.trace
    if cut in layers:
        return layers.index(cut) + 1
    if trace is not None and cut in trace.aliases:
        return trace.aliases[cut]
    if trace is not None and cut in trace.blocked:
        crossing, before = trace.blocked[cut]
        near = [layers[j - 1] for j in (before, before + 1) if 1 <= j < len(layers)]
        hint = f"Possible cuts near it: {', '.join(near)}." if near else "The model cannot be cut anywhere."
        what = f"model {model_spec.name} cannot be cut after '{cut}', because several values would cross"
        raise InputError(what, value=crossing or None, limit="one float tensor", hint=hint)
    raise UnknownName(f"layer of {model_spec.name}", cut, layers)
