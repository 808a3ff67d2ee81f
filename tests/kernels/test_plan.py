"""Does a plan agree with the layout of its net, survive JSON, and name the layers that have no kernel?"""

import json

import numpy as np
import pytest
from torch import nn

from splitrelay.engine.select import resolve_engine
from splitrelay.errors import InputError
from splitrelay.kernels import NotCovered, build, convert_net, library, plan_from
from splitrelay.kernels.builtin_models import find_cut, get_builtin_plan
from splitrelay.kernels.ctypes_structs import address
from splitrelay.kernels.network_plan import Conv2d, Flatten, Linear, MaxPool2d, Plan, ReLU
from splitrelay.kernels.workspace import Workspace
from splitrelay.models import MODELS, ModelSpec, find_cut_index, get_model_spec
from splitrelay.randomness import Purpose, rng
from tests.support.error_fields import expect_error

SHAPE = (3, 32, 32)


@pytest.mark.parametrize("name", MODELS)
def test_x_is_laid_out_as_everywhere(name: str) -> None:
    model = get_model_spec(name, SHAPE, 10)
    layout, plan = model.layout(), convert_net(model.net(), SHAPE)
    assert [(p.name, p.start, p.shape) for p in plan.parameters] == [(s.name, s.start, s.shape) for s in layout.slots]
    assert plan.ends == layout.ends


@pytest.mark.parametrize("name", MODELS)
def test_torch_layers_have_the_plan_that_the_package_ships(name: str) -> None:
    for shape in (SHAPE, (1, 32, 40), (1, 64, 64)):
        model, plan = get_model_spec(name, shape, 7), get_builtin_plan(name, shape, 7)
        assert convert_net(model.net(), shape) == plan
        assert find_cut_index(model, None) == find_cut(plan, name, None)
        for cut in (1, "2", plan.layers[0].name):
            if len(plan.layers) > 2:
                assert find_cut_index(model, cut) == find_cut(plan, name, cut)


@pytest.mark.parametrize("cut", [0, -1, "99", "nowhere"])
def test_a_cut_outside_a_plan_is_refused(cut: str | int) -> None:
    with pytest.raises(InputError):
        find_cut(get_builtin_plan("mlp", SHAPE, 10), "mlp", cut)


@pytest.mark.parametrize("name", MODELS)
def test_a_plan_comes_back_from_json(name: str) -> None:
    plan = convert_net(get_model_spec(name, SHAPE, 10).net(), SHAPE)
    assert plan_from(json.loads(json.dumps(plan.document()))) == plan


@pytest.mark.parametrize(
    ("layer", "names"),
    [
        (nn.Conv2d(3, 4, 3, stride=2), ("stride=(2, 2)",)),
        (nn.Conv2d(3, 6, 3, groups=3), ("groups=3",)),
        (nn.Conv2d(3, 4, 3, padding="same"), ("padding 'same'",)),
        (nn.MaxPool2d(2, ceil_mode=True), ("ceil_mode=True",)),
        (nn.BatchNorm2d(3), ()),
        (nn.Linear(32, 4), ("nn.Flatten",)),
    ],
)
def test_what_has_no_kernel_is_named(layer: nn.Module, names: tuple[str, ...]) -> None:
    with expect_error(NotCovered, what=(f"layer '0' ({type(layer).__name__})", *names), hint=True):
        convert_net(nn.Sequential(layer, nn.Flatten(), nn.Linear(1, 10)), SHAPE)


def own(*layers: nn.Module) -> ModelSpec:
    return ModelSpec("own", lambda: nn.Sequential(*layers, nn.Flatten(), nn.Linear(7200, 10)), SHAPE, 1)


@pytest.mark.parametrize(
    ("name", "engine", "names"),
    [(name, "fast", ()) for name in MODELS if name != "vgg11"]
    + [("vgg11", "reference", ("'conv3_1'", "Conv2d", "128", "256"))],
)
def test_auto_is_a_rule_on_shapes(name: str, engine: str, names: tuple[str, ...]) -> None:
    found, why = resolve_engine("auto", get_model_spec(name, SHAPE, 10))
    assert found == engine and all(part in why for part in names)


def test_what_the_fast_engine_cannot_do_runs_on_the_reference_engine_and_is_refused_by_name() -> None:
    odd = own(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    assert resolve_engine("auto", odd)[0] == "reference"
    with expect_error(InputError, what=("engine=fast", "layer '1' (BatchNorm2d)"), hint="engine=reference"):
        resolve_engine("fast", odd)
    lenet = get_model_spec("lenet5", SHAPE, 10)
    engine, why = resolve_engine("auto", lenet, dtype="float64")
    assert engine == "reference" and "float32" in why and "float64" in why
    with expect_error(InputError, what=("engine=fast", "cross-entropy", "mse"), hint="engine=reference"):
        resolve_engine("fast", lenet, loss="mse")
    assert resolve_engine("reference", lenet)[0] == "reference"


def test_a_build_of_other_sources_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "compute_checksum", lambda: 0)
    library.load_library.cache_clear()
    assert library.find_build().name in str(library.find_obstacle())
    library.load_library.cache_clear()


# x goes into the kernels' layout and back: no bit is lost, nothing behind it changes, what is not finite is seen.
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
