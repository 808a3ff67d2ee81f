"""x goes into the kernels' layout and back: no bit is lost, nothing behind it changes, what is not finite is seen."""

import numpy as np
import pytest

from splitrelay.kernels.ctypes_structs import address
from splitrelay.kernels.network_plan import Conv2d, Flatten, Linear, MaxPool2d, Plan, ReLU
from splitrelay.kernels.workspace import Workspace
from splitrelay.randomness import Purpose, rng

GUARD = 32  # numbers behind x


def plan(C: int, bias: bool = True) -> Plan:
    """Kernels of few and of many channels, images of several pixels into a linear layer, odd numbers of outputs."""
    layers = (
        Conv2d("a", 6, (5, 5), bias=bias), ReLU("b"), MaxPool2d("c", (2, 2), (2, 2)),
        Conv2d("d", 16, (3, 2), bias=bias), Conv2d("e", 9, (1, 3), bias=bias),
        Flatten("f"), Linear("g", 7, bias=bias), Linear("h", 5),
    )  # fmt: skip
    return Plan((C, 13, 14), layers)


def filled(plan: Plan, first: int = 0) -> np.ndarray:
    """Random numbers in every tensor, zeros in the gaps between them."""
    x = np.zeros(plan.size, np.float32)
    for p in plan.parameters:
        n = int(np.prod(p.shape))
        x[p.start : p.start + n] = rng(1, Purpose.INSTANCES, p.start).standard_normal(n)
    return x[plan.ends[first] :]


@pytest.mark.parametrize("C", [1, 3, 5, 8])
@pytest.mark.parametrize("bias", [True, False])
def test_x_comes_back_to_the_bit(C: int, bias: bool) -> None:
    x, work = filled(plan(C, bias)), Workspace(plan(C, bias), 0, 8, 2)
    x[:2] = -0.0, 1e-42
    work.load(x)
    assert np.count_nonzero(work.x) == np.count_nonzero(x)  # what is padded is zero
    found, finite = work.save()
    assert finite and found.tobytes() == x.tobytes()


@pytest.mark.parametrize("last", [1, 4, 5, 7, 8])
def test_nothing_behind_x_is_touched_wherever_a_net_is_cut(last: int) -> None:
    net = plan(3, bias=False)
    work, whole = Workspace(net, 0, last, 2), np.full(net.ends[last] + GUARD, 7, np.float32)
    x = whole[: net.ends[last]]
    x[:] = filled(net)[: len(x)]
    work.load(x)
    work.kernels.save_x(work.at, address(x), len(x))
    assert (whole[len(x) :] == 7).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_seen_wherever_it_stands(value: float) -> None:
    net = plan(3)
    work = Workspace(net, 0, 8, 2)
    for p in net.parameters:
        for at in (p.start, p.start + int(np.prod(p.shape)) - 1):
            x = filled(net)
            x[at] = value
            work.load(x)
            assert not work.save()[1], p.name


def test_large_numbers_are_finite() -> None:
    net = plan(1)
    work, x = Workspace(net, 0, 8, 2), np.sign(filled(net)) * np.float32(3.4e38)
    work.load(x)
    assert work.save()[1]


def test_an_address_is_numpys_also_where_an_array_cannot_be_written_or_is_empty() -> None:
    writable, kept, empty = np.zeros(3), np.zeros(3), np.zeros(0)
    kept.flags.writeable = False
    assert all(address(a) == a.ctypes.data for a in (writable, kept, empty, np.zeros((4, 4))[:, 1]))
