"""The kernels' entry points refuse a damaged net and wrong arguments with a code, and write nothing."""

import ctypes as c
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from splitrelay.algorithms.base import Step, Visit
from splitrelay.data.images import ImageSet
from splitrelay.engine.base import LocalServerHalf
from splitrelay.errors import InputError, WorkError
from splitrelay.kernels import SplitEngine, ctypes_structs
from splitrelay.kernels.batches import Draw, Table
from splitrelay.kernels.library import load_library
from splitrelay.kernels.local_steps import KernelClientHalf, KernelServerLayers, LocalTraining
from splitrelay.kernels.network_plan import Conv2d, Dropout, Flatten, Linear, MaxPool2d, Plan, ReLU
from splitrelay.kernels.seeded_draws import Root, draw_positions
from splitrelay.kernels.workspace import Workspace
from splitrelay.randomness import Purpose, rng
from tests.kernels.fuzz_plans import Call, fuzz

PLAN = Plan(
    (3, 9, 9),
    (
        Conv2d("conv", 6, (3, 3), (1, 1)), ReLU("relu"), MaxPool2d("pool", (2, 2), (2, 2)), Conv2d("more", 9, (2, 2)),
        MaxPool2d("apart", (3, 3), (2, 2), (1, 1)), Dropout("drop", 0.5), Flatten("flat"), Linear("fc", 7),
    ),
)  # fmt: skip
CONV, OPEN, POOL, DROP, FLAT, FC = range(6)  # passes: relu and pool belong to the first


def whole(**more: Any) -> Workspace:
    return Workspace(PLAN, 0, len(PLAN.layers), 4, **more)


def part_of(code: int) -> tuple[str, int]:
    """What check_net found wrong, and in which pass."""
    number, kind = divmod(-code, 100)
    return ctypes_structs.NETS[kind], number


def test_a_net_as_it_is_made_passes() -> None:
    work = whole()
    assert work.net.seal != 0 and work.kernels.check_net(work.at) == 0


@pytest.mark.parametrize(
    ("number", "field", "value", "part"),
    [
        (CONV, "kind", 6, "kind"),
        (CONV, "kind", -1, "kind"),
        (CONV, "in_.border", -1, "tensor"),
        (CONV, "in_.C", 0, "tensor"),
        (CONV, "in_.H", 2**31 - 1, "tensor"),
        (CONV, "in_.size", 2**30, "tensor"),
        (OPEN, "in_.border", 1, "tensor"),
        (CONV, "in_at", -16, "arena"),
        (CONV, "in_at", 2**40, "arena"),
        (FC, "out_at", 2**62, "arena"),
        (FC, "g_out_at", -1, "arena"),
        (CONV, "g_out_at", -1, "arena"),
        (OPEN, "in_at", 0, "chain"),
        (CONV, "kh", 0, "window"),
        (CONV, "kw", 2000, "window"),
        (CONV, "kh", 4, "window"),
        (CONV, "corner", -1, "window"),
        (CONV, "corner", 50, "window"),
        (CONV, "sw", 0, "window"),
        (CONV, "vectors", 9, "weights"),
        (CONV, "weight", -8, "weights"),
        (CONV, "weight", 2**20, "weights"),
        (CONV, "bias", -2, "weights"),
        (FC, "weight", 2**20, "weights"),
        (FC, "bias", 2**20, "weights"),
        (CONV, "forward_weight", -1, "arena"),
        (CONV, "raw_at", 2**33, "arena"),
        (CONV, "marks", -1, "marks"),
        (POOL, "marks", 0, "marks"),
        (POOL, "marks", 2**33, "marks"),
        (CONV, "count", 17, "window"),
        (CONV, "taps", -1, "table"),
        (OPEN, "positions", 2**33, "table"),
        (CONV, "block", 0, "room"),
        (CONV, "block", 2**20, "room"),
        (POOL, "kh", 0, "window"),
        (POOL, "kw", -5, "window"),
        (POOL, "sh", 0, "window"),
        (POOL, "pw", -1, "window"),
        (POOL, "ph", 2, "window"),
        (DROP, "p", -5.0, "probability"),
        (DROP, "p", math.nan, "probability"),
        (DROP, "p", 1.0, "probability"),
        (DROP, "mask", -1, "arena"),
    ],
)
def test_a_damaged_layer_is_found_and_the_net_refused_by_every_call(
    number: int, field: str, value: Any, part: str
) -> None:
    work = whole()
    call = Call(rng(1, Purpose.INSTANCES), PLAN, work)
    outer, _, inner = field.partition(".")
    place = getattr(work.layers[number], outer) if inner else work.layers[number]
    assert getattr(place, inner or outer) != value
    setattr(place, inner or outer, value)
    code = work.kernels.check_net(work.at)
    assert part_of(code) == (part, number)
    assert set(call.get_codes(2, 0)) == {ctypes_structs.NO_NET}
    with pytest.raises(WorkError) as refused:
        ctypes_structs.check_net(code)
    assert refused.value.value == f"{part} of pass {number}"


@pytest.mark.parametrize(("field", "value"), [("out", 0), ("flat", -16), ("packed", 2**30), ("row", 8), ("C", 2**20)])
def test_a_damaged_slot_is_found(field: str, value: int) -> None:
    work = whole()
    setattr(work.slots[2], field, value)
    assert part_of(work.kernels.check_net(work.at)) == ("slot", 2)


@pytest.mark.parametrize("value", [-1, 2**31 - 1])
def test_a_damaged_table_is_found(value: int) -> None:
    for number, at in ((CONV, "taps"), (OPEN, "taps"), (OPEN, "positions")):
        work = whole()
        work.positions[getattr(work.layers[number], at) + 1] = value
        assert part_of(work.kernels.check_net(work.at)) == ("table", number)


@pytest.mark.parametrize(
    ("field", "value"),
    [("layers", None), ("arena", None), ("x", None), ("g", None), ("n_layers", 0), ("n_layers", 1001), ("n_slots", -1),
     ("classes", 0), ("batch", 0), ("batch", 2**25), ("packed_size", 7), ("arena_size", -1), ("learns", 2)],
)  # fmt: skip
def test_a_damaged_header_is_found(field: str, value: int | None) -> None:
    work = whole()
    setattr(work.net, field, value)
    assert part_of(work.kernels.check_net(work.at)) == ("header", 0)
    assert work.kernels.check_net(None) == ctypes_structs.NO_POINTER


@pytest.mark.parametrize(
    "field", ["arena_size", "marks_size", "positions_size", "found_size", "sums_size", "flat_size"]
)
def test_a_buffer_that_is_too_small_is_found(field: str) -> None:
    work = whole()
    setattr(work.net, field, getattr(work.net, field) // 2)
    assert work.kernels.check_net(work.at) < 0


def test_a_net_that_changes_after_its_check_is_refused() -> None:
    work = whole()
    call = Call(rng(1, Purpose.INSTANCES), PLAN, work)
    work.net.batch += 1
    assert set(call.get_codes(2, 0)) == {ctypes_structs.NO_NET}


def changed_sizes(call: Call) -> None:
    call.sizes[1] = call.n + 1


def changed_image(call: Call) -> None:
    call.kept[0][-1] = -1


def changed_choice(call: Call) -> None:
    call.chosen.chosen = call.n


def changed_label(call: Call) -> None:
    call.table.y[:] = PLAN.classes


def changed_shape(call: Call) -> None:
    call.chosen.H = 10


def changed_out(call: Call) -> None:
    call.visit.out = None


def changed_x(call: Call) -> None:
    call.visit.x_size -= 16


def changed_norms(call: Call) -> None:
    call.visit.norms_size = 0


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (changed_sizes, ctypes_structs.BAD_BATCH),
        (changed_image, ctypes_structs.NO_IMAGE),
        (changed_choice, ctypes_structs.NO_IMAGE),
        (changed_label, ctypes_structs.BAD_LABEL),
        (changed_shape, ctypes_structs.BAD_SET),
        (changed_out, ctypes_structs.NO_POINTER),
        (changed_x, ctypes_structs.BAD_SIZE),
        (changed_norms, ctypes_structs.BAD_SIZE),
    ],
)
def test_a_visit_with_wrong_arguments_is_refused(change: Callable[[Call], None], code: int) -> None:
    work = whole()
    call = Call(rng(1, Purpose.INSTANCES), PLAN, work)
    assert work.kernels.visit(work.at, c.addressof(call.visit)) == 2
    change(call)
    assert work.kernels.visit(work.at, c.addressof(call.visit)) == code


def test_halves_check_batches_sizes_and_labels() -> None:
    cut = 3
    bottom, top = Workspace(PLAN, 0, cut, 4), Workspace(PLAN, cut, len(PLAN.layers), 4, input_gradient=True)
    below, above = (Call(rng(1, Purpose.INSTANCES), PLAN, work) for work in (bottom, top))
    v, z, h, g = c.addressof(above.visit), below.z, above.h, above.g_in

    def step(n: int, size: int) -> int:
        given = (h.ctypes.data, size, 0, above.labels.ctypes.data, g.ctypes.data, 0)
        return int(top.kernels.top_step(top.at, v, 0, n, *given))

    assert step(4, h.size) == 0 and step(3, h.size) == ctypes_structs.BAD_SIZE
    assert {step(0, 0), step(-1, h.size), step(5, h.size), step(2**31 - 1, h.size)} == {ctypes_structs.BAD_BATCH}
    above.labels[3] = -1
    assert step(4, h.size) == ctypes_structs.BAD_LABEL
    back = [
        bottom.kernels.bottom_backward(bottom.at, c.addressof(below.visit), n, z.ctypes.data, z.size, 0)
        for n in (4, 3, 5)
    ]
    assert back == [0, ctypes_structs.BAD_SIZE, ctypes_structs.BAD_BATCH]


def test_a_net_without_gradients_does_not_learn() -> None:
    work = whole(trains=False)
    codes = Call(rng(1, Purpose.INSTANCES), PLAN, work).get_codes(4, 0)
    begin, visit, forward, backward, step, learn, move, _, _, _, gradient = codes
    assert begin == 0 and {visit, forward, backward, step, learn, move, gradient} == {ctypes_structs.NOT_FOR}


def test_draws_stay_in_their_room() -> None:
    name, held = Root(5).name(1, 2, 3), np.arange(10)
    with pytest.raises(WorkError) as refused:
        draw_positions(load_library(), name, held, [3, 3], 4, replace=False)
    assert refused.value.value == f"code {ctypes_structs.BAD_DRAW}"
    for wrong in (np.arange(0), held):
        with pytest.raises(WorkError):
            draw_positions(load_library(), name, wrong, [4, 4], 0 if len(wrong) else 4, replace=True)


def halves() -> tuple[KernelClientHalf, LocalServerHalf]:
    """Both halves of one visit of one step with three images."""
    pixels = rng(1, Purpose.INSTANCES).integers(0, 256, (5, *PLAN.shape), dtype=np.uint8)
    images = ImageSet(pixels, np.arange(5), tuple("0123456"), (0.1,) * 3, (0.3,) * 3)
    cut, x = 3, np.zeros(PLAN.size, np.float32)
    inner = SplitEngine(PLAN, images, lambda _: Draw(np.arange(3), [3]), 1, cut)
    visit = [Visit(0, 0, 0, part, Step(0.1), 1) for part in (x[: inner.boundary], x[inner.boundary :])]
    work = Workspace(PLAN, 0, cut, 3), Workspace(PLAN, cut, len(PLAN.layers), 3, input_gradient=True)
    bottom = KernelClientHalf(LocalTraining(work[0], visit[0], 1), Table(images, PLAN), Draw(np.arange(3), [3]))
    return bottom, LocalServerHalf(KernelServerLayers(LocalTraining(work[1], visit[1], 1)))


@pytest.mark.parametrize(
    "shape", [(2, 4, 4, 6), (4, 4, 4, 6), (3, 4, 5, 6), (3, 96), (3, 4, 6), (3, 4, 4, 0), (0,), (3, 4, 4, 6, 1)]
)
def test_a_gradient_of_another_shape_never_reaches_the_kernels(shape: tuple[int, ...]) -> None:
    bottom, _ = halves()
    bottom.forward(0)
    with pytest.raises(InputError):
        bottom.backward(np.zeros(shape, np.float32))


def test_a_gradient_may_be_of_another_type_order_or_alignment() -> None:
    found = []
    for change in (
        lambda g: g,
        lambda g: g.astype(">f4"),
        lambda g: np.asfortranarray(g),
        lambda g: g.astype(np.float64),
        lambda g: np.frombuffer(b"?" + g.tobytes(), np.float32, offset=1).reshape(3, 4, 4, 6),
    ):
        bottom, _ = halves()
        bottom.forward(0)
        bottom.backward(change(rng(2, Purpose.INSTANCES).standard_normal((3, 4, 4, 6)).astype(np.float32)))
        found.append(bottom.training.work.save_gradient().tobytes())
    assert len(set(found)) == 1


@pytest.mark.parametrize(
    "labels", [np.zeros((3, 0), np.int64), np.zeros((3, 2), np.int64), np.zeros(2, np.int64), np.zeros(4)]
)
def test_labels_of_another_number_never_reach_the_kernels(labels: np.ndarray) -> None:
    bottom, top = halves()
    h, _ = bottom.forward(0)
    with pytest.raises(InputError):
        top.step(0, h, labels, 0.0)
    with pytest.raises(InputError):
        top.step(0, h[:0], labels[:0], 0.0)


def test_a_few_hundred_drawn_plans_are_refused_or_run() -> None:
    """A small part of what `python tests/kernels/fuzz_plans.py 100000` does under the sanitizers."""
    found = sum((fuzz(number) for number in range(200)), start=fuzz(200))
    assert found["refused"] > 50 and found["run"] > 50 and found["changed nets refused"] > 50
    assert found["accepted"] + found["refused"] == 201
