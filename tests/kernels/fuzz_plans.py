"""Fuzz plans and kernels: python tests/kernels/fuzz_plans.py [NUMBER] [FIRST]

Each number draws one plan document: valid, at a limit, or hostile (wrong types, huge and negative numbers, NaN, nested
values, broken JSON). A document must be refused with InputError, or come back from its own text. Each accepted plan of
moderate size runs: one step whole and at every cut, where all gradients must have the same bits, and an evaluation.
Then the C structures of such a net are changed at random. The kernels must refuse a changed net, or run it without
leaving their buffers.

Run it with a sanitizer build (docs/speed.md) to see every access outside a buffer. The sanitizer then also watches the
gaps between two buffers of one block of memory.
"""

from __future__ import annotations

import copy
import ctypes as c
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from splitrelay.algorithms.base import Step, Visit
from splitrelay.data.augment import Crops
from splitrelay.errors import Diverged, InputError
from splitrelay.kernels import Draw, ImageEvaluator, Plan, SplitEngine, WholeEngine, plan_from, read_plan
from splitrelay.kernels.batches import Table
from splitrelay.kernels.ctypes_structs import VisitC
from splitrelay.kernels.local_steps import KernelServerLayers, LocalTraining, convert_step, get_smashed_shape
from splitrelay.kernels.seeded_draws import Root
from splitrelay.kernels.workspace import Workspace
from splitrelay.randomness import Purpose, rng

MODERATE = 200_000  # numbers of x and of all activations of one image: larger plans are accepted, but not run
MOST_CUTS = 12
REFUSED = range(-9, 0)  # what an entry point returns in place of an answer
NO_NET = -2
NUMBERS = [
    -(2**63), -(2**31), -(2**31) - 1, -65536, -30, -8, -5, -1, 0, 1, 2, 3, 7, 8, 9, 16, 255, 1023, 1024, 1025, 16384,
    16385, 2**20, 2**20 + 1, 2**29, 2**31 - 1, 2**31, 2**32, 2**63, 2**64, 10**30,
]  # fmt: skip
HOSTILE: list[Any] = [
    *NUMBERS, True, False, None, 0.0, -0.0, 0.5, 1.0, 1.5, -5.0, 1e308, math.nan, math.inf, -math.inf, "", "1", "ReLU",
    "x" * 300, "a\nb", "\x1b[2J", [], [1], [1, 1], [0, 0], [-1, -1], [1, 1, 1], [1.0, 1], [True, True], [[1], [1]], {},
    {"kind": "ReLU"}, [math.nan, 1], "conv1", (1, 2), 2**4000,
]  # fmt: skip

Generator = np.random.Generator
Document = dict[str, Any]


def pick(g: Generator, values: Sequence[Any]) -> Any:
    """One of the values."""
    return values[int(g.integers(len(values)))]


def draw_document(g: Generator) -> Document:
    """A valid plan, small, often with numbers at the edge of what fits."""
    C, H, W = int(pick(g, [1, 1, 2, 3, 4, 5, 8, 9, 17])), int(g.integers(1, 13)), int(g.integers(1, 13))
    layers, shape = [], [C, H, W]
    for j in range(int(g.integers(0, 7))):
        kind = pick(g, ["Conv2d", "Conv2d", "ReLU", "MaxPool2d", "MaxPool2d", "Dropout"])
        layer: Document = {"kind": kind, "name": f"{kind.lower()}{j}"}
        if kind == "Conv2d":
            padding = [int(pick(g, [0, 0, 0, 1, 2, 3, 9])) for _ in range(2)]
            kernel = [int(g.integers(1, min(n + 2 * p, 8) + 1)) for n, p in zip((H, W), padding, strict=True)]
            if g.random() < 0.2:
                kernel = [n + 2 * p for n, p in zip((H, W), padding, strict=True)]
            C, H, W = (
                int(pick(g, [1, 2, 5, 6, 7, 8, 9, 16, 17, 24])),
                *(n + 2 * p - k + 1 for n, p, k in zip((H, W), padding, kernel, strict=True)),
            )
            layer |= {"outputs": C, "kernel": kernel, "padding": padding, "bias": bool(g.random() < 0.8)}
        if kind == "MaxPool2d":
            kernel = [int(g.integers(1, min(n, 5) + 1)) for n in (H, W)]
            padding = [int(g.integers(0, k // 2 + 1)) if g.random() < 0.4 else 0 for k in kernel]
            stride = list(kernel) if g.random() < 0.6 else [int(g.integers(1, 6)) for _ in range(2)]
            H, W = ((n + 2 * p - k) // s + 1 for n, p, k, s in zip((H, W), padding, kernel, stride, strict=True))
            layer |= {"kernel": kernel, "stride": stride, "padding": padding}
        if kind == "Dropout":
            layer["p"] = pick(g, [0, 0.0, 0.3, 0.5, 0.999, 0.9999999])
        layers.append(layer)
    layers.append({"kind": "Flatten", "name": "flat"})
    for j in range(int(g.integers(0, 3))):
        layers.append(
            {"kind": "Linear", "name": f"fc{j}", "outputs": int(g.integers(1, 40)), "bias": bool(g.random() < 0.8)}
        )
        if g.random() < 0.5:
            layers.append(
                pick(g, [{"kind": "ReLU"}, {"kind": "Dropout", "p": 0.5}, {"kind": "Flatten"}]) | {"name": f"r{j}"}
            )
    layers.append({"kind": "Linear", "name": "last", "outputs": int(g.integers(1, 20)), "bias": bool(g.random() < 0.8)})
    if g.random() < 0.1:
        layers.append({"kind": "ReLU", "name": "end"})
    return {"shape": shape, "layers": layers}


def get_places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside a document, but for values that are nested deeply."""
    if len(path) > 6:
        return
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from get_places(inner, (*path, key))


def is_shallow(document: Any) -> bool:
    """Whether no value is nested deeply."""
    return all(len(path) <= 6 for path in get_places(document))


def mutate(g: Generator, document: Document) -> Any:
    """The document with something in it changed, removed, added, exchanged or nested."""
    changed = copy.deepcopy(document)
    path = pick(g, list(get_places(changed)))
    place: Any = changed
    for key in path[:-1]:
        place = place[key]
    key, way = path[-1], g.random()
    old = place[key]
    if way < 0.3 and type(old) is int:
        place[key] = pick(g, [old + 1, old - 1, -old, 2 * old, old * 2**10, pick(g, NUMBERS)])
    elif way < 0.7:
        place[key] = pick(g, HOSTILE)
    elif way < 0.76:
        del place[key]
    elif way < 0.82 and isinstance(place, dict):
        place[pick(g, ["kernel", "stride", "more", "", "p", "__class__"])] = pick(g, HOSTILE)
    elif way < 0.88 and isinstance(place, list):
        place.insert(int(g.integers(len(place) + 1)), copy.deepcopy(pick(g, place)))
    elif way < 0.92:
        layers = changed["layers"]
        a, b = (int(v) for v in g.integers(len(layers), size=2))
        layers[a], layers[b] = layers[b], layers[a]
    elif way < 0.94:
        for _ in range(int(pick(g, [3, 50, 3000]))):
            old = [old]
        place[key] = old
    elif way < 0.96:
        layers = changed["layers"]
        changed["layers"] = [
            {"kind": "ReLU", "name": f"more{j}"} for j in range(int(pick(g, [900, 999, 1200])))
        ] + layers
    else:
        return pick(g, [HOSTILE, changed["layers"], None, {}, {"layers": changed["layers"]}, changed])
    return changed


def draw_case(number: int) -> tuple[Generator, Any, str | None]:
    """The document of this number; for some also its text, with broken places."""
    g = rng(18, Purpose.INSTANCES, number)
    document: Any = draw_document(g)
    way = g.random()
    if way < 0.4:
        return g, document, None
    for _ in range(int(g.integers(1, 4)) if way < 0.9 else 1):
        is_plan = isinstance(document, dict) and isinstance(document.get("layers"), list) and document["layers"]
        if is_plan and is_shallow(document):
            document = mutate(g, document)
    if way < 0.9:
        return g, document, None
    try:
        text = json.dumps(document)
    except (TypeError, ValueError, RecursionError):
        text = "{"
    at = int(g.integers(len(text) + 1))
    return (
        g,
        document,
        text[:at] + pick(g, ["", "0", "-", "[", "}", "NaN", '"', "e9", "\x00", ","]) + text[at + int(g.integers(3)) :],
    )


def get_plan(document: Any, text: str | None) -> Plan | None:
    """The plan, or None where it is refused as it should be: with InputError and nothing else."""
    try:
        plan = plan_from(document) if text is None else read_plan(text)
    except InputError as error:
        assert len(str(error)) < 2000 and "\n" not in str(error) and "\x1b" not in str(error), error
        return None
    assert read_plan(json.dumps(plan.document())) == plan
    return plan


class Pictures:
    """Random images of a plan, with random labels: bytes, or real numbers, some of them far beyond a normal range."""

    def __init__(self, g: Generator, plan: Plan, N: int) -> None:
        self.x: npt.NDArray[Any] = g.integers(0, 256, (N, *plan.shape), dtype=np.uint8)
        self.y = g.integers(0, plan.classes, N)
        self.levels = g.standard_normal((plan.shape[0], 256)).astype(np.float32)
        self.is_extreme = False  # numbers that overflow, which a fused layer may notice and others not
        if g.random() < 0.5:
            self.x = g.standard_normal((N, *plan.shape)).astype(np.float32)
            self.is_extreme = bool(g.random() < 0.2)
            if self.is_extreme:
                self.x.flat[int(g.integers(self.x.size))] = pick(g, [math.nan, math.inf, -math.inf, 3e38, 1e-45, -0.0])

    def draw(self, g: Generator, N: int, sizes: list[int]) -> Draw:
        """Draw the images of steps of these sizes, and crops for some visits to bytes."""
        at, number = g.integers(0, N, sum(sizes)), sum(sizes)
        if self.x.dtype == np.float32 or g.random() < 0.6:
            return Draw(at, sizes)
        pad = int(g.integers(0, 4))
        top, left = (g.integers(0, 2 * pad + 1, number) for _ in range(2))
        return Draw(at, sizes, Crops(pad, top, left, g.random(number) < 0.5))


class Poison:
    """Tell the address sanitizer which parts of a workspace's memory no kernel may touch. Without it, do nothing."""

    library = c.CDLL(None)
    is_here = hasattr(library, "__asan_poison_memory_region")

    def __init__(self, work: Workspace) -> None:
        self.work = work
        self.poison, self.unpoison = (  # by text: Python changes names with two underscores inside a class
            getattr(self.library, f"__asan_{way}_memory_region") for way in ("poison", "unpoison")
        )
        self.poison.argtypes = self.unpoison.argtypes = (c.c_void_p, c.c_size_t)
        self.buffers = [work.arena, work.x, work.g, work.velocity, work.start, work.shift, work.marks, work.found]

    def mark(self, *, inside: bool) -> None:
        """Forbid what lies around each buffer and, for a net as it was made, half of each spare line inside."""
        for buffer in self.buffers:
            raw, start, stop = buffer.base, buffer.ctypes.data, buffer.ctypes.data + buffer.nbytes
            self.poison(raw.ctypes.data, start - raw.ctypes.data)
            self.poison(stop, raw.ctypes.data + raw.nbytes - stop)
        for buffer, at, numbers in self._rooms() if inside else ():
            behind = at + -(-numbers // 16) * 16 + 8  # vectors may run over by seven
            self.poison(buffer.ctypes.data + 4 * behind, 32)

    def _rooms(self) -> Iterator[tuple[Any, int, int]]:
        arena, batch = self.work.arena, self.work.batch
        for one in self.work.layers:
            for at, tensor in (
                (one.in_at, one.in_),
                (one.out_at, one.out),
                (one.g_in_at, one.in_),
                (one.g_out_at, one.out),
            ):
                if at >= 0:
                    yield arena, at, batch * tensor.size
            if one.kind == 0:
                yield arena, one.forward_weight, one.raw.stride * one.kh * one.kw * one.in_.C
            if one.kind == 0 and one.pooled:
                yield arena, one.raw_at, one.raw.size
                yield self.work.marks, one.marks, batch * one.count * one.out.stride
            if one.kind == 2:
                yield self.work.marks, one.marks, batch * one.out.C * one.out.H * one.out.W

    def clear(self) -> None:
        """Allow everything again, before the memory is used for something else."""
        for buffer in self.buffers:
            self.unpoison(buffer.base.ctypes.data, buffer.base.nbytes)


@contextmanager
def guarded(*works: Workspace, inside: bool = True) -> Iterator[None]:
    """Watch the ends of these workspaces' buffers, and the gaps inside."""
    poisons = [Poison(work) for work in works] if Poison.is_here else []
    for poison in poisons:
        poison.mark(inside=inside)
    try:
        yield
    finally:
        for poison in poisons:
            poison.clear()


def is_moderate(plan: Plan) -> bool:
    """Whether a plan is small enough to be run."""
    border = sum(max(getattr(layer, "padding", (0, 0))) for layer in plan.layers)
    numbers = sum(prod(shape) for shape in plan.shapes) + sum(
        (2 * border + max(s[1:])) ** 2 * s[0] for s in plan.shapes
    )
    return plan.size < MODERATE and numbers < MODERATE and len(plan.layers) < 60


def run_plan(g: Generator, plan: Plan) -> None:
    """Run one visit whole and at every cut, and an evaluation. All gradients must have the same bits."""
    sizes = [int(n) for n in g.integers(1, 4, 2)]
    images, L = Pictures(g, plan, 5), len(plan.layers)
    draw = images.draw(g, 5, sizes)
    x = (0.3 * g.standard_normal(plan.size)).astype(np.float32)
    step = Step(0.01, clip=1.0) if g.random() < 0.5 else Step(0.01, momentum=0.9, prox=0.1)
    visit = Visit(0, 0, 0, x, step, len(sizes))
    whole = WholeEngine(plan, images, lambda _: draw, 3)
    whole.work = Workspace(plan, 0, L, max(sizes))
    with guarded(whole.work):
        expected = get_result(whole, visit)
    cuts = list(range(1, L)) if L <= MOST_CUTS else sorted({int(v) for v in g.integers(1, L, MOST_CUTS)})
    for cut in cuts:
        halves = SplitEngine(plan, images, lambda _: draw, 3, cut)
        halves.bottom = Workspace(plan, 0, cut, max(sizes))
        halves.top = Workspace(plan, cut, L, max(sizes), input_gradient=True)
        with guarded(halves.bottom, halves.top):
            assert get_result(halves, visit) == expected or images.is_extreme, f"cut {cut}"
    scorer = ImageEvaluator(plan, images, threads=1)
    with guarded(*scorer.works):
        scorer.evaluate(x)
    cut = pick(g, cuts)
    top = Workspace(plan, cut, L, 2, input_gradient=True)
    with guarded(top):
        layers = KernelServerLayers(LocalTraining(top, Visit(0, 0, 0, x[plan.ends[cut] :], Step(0.0), 1), 3))
        (shape, _), n = get_smashed_shape(plan, cut), int(g.integers(1, 6))
        h = g.standard_normal((n, *shape)).astype(np.float32)
        layers.predict(h)


def get_result(engine: WholeEngine | SplitEngine, visit: Visit[Any]) -> bytes:
    """The new x as bytes; empty where the visit diverged."""
    try:
        return engine.run(visit).x.tobytes()
    except Diverged:
        return b""


def get_hostile(g: Generator, old: int, bits: int) -> int:
    """A number near the old one or far from it, as the C field holds it."""
    new = pick(g, [old + 1, old - 1, -old, 2 * old, old // 2, old + 8, old - 8, old + 2**16, pick(g, NUMBERS)])
    return (int(new) + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


def mutate_structure(g: Generator, one: Any) -> None:
    """Change one integer or float of a layer, a tensor or a slot."""
    name, kind = pick(g, one._fields_)
    if issubclass(kind, c.Structure):
        return mutate_structure(g, getattr(one, name))
    if kind is c.c_float:
        return setattr(one, name, pick(g, [-1.0, 1.0, 2.0, math.nan, math.inf, 0.0, 0.999]))
    return setattr(one, name, get_hostile(g, getattr(one, name), 8 * c.sizeof(kind)))


def mutate_net(g: Generator, work: Workspace) -> None:
    """Change a field of Net. A declared size may only shrink: the kernels cannot know the true one."""
    net = work.net
    name, kind = pick(g, [field for field in net._fields_ if field[0] not in ("seal", "moved", "shifted")])
    if kind is c.c_void_p:
        return setattr(net, name, None)
    old = getattr(net, name)
    if name == "n_layers" or name == "n_slots" or name.endswith("_size"):
        return setattr(net, name, pick(g, [0, -1, old - 1, old // 2, old - 8, old - 16, -(2**31)]))
    if name == "learns":
        return setattr(net, name, pick(g, [0, -1, 2]))
    return setattr(net, name, get_hostile(g, old, 8 * c.sizeof(kind)))


def mutate_work(g: Generator, work: Workspace) -> None:
    """Change something of a net that the kernels are about to check."""
    way = g.random()
    if way < 0.7:
        mutate_structure(g, pick(g, work.layers))
    elif way < 0.8 and len(work.slots):
        mutate_structure(g, pick(g, work.slots))
    elif way < 0.9 and len(work.positions):
        work.positions[int(g.integers(len(work.positions)))] = get_hostile(g, 5, 32)
    else:
        mutate_net(g, work)


class Call:
    """All buffers of a visit of one workspace, and every entry point called with them."""

    def __init__(self, g: Generator, plan: Plan, work: Workspace) -> None:
        n = work.batch
        self.g, self.work, self.root, self.n = g, work, Root(5), n
        pictures = Pictures(g, plan, 4)
        self.table = Table(pictures, plan)
        self.chosen, self.kept = self.table.choose(pictures.draw(g, 4, [n, n]))
        self.name, self.setting = self.root.name(1, 2, 3), convert_step(Step(0.1, clip=1.0))
        self.sizes, self.losses = np.array([n, n], np.int32), np.zeros(64)
        self.x, self.out = np.zeros(work.size, np.float32), np.zeros(work.size, np.float32)
        self.labels, self.norms = np.zeros(n, np.int64), np.zeros(len(work.slots))
        first, last = plan.shapes[work.first], plan.shapes[work.last]
        self.h, self.g_in = (np.zeros(n * prod(first), np.float32) for _ in range(2))
        self.z = np.zeros(n * prod(last), np.float32)
        self.counts, self.next = np.zeros((2, plan.classes), np.int64), c.c_int64()
        self.visit = VisitC(
            c.addressof(self.chosen), c.addressof(self.setting), c.addressof(self.name), self.x.ctypes.data, None,
            self.out.ctypes.data, self.sizes.ctypes.data, self.labels.ctypes.data, self.norms.ctypes.data,
            self.losses.ctypes.data, x_size=work.size, labels_size=n, norms_size=len(self.norms), K=2,
            dropout=Purpose.DROPOUT,
        )  # fmt: skip

    def mutate(self) -> None:
        """Change what is handed over beside the net."""
        g, way = self.g, int(self.g.integers(10))
        if way == 0:
            name, kind = pick(g, [field for field in VisitC._fields_ if field[0] not in ("losses", "loss", "shift")])
            if kind is c.c_void_p:
                setattr(self.visit, name, None)
            elif name == "x_size":
                self.visit.x_size = get_hostile(g, self.work.size, 64)
            elif name != "dropout":
                setattr(self.visit, name, pick(g, [0, 1, -1, -(2**31)]))
        if way == 1:
            name, kind = pick(g, self.chosen._fields_)
            if name in ("N", "chosen") or kind is c.c_void_p:
                setattr(self.chosen, name, None if kind is c.c_void_p else pick(g, [0, 1, -1, -(2**31)]))
            else:
                setattr(self.chosen, name, get_hostile(g, getattr(self.chosen, name), 32))
        if way == 2:
            self.sizes[int(g.integers(2))] = get_hostile(g, self.n, 32)
        if way == 3:
            self.kept[0][int(g.integers(2 * self.n))] = get_hostile(g, 3, 64)
        if way == 4:
            self.labels[int(g.integers(self.n))] = get_hostile(g, 3, 64)
        if way == 5:
            self.table.y[int(g.integers(4))] = get_hostile(g, 3, 64)
        if way == 6:
            self.next.value = get_hostile(g, 0, 64)
        if way == 7:
            self.setting.clip = pick(g, [math.nan, -1.0, 0.0, math.inf])
            self.setting.prox = pick(g, [0.0, 0.1, math.nan])
        if way == 8:
            name = pick(g, [field[0] for field in self.name._fields_])
            setattr(self.name, name, None if name == "root" else pick(g, [0, 1, 4, -1, -(2**63)]))
        if way == 9 and self.chosen.top:
            self.kept[1][int(g.integers(2))][int(g.integers(2 * self.n))] = get_hostile(g, 3, 64)
        elif way == 9 and self.chosen.features:  # numbers with crops
            self.chosen.top = self.chosen.left = self.chosen.flip = self.kept[0].ctypes.data

    def get_codes(self, n: int, k: int) -> list[int]:
        """Every entry point once, for n images and step k."""
        at, v, kernels, flat = self.work.at, c.addressof(self.visit), self.work.kernels, int(self.g.integers(2))
        h, g_in, z = self.h.ctypes.data, self.g_in.ctypes.data, self.z.ctypes.data
        labels, images = self.labels.ctypes.data, c.addressof(self.table.images)
        off = pick(self.g, [0, 0, 0, -1, 1])
        return [
            kernels.begin_visit(at, v),
            kernels.visit(at, v),
            kernels.bottom_forward(at, v, k, 0, flat, z, self.z.size),
            kernels.bottom_backward(at, v, n, z, self.z.size + off, flat),
            kernels.top_step(at, v, k, n, h, self.h.size + off, flat, labels, g_in, int(self.g.integers(2))),
            kernels.top_learn(at, n),
            kernels.apply(at, v, 1.0),
            kernels.top_predict(at, n, h, self.h.size, flat, z, self.z.size + off),
            kernels.evaluate(
                at, images, c.addressof(self.next), n, self.losses.ctypes.data, len(self.losses) + min(off, 0),
                self.counts[0].ctypes.data, self.counts[1].ctypes.data, self.counts.shape[1],
            ),
            kernels.save_x(at, self.out.ctypes.data, len(self.out) + off),
            kernels.save_gradient(at, self.out.ctypes.data, len(self.out)),
        ]  # fmt: skip


def run_structures(g: Generator, plan: Plan) -> tuple[int, int]:
    """Hand changed structures to the kernels. Return how many nets were refused, and how many calls of other nets."""
    L = len(plan.layers)
    first, last = sorted(int(v) for v in g.choice(L + 1, 2, replace=False))
    trains = bool(g.random() < 0.8)
    work = Workspace(
        plan, first, last, int(g.integers(1, 4)), trains=trains, input_gradient=trains and bool(g.random() < 0.5)
    )
    call = Call(g, plan, work)
    with guarded(work, inside=False):
        return run_changed(g, work, call)


def run_changed(g: Generator, work: Workspace, call: Call) -> tuple[int, int]:
    """Change the net or the call, then call every entry point."""
    if g.random() < 0.7:
        mutate_work(g, work)
        code = work.kernels.check_net(work.at)
        if code < 0:
            assert set(call.get_codes(1, 0)) == {NO_NET}, code
            return 1, 0
    if g.random() < 0.6:
        call.mutate()
    n = get_hostile(g, call.n, 32) if g.random() < 0.3 else call.n
    k = get_hostile(g, 0, 32) if g.random() < 0.3 else 0
    codes = call.get_codes(n, k)
    assert all(code >= 0 or code in REFUSED for code in codes), codes
    return 0, sum(code < 0 for code in codes)


def fuzz(number: int) -> Counter[str]:
    """Draw the plan of this number, and run it if it can be. Return what happened."""
    g, document, text = draw_case(number)
    plan = get_plan(document, text)
    if plan is None:
        return Counter({"refused": 1})
    if not is_moderate(plan):
        return Counter({"accepted": 1, "too large to run": 1})
    run_plan(g, plan)
    found = Counter({"accepted": 1, "run": 1})
    for _ in range(3):
        nets, calls = run_structures(g, plan)
        found += Counter({"changed nets refused": nets, "changed calls refused": calls, "changed structures": 1})
    return found


def main(number: int, first: int) -> None:
    """Fuzz many, and say after each thousand how it goes."""
    began, total = time.monotonic(), Counter[str]()
    for j in range(first, first + number):
        try:
            total += fuzz(j)
        except (Exception, KeyboardInterrupt) as error:
            print(f"plan {j}: {type(error).__name__}: {error}", flush=True)
            raise
        if (j + 1 - first) % 1000 == 0 or j + 1 == first + number:
            print(f"{j + 1 - first} plans, {time.monotonic() - began:.0f} s: {dict(sorted(total.items()))}", flush=True)
    if Poison.is_here:
        print("with the address sanitizer")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
