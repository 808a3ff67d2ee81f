"""A net as data: its layers with all their numbers, from which buffers and kernels follow. It travels as JSON.

Layers and plans check themselves when they are made. A document is checked for exact
keys and types, too.

The limits of a plan, and the checks that refuse a number outside them.

A plan may come from another host, and the kernels compute addresses from its numbers. Every plan therefore passes
these checks, wherever it was made. The limits keep all sizes of one image within 32 bits and all sizes of a batch
within 64 bits. The kernels check the structures that are made from a plan once more (native/checks.h).
"""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_float
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from math import prod
from typing import Any

from splitrelay.errors import InputError, OutOfRange
from splitrelay.structured_text import parse_json

LAYERS = 1000
NAME = 200  # characters of a layer's name
CHANNELS = 2**20  # channels of an input, outputs of a layer
SIDE = 2**14  # height and width of an input
KERNEL = 2**10
STRIDE = 2**10
PADDING = 2**10  # of a convolution; that of a pool is at most half its kernel
LARGEST = 2**29  # numbers of x, and of one image between two layers, each with its padding
BATCH = 2**24  # images
ROOM = 2**38  # numbers of all activations of a workspace
TEXT = 2**20  # characters of a plan as JSON
SHOWN = 60  # characters of a refused value in an error


def get_brief(value: object) -> object:
    """Return a value as an error may show it: short, on one line, and without control characters.

    Numbers of usual size stay numbers.
    """
    if isinstance(value, bool) or value is None:
        return repr(value)
    if isinstance(value, int):
        return value if value.bit_length() <= 128 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, float):
        return value
    if isinstance(value, str):
        return ascii(value[:SHOWN])
    if (
        isinstance(value, list | tuple)
        and len(value) <= 4
        and not any(isinstance(v, list | tuple | dict) for v in value)
    ):
        return "[" + ", ".join(str(get_brief(v)) for v in value) + "]"
    return f"a {type(value).__name__}"


def check_integer(what: str, value: object, low: int, high: int) -> None:
    """Refuse what is not an int (a bool is none) from low to high."""
    limit = f"an integer from {low} to {high}"
    if type(value) is not int:
        raise InputError(what, value=get_brief(value), limit=limit)
    if not low <= value <= high:
        raise OutOfRange(what, value=get_brief(value), limit=limit)


def check_pair(what: str, value: object, low: int, high: int) -> None:
    """Refuse what is not a tuple of two ints from low to high."""
    if type(value) is not tuple or len(value) != 2:
        raise InputError(what, value=get_brief(value), limit=f"two integers from {low} to {high}")
    for number in value:
        check_integer(what, number, low, high)


def check_flag(what: str, value: object) -> None:
    """Refuse what is neither True nor False."""
    if type(value) is not bool:
        raise InputError(what, value=get_brief(value), limit="true or false")


def check_probability(what: str, value: object) -> None:
    """Refuse a number outside 0 <= p < 1, NaN included. The kernels hold p in 32 bits: there, too, it is below 1."""
    limit = "a number 0 <= p < 1"
    if type(value) not in (int, float):
        raise InputError(what, value=get_brief(value), limit=limit)
    assert isinstance(value, int | float)
    if not 0 <= value < 1 or c_float(value).value >= 1:
        raise OutOfRange(what, value=get_brief(value), limit=limit)


def check_name(what: str, value: object) -> None:
    """Refuse a layer's name that is empty, too long, or not printable: names appear in errors and logs."""
    if type(value) is not str or not 0 < len(value) <= NAME or not value.isprintable():
        raise InputError(what, value=get_brief(value), limit=f"1 to {NAME} printable characters")


def check_largest(what: str, numbers: int) -> None:
    """Refuse a tensor that is larger than the kernels can address."""
    if numbers > LARGEST:
        raise OutOfRange(what, value=get_brief(numbers), limit=f"<= {LARGEST} numbers, padding included")


BOUNDARY = 16  # floats: every tensor of x starts on 64 bytes, as in models.layout
LANES = 8  # floats: the kernels' vectors, to which they pad channels

Pair = tuple[int, int]
Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Conv2d:
    """A convolution of stride 1."""

    name: str
    outputs: int
    kernel: Pair
    padding: Pair = (0, 0)
    bias: bool = True

    def __post_init__(self) -> None:
        check_name("a layer's name (Conv2d)", self.name)
        what = f"layer '{self.name}' (Conv2d)"
        check_integer(f"{what}: outputs", self.outputs, 1, CHANNELS)
        check_pair(f"{what}: kernel", self.kernel, 1, KERNEL)
        check_pair(f"{what}: padding", self.padding, 0, PADDING)
        check_flag(f"{what}: bias", self.bias)


@dataclass(frozen=True)
class ReLU:
    """max(0, h)."""

    name: str

    def __post_init__(self) -> None:
        check_name("a layer's name (ReLU)", self.name)


@dataclass(frozen=True)
class MaxPool2d:
    """The largest of each window."""

    name: str
    kernel: Pair
    stride: Pair
    padding: Pair = (0, 0)

    def __post_init__(self) -> None:
        check_name("a layer's name (MaxPool2d)", self.name)
        what = f"layer '{self.name}' (MaxPool2d)"
        check_pair(f"{what}: kernel", self.kernel, 1, KERNEL)
        check_pair(f"{what}: stride", self.stride, 1, STRIDE)
        check_pair(f"{what}: padding", self.padding, 0, KERNEL)
        for kernel, padding in zip(self.kernel, self.padding, strict=True):  # as torch: no window lies outside
            check_integer(f"{what}: padding", padding, 0, kernel // 2)

    @property
    def apart(self) -> bool:
        """Windows that neither overlap nor leave gaps: such a pool is part of the convolution before it."""
        return self.kernel == self.stride and self.padding == (0, 0)


@dataclass(frozen=True)
class Flatten:
    """Images as vectors."""

    name: str

    def __post_init__(self) -> None:
        check_name("a layer's name (Flatten)", self.name)


@dataclass(frozen=True)
class Linear:
    """W h + b."""

    name: str
    outputs: int
    bias: bool = True

    def __post_init__(self) -> None:
        check_name("a layer's name (Linear)", self.name)
        what = f"layer '{self.name}' (Linear)"
        check_integer(f"{what}: outputs", self.outputs, 1, CHANNELS)
        check_flag(f"{what}: bias", self.bias)


@dataclass(frozen=True)
class Dropout:
    """Zeroes with probability p, by named masks."""

    name: str
    p: float

    def __post_init__(self) -> None:
        check_name("a layer's name (Dropout)", self.name)
        check_probability(f"layer '{self.name}' (Dropout): p", self.p)


Layer = Conv2d | ReLU | MaxPool2d | Flatten | Linear | Dropout
KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Conv2d, ReLU, MaxPool2d, Flatten, Linear, Dropout)}


@dataclass(frozen=True)
class Parameter:
    """One tensor of x, under torch's name: where it starts, and its shape (kernels lie channels last in memory)."""

    name: str
    start: int
    shape: tuple[int, ...]
    layer: int


@dataclass(frozen=True)
class Plan:
    """The shape (C, H, W) of one input, and the layers."""

    shape: Shape
    layers: tuple[Layer, ...]

    def __post_init__(self) -> None:
        self._check_fields()
        self.shapes  # noqa: B018 - a net that cannot be is refused here, by the name of its layer
        self._check_sizes()
        self._check_end()

    def _check_end(self) -> None:
        """Refuse a ReLU behind the last weights: the kernels' loss overwrites the outputs that its gradient needs."""
        for layer in reversed(self.layers):
            if isinstance(layer, Conv2d | Linear):
                return
            if isinstance(layer, ReLU):
                what = f"layer '{layer.name}' (ReLU) stands behind the last layer with weights"
                raise InputError(what, hint="End the net in nn.Linear.")

    def _check_fields(self) -> None:
        """Refuse another shape than three integers in range, and what is not a tuple of layers with unique names."""
        if type(self.shape) is not tuple or len(self.shape) != 3:
            raise InputError("the shape of an input", value=get_brief(self.shape), limit="three integers: C, H, W")
        for side, highest in zip(self.shape, (CHANNELS, SIDE, SIDE), strict=True):
            check_integer("the shape of an input (C, H, W)", side, 1, highest)
        if type(self.layers) is not tuple:
            raise InputError("the layers of a plan", value=get_brief(self.layers), limit="a tuple of layers")
        check_number_of_layers(len(self.layers))
        seen: set[str] = set()
        for layer in self.layers:
            if type(layer) not in KINDS.values():
                raise InputError("a layer of a plan", value=get_brief(layer), limit=f"one of {', '.join(KINDS)}")
            if layer.name in seen:
                raise InputError(f"the name of layer '{layer.name}' occurs twice", limit="unique names")
            seen.add(layer.name)

    def _check_sizes(self) -> None:
        """Refuse an image between two layers, or an x, that is larger than the kernels can address.

        Sizes are those of the kernels' layout, or more: whole vectors of channels, and a border of zeros.
        """
        packed = 0
        for j, (layer, shape) in enumerate(zip((*self.layers, None), self.shapes, strict=True)):
            border = max(layer.padding) if isinstance(layer, Conv2d) else 0
            vectors, (C, H, W) = -(-shape[0] // LANES) * LANES, shape
            numbers = vectors * (H + 2 * border) * (W + 2 * border)
            before = "the input" if j == 0 else f"the output of layer '{self.layers[j - 1].name}'"
            check_largest(f"{before} ({C}x{H}x{W}) is too large", numbers)
            if isinstance(layer, Conv2d):
                packed += -(-layer.outputs // LANES) * LANES * prod(layer.kernel) * vectors
            if isinstance(layer, Linear):
                packed += -(-layer.outputs // LANES) * LANES * numbers
            if layer is not None:
                check_largest(f"the weights up to layer '{layer.name}' are too large", packed)
        if not self.parameters:
            raise InputError("the net has no weights", limit="a Conv2d or Linear layer")

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """What stands before each layer, and behind the last; a vector of F features is (F, 1, 1) once it is linear."""
        shapes = [self.shape]
        for j, layer in enumerate(self.layers):
            shapes.append(self._compute_shape_after(j, layer, shapes[-1]))
        if not self.flat(len(self.layers)) or prod(shapes[-1][1:]) > 1:
            raise InputError("the net ends in images, not in one number per class", hint="End it in nn.Linear.")
        return tuple(shapes)

    def flat(self, j: int) -> bool:
        """Whether what stands before layer j is a vector. Rows of features are vectors from the first layer on."""
        is_row = self.shape[1:] == (1, 1) and not any(isinstance(layer, Conv2d | MaxPool2d) for layer in self.layers)
        return is_row or any(isinstance(layer, Flatten) for layer in self.layers[:j])

    def _compute_shape_after(self, j: int, layer: Layer, shape: Shape) -> Shape:
        C, H, W = shape
        if isinstance(layer, Linear):
            if not self.flat(j):
                raise InputError(f"layer '{layer.name}' (Linear) stands before nn.Flatten")
            return layer.outputs, 1, 1
        if isinstance(layer, Conv2d | MaxPool2d):
            stride = layer.stride if isinstance(layer, MaxPool2d) else (1, 1)
            sides = [
                (n + 2 * p - k) // s + 1 for n, k, s, p in zip((H, W), layer.kernel, stride, layer.padding, strict=True)
            ]
            if self.flat(j) or min(sides) < 1:
                raise InputError(f"layer '{layer.name}' does not fit what comes before it", value=f"{C}x{H}x{W}")
            return layer.outputs if isinstance(layer, Conv2d) else C, sides[0], sides[1]
        return shape

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """All tensors of x, in order."""
        return tuple(self._list_parameters())

    def _list_parameters(self) -> Iterator[Parameter]:
        start = 0
        for j, layer in enumerate(self.layers):
            if not isinstance(layer, Conv2d | Linear):
                continue
            inputs = self.shapes[j][0] if isinstance(layer, Conv2d) else prod(self.shapes[j])
            kernel = layer.kernel if isinstance(layer, Conv2d) else ()
            tensors: list[tuple[str, tuple[int, ...]]] = [("weight", (layer.outputs, inputs, *kernel))]
            tensors += [("bias", (layer.outputs,))] if layer.bias else []
            for name, shape in tensors:
                yield Parameter(f"{layer.name}.{name}", start, shape, j)
                start += -(-prod(shape) // BOUNDARY) * BOUNDARY

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """ends[j] is where the first j layers end in x: ends[cut] is the length of the client's half."""
        ends, parameters = [0], list(self.parameters)
        for j in range(len(self.layers)):
            last = [p.start + -(-prod(p.shape) // BOUNDARY) * BOUNDARY for p in parameters if p.layer == j]
            ends.append(max(last, default=ends[-1]))
        return tuple(ends)

    @property
    def size(self) -> int:
        """The length of x, gaps included."""
        return self.ends[-1]

    @property
    def classes(self) -> int:
        """Outputs of the last layer."""
        return prod(self.shapes[-1])

    def document(self) -> dict[str, Any]:
        """The plan as plain lists and numbers, for JSON."""
        layers = [{"kind": type(layer).__name__, **asdict(layer)} for layer in self.layers]
        return {"shape": list(self.shape), "layers": layers}


def plan_from(document: object) -> Plan:
    """Make the plan that `Plan.document` wrote, which may have come from another host.

    Raises InputError unless the document has exactly the keys, types and ranges of a plan.
    """
    check_keys("the document of a plan", document, ("shape", "layers"))
    assert isinstance(document, dict)
    entries, shape = document["layers"], document["shape"]
    if not isinstance(entries, list):
        raise InputError("the layers of a plan", value=get_brief(entries), limit="a list of layers")
    if not isinstance(shape, list | tuple):
        raise InputError("the shape of an input", value=get_brief(shape), limit="three integers: C, H, W")
    check_number_of_layers(len(entries))
    layers = tuple(_parse_layer(j, entry) for j, entry in enumerate(entries))
    return Plan(tuple(shape), layers)


def read_plan(text: str) -> Plan:
    """Make a plan from JSON text. Unlike `json.loads`, refuse NaN, infinity and keys that occur twice.

    Raises InputError for any text that is not a plan.
    """
    if len(text) > TEXT:
        raise OutOfRange("a plan as JSON is too long", value=len(text), limit=f"<= {TEXT} characters")
    try:
        document = parse_json(text, object_pairs_hook=_reject_duplicates, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InputError("a plan is not valid JSON", value=get_brief(str(error))) from None
    return plan_from(document)


def check_number_of_layers(number: int) -> None:
    """Refuse a plan with too many layers."""
    if number > LAYERS:
        raise OutOfRange("the number of layers of a plan", value=number, limit=f"<= {LAYERS}")


def check_keys(what: str, entry: object, keys: tuple[str, ...]) -> None:
    """Refuse what is not a dict with exactly these keys."""
    if not isinstance(entry, dict):
        raise InputError(what, value=get_brief(entry), limit=f"an object with the keys {', '.join(keys)}")
    if set(entry) != set(keys):
        odd = [get_brief(key) for key in entry if key not in keys] or [key for key in keys if key not in entry]
        raise InputError(f"{what}: unknown or missing key", value=odd[0], limit=f"the keys {', '.join(keys)}")


def _parse_layer(j: int, entry: object) -> Layer:
    kind = entry.get("kind") if isinstance(entry, dict) else None
    if not isinstance(entry, dict) or not isinstance(kind, str) or kind not in KINDS:
        raise InputError(f"layer {j} of a plan", value=get_brief(kind), limit=f"a kind: {', '.join(KINDS)}")
    keys = tuple(field.name for field in fields(KINDS[kind]))
    check_keys(f"layer {j} of a plan ({kind})", entry, ("kind", *keys))
    given = {key: tuple(entry[key]) if isinstance(entry[key], list) else entry[key] for key in keys}
    layer: Layer = KINDS[kind](**given)
    return layer


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")
