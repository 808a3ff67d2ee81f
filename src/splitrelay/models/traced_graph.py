"""The graph of a module's forward method in one mode, and the places where it can be cut.

`ModuleTracer` records the graph with torch.fx. `Graph` finds the places at which exactly one value is alive, and copies
the part between two of them into a graph of its own. See tracing.py for the rules.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from threading import get_ident
from typing import Any

import torch
from torch import fx, nn

from splitrelay.errors import InputError, find_user_code
from splitrelay.models.layer_checks import NUMBERS, get_python_state, make_zeros
from splitrelay.tensor_types import TensorType

STAGES = "Divide the model into stages that are called one after another: splitrelay.Stages([...])."
SIZES = (2, 3)  # two batches tell the size of the batch from all other sizes
FACTS = ("shape", "ndim", "dtype", "device", "is_cuda")  # attributes of a tensor that do not depend on its values
FACTORIES = ("arange", "empty", "eye", "full", "linspace", "ones", "rand", "randint", "randn", "randperm", "zeros")
FACT_METHODS = ("size", "dim", "numel", "ndimension", "stride", "is_floating_point")
VIEWS = {  # these change no number, so a cut behind them would be the same as the one before
    "view", "reshape", "flatten", "transpose", "permute", "unsqueeze", "squeeze", "contiguous", "expand", "getitem",
    "to", "float", "movedim", "swapaxes", "view_as", "expand_as", "t",
}  # fmt: skip


class _Untraceable(Exception):
    """A module drew random numbers or changed its own numbers while it was traced."""


@contextmanager
def record_factories() -> Iterator[None]:
    """Record the calls of torch.zeros, torch.rand and others whose sizes are those of an input.

    These functions refuse the proxies of torch.fx. They are replaced in the whole process for the time of a trace, but
    only calls with a proxy are recorded.
    """
    originals = {name: getattr(torch, name) for name in FACTORIES}
    try:
        for name, function in originals.items():
            setattr(torch, name, _make_recorded(function))
        yield
    finally:
        for name, function in originals.items():
            setattr(torch, name, function)


def _make_recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        proxies: list[fx.Proxy] = []
        fx.node.map_aggregate((args, kwargs), lambda each: proxies.append(each) if isinstance(each, fx.Proxy) else None)
        if not proxies:
            return function(*args, **kwargs)
        return proxies[0].tracer.create_proxy("call_function", function, args, kwargs)

    return call


class ModuleTracer(fx.Tracer):
    """Records the forward method of a module as a graph.

    Every node gets the facts `scope` (the module whose forward method made it) and `ends` (the modules whose result it
    is, from the innermost to the outermost).
    """

    proxy_buffer_attributes = True

    def __init__(self, arguments: Sequence[str], opaque: set[type[nn.Module]]) -> None:
        super().__init__()
        self.arguments, self.opaque, self.thread = arguments, opaque, get_ident()
        self.scopes: list[str] = []
        self.failed: nn.Module | None = None  # the innermost module that cannot be traced through

    def trace(self, root: Any, concrete_args: dict[str, Any] | None = None) -> fx.Graph:
        """Return the graph of a module."""
        with record_factories():
            return super().trace(root, concrete_args)

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        """Give the root one placeholder for each input; its other arguments keep their defaults."""
        return root_fn, [self.root, *(self.create_proxy("placeholder", each, (), {}) for each in self.arguments)]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether a module is called as a whole."""
        return type(m) in self.opaque or super().is_leaf_module(m, module_qualified_name)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """Record in which module a node was made."""
        node = super().create_node(*args, **kwargs)
        node.meta["scope"] = self.scopes[-1] if self.scopes else ""
        return node

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """Return a proxy for a parameter or buffer in this thread."""
        return attr_val if get_ident() != self.thread else super().getattr(attr, attr_val, parameter_proxy_cache)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Any:
        """Record a call of a module, or trace through it."""
        if get_ident() != self.thread:
            return forward(*args, **kwargs)
        path = self.path_of_module(m)
        self.scopes.append(path)
        try:
            if isinstance(m, nn.TransformerEncoder) and type(m) not in self.opaque:
                result = self._call_encoder(m, args, kwargs)
            elif self.is_leaf_module(m, path):
                return _mark_end(super().call_module(m, forward, args, kwargs), path)
            else:
                with WatchState(m):
                    result = super().call_module(m, forward, args, kwargs)
        except Exception:
            if self.failed is None and not self.is_leaf_module(m, path):
                self.failed = m
            elif self.failed is None and isinstance(m, nn.TransformerEncoder):
                self.opaque.add(type(m))
                self.failed = m
            raise
        finally:
            self.scopes.pop()
        return _mark_end(result, path)

    def _call_encoder(self, m: nn.TransformerEncoder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the layers of torch's encoder one by one, which its own forward method does after some checks."""
        given = inspect.signature(nn.TransformerEncoder.forward).bind(m, *args, **kwargs).arguments
        h, is_causal = given["src"], bool(given.get("is_causal"))
        masks = {"src_mask": given.get("mask"), "src_key_padding_mask": given.get("src_key_padding_mask")}
        for layer in m.layers:
            h = layer(h, **masks, is_causal=is_causal)
        return h if m.norm is None else m.norm(h)


class WatchState:
    """Raise _Untraceable if a forward method draws random numbers or replaces its numbers or buffers in a trace.

    The graph would contain the drawn number or the present value as a constant.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __enter__(self) -> None:
        self.before = self._take_snapshot()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        torch_state, *others = self.before
        now, *rest = self._take_snapshot()
        if kind is None and not (torch.equal(torch_state, now) and others == rest):
            raise _Untraceable("forward draws random numbers that do not depend on an input, or changes its module")

    def _take_snapshot(self) -> list[Any]:
        numbers = {key: value for key, value in vars(self.module).items() if isinstance(value, NUMBERS)}
        return [torch.get_rng_state(), get_python_state(), numbers, list(map(id, self.module._buffers.values()))]


def _mark_end(result: Any, path: str) -> Any:
    if isinstance(result, fx.Proxy):
        result.node.meta.setdefault("ends", []).append(path)
    return result


@dataclass(frozen=True)
class Boundary:
    """A place where a module can be cut: behind this node."""

    name: str
    position: int


class Graph:
    """The graph of a module in one mode, what its values look like, and where it can be cut."""

    def __init__(self, graph: fx.Graph, root: nn.Module, inputs: tuple[TensorType, ...], name: str) -> None:
        self.nodes = list(graph.nodes)
        self.constants = _rename_constants(graph, root)
        self.place = {node: j for j, node in enumerate(self.nodes)}
        self.result = self.nodes[-1].args[0]
        if not isinstance(self.result, fx.Node):
            raise InputError(f"model {name} must return one tensor", value=type(self.result).__name__, hint=STAGES)
        self.values = [_record_values(graph, root, make_zeros(inputs, batch)) for batch in SIZES]
        value = self.values[0].get(self.result)
        if not isinstance(value, torch.Tensor):
            raise InputError(f"model {name} must return one tensor", value=type(value).__name__, hint=STAGES)
        overwritten = {node.args[0] for node in self.nodes if _is_inplace(node)}
        self.static: set[fx.Node] = set()
        for node in self.nodes:
            if node not in overwritten and self._is_static(node):
                self.static.add(node)
        self.kept = self._find_kept()
        self.boundaries = self._find_boundaries()

    def _is_static(self, node: fx.Node) -> bool:
        """Return whether a value depends on sizes only, and can be computed again from another tensor of the batch."""
        if node.op not in ("call_function", "call_method") or _is_inplace(node) or node not in self.values[0]:
            return False
        if _is_fact(node):
            try:
                self.replace_fact(node, None)
            except LookupError:
                return False
            return True
        arguments = node.all_input_nodes
        return bool(arguments) and all(each in self.static for each in arguments) and not node.meta.get("draws")

    def replace_fact(self, node: fx.Node, h: fx.Node | None) -> Any:
        """Return a size, dtype or device of an earlier tensor as a constant or as that of h."""
        two, three = (values[node] for values in self.values)
        if isinstance(two, torch.device):
            return h and h.graph.call_function(getattr, (h, "device"))
        if isinstance(two, torch.dtype):
            return h and h.graph.call_function(getattr, (h, "dtype")) if two.is_floating_point else two
        if isinstance(two, tuple):
            return tuple(_replace_size(a, b, h) for a, b in zip(two, three, strict=True))
        return _replace_size(two, three, h)

    def _find_kept(self) -> set[fx.Node]:
        """Return the nodes that have an effect: the result, what it needs, and changes in place."""
        kept: set[fx.Node] = set()
        for node in reversed(self.nodes):
            if node.op == "output" or _is_inplace(node) or any(user in kept for user in node.users):
                kept.add(node)
        return kept

    def find_alive(self, position: int) -> list[fx.Node]:
        """Return the values that are computed up to a position and used behind it."""
        alive = []
        for node in self.nodes[: position + 1]:
            users = (user for user in node.users if user in self.kept and user not in self.static)
            is_value = node.op != "get_attr" and node not in self.static
            if is_value and any(self.place[user] > position for user in users):
                alive.append(node)
        return alive

    def list_ends(self, first: int, last: int) -> list[str]:
        """Return the modules whose results are the nodes first, ..., last - 1."""
        return [path for node in self.nodes[first:last] if node in self.kept for path in node.meta.get("ends", [])]

    def extract(self, start: int, stop: int) -> fx.Graph:
        """Return the graph that computes the node at `stop` from the node at `start`, or from the inputs (-1)."""
        part = fx.Graph()
        copies: dict[fx.Node, Any] = {}
        if start >= 0:
            copies[self.nodes[start]] = part.placeholder("h")
        first = copies[self.nodes[start]] if start >= 0 else None

        def copy(node: fx.Node) -> Any:
            if node in copies:
                return copies[node]
            if first is not None and _is_fact(node) and node.args[0] not in copies:
                copies[node] = self.replace_fact(node, first)
            else:
                for each in node.all_input_nodes:
                    copy(each)
                is_view = node.op == "call_method" and node.target == "view"
                copies[node] = part.create_node(
                    node.op,
                    "reshape" if is_view and not _has_dtype(node) else node.target,  # h may have channels last
                    fx.map_arg(node.args, copies.__getitem__),
                    fx.map_arg(node.kwargs, copies.__getitem__),
                    node.name,
                )
            return copies[node]

        if start < 0:  # an input that is not used is an argument nevertheless
            for node in self.nodes:
                if node.op == "placeholder":
                    copy(node)
        for position in range(start + 1, stop + 1):
            node = self.nodes[position]
            if node in self.kept and node not in self.static and node.op not in ("get_attr", "placeholder"):
                copy(node)
        part.output(copies[self.nodes[stop]])
        return part

    def _find_boundaries(self) -> list[Boundary]:
        found: list[Boundary] = []
        names: dict[str, int] = {}
        last: dict[fx.Node, int] = {}  # of each value, the position of its last use
        for node in self.nodes:
            users = [self.place[u] for u in node.users if u in self.kept and u not in self.static]
            if users and node.op != "get_attr" and node not in self.static:
                last[node] = max(users)
        alive: set[fx.Node] = set()
        for position, node in enumerate(self.nodes):
            alive = {each for each in alive if last[each] > position}
            if node in last:
                alive.add(node)
            name, is_place = get_node_name(node), alive == {node} and self._can_cross(node)
            if is_place or not _is_module_result(node):  # functions are numbered from the input on, modules by place
                names[name] = names.get(name, -1) + 1
            if is_place and node is not self.result:
                found.append(Boundary(f"{name}_{names[name]}" if names[name] else name, position))
        return found

    def _can_cross(self, node: fx.Node) -> bool:
        if node.op == "placeholder":
            return False
        if not _is_module_result(node) and _get_function_name(node) in VIEWS and not self._is_smaller(node):
            return False
        tensors = [values.get(node) for values in self.values]
        return all(
            isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tensor.dim() > 0 and len(tensor) == size
            for tensor, size in zip(tensors, SIZES, strict=True)
        )

    def _is_smaller(self, node: fx.Node) -> bool:
        """Return whether a view has fewer numbers than its tensor, such as the last step of a sequence."""
        sizes = [
            value.numel() if isinstance(value, torch.Tensor) else 0
            for value in (self.values[0].get(each) for each in (node, node.all_input_nodes[0]))
        ]
        return sizes[0] < sizes[1]


def _rename_constants(graph: fx.Graph, root: nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors that are neither parameters nor buffers. Each mode gets names of its own for its new ones."""
    constants: dict[str, torch.Tensor] = {}
    known = {name for name, _ in (*root.named_parameters(), *root.named_buffers())}
    for node in graph.nodes:
        path = str(node.target)
        if node.op != "get_attr" or path in known:
            continue
        value = operator.attrgetter(path)(root)
        if not isinstance(value, torch.Tensor):
            continue
        if path.startswith("_tensor_constant"):
            path = f"{'training' if root.training else 'evaluation'}{path}"
            root.register_buffer(path, value, persistent=False)
            node.target = path
        constants[path] = value.detach().clone()
    return constants


class _Recorder(fx.Interpreter):
    """Runs a graph and keeps the value of each node; remembers which nodes draw random numbers."""

    def __init__(self, root: nn.Module, graph: fx.Graph) -> None:
        super().__init__(root, graph=graph)
        self.found: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        before = torch.get_rng_state()
        value = super().run_node(n)
        if not torch.equal(before, torch.get_rng_state()):
            n.meta["draws"] = True
        self.found[n] = value.to("meta") if isinstance(value, torch.Tensor) else value
        return value


@torch.no_grad()
def _record_values(graph: fx.Graph, root: nn.Module, zeros: Any) -> dict[fx.Node, Any]:
    recorder = _Recorder(root, graph)
    try:
        recorder.run(*(zeros if isinstance(zeros, tuple) else (zeros,)))
    except Exception as error:
        place, inputs = find_user_code(error), zeros if isinstance(zeros, tuple) else (zeros,)
        shapes = ", ".join("x".join(map(str, each.shape)) for each in inputs)
        what = f"the model does not accept its input {shapes}" + (f", {place}" if place else "")
        cause = error.__cause__ or error
        raise InputError(what, value=str(cause).splitlines()[0] if str(cause) else type(cause).__name__) from None
    return recorder.found


def _get_function_name(node: fx.Node) -> str:
    target = node.target
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))


def _is_inplace(node: fx.Node) -> bool:
    """Return whether an operation changes its first argument."""
    if node.op not in ("call_function", "call_method"):
        return False
    name = _get_function_name(node)
    is_operator = getattr(node.target, "__module__", "") in ("_operator", "operator") and hasattr(
        operator, f"__{name}__"
    )
    starts_in_place = is_operator and name.startswith("i") and hasattr(operator, name[1:]) and name not in ("invert",)
    ends_in_place = name.endswith("_") and not name.endswith("__")
    return starts_in_place or ends_in_place or name == "setitem" or node.kwargs.get("inplace") is True


def _has_dtype(node: fx.Node) -> bool:
    return any(isinstance(each, torch.dtype) for each in (*node.args, *node.kwargs.values()))


def _is_fact(node: fx.Node) -> bool:
    if node.op == "call_function" and node.target is getattr:
        return node.args[1] in FACTS
    return node.op == "call_method" and node.target in FACT_METHODS


def _replace_size(two: Any, three: Any, h: fx.Node | None) -> Any:
    if two == three:
        return two
    if (two, three) == SIZES:
        return h and h.graph.call_method("size", (h, 0))
    raise LookupError


def get_tuple_source(node: fx.Node) -> fx.Node | None:
    """Return the call of a module whose result is a tuple, if the node is an item of this tuple."""
    if node.op != "call_function" or node.target is not operator.getitem or not isinstance(node.args[1], int):
        return None
    source = node.args[0]
    return source if isinstance(source, fx.Node) and source.op == "call_module" else None


def _is_module_result(node: fx.Node) -> bool:
    return bool(node.meta.get("ends")) or get_tuple_source(node) is not None


def get_node_name(node: fx.Node) -> str:
    """Return the name of a cut behind a node: the outermost module that ends here, or the function in its module."""
    if node.meta.get("ends"):
        return str(node.meta["ends"][-1])
    source = get_tuple_source(node)
    if source is not None:
        return str(source.target)
    if node.op in ("placeholder", "get_attr"):
        return str(node.target)
    scope = node.meta.get("scope", "")
    return f"{scope}.{_get_function_name(node)}" if scope else _get_function_name(node)
