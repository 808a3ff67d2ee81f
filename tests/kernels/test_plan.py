"""Does a plan agree with the layout of its net, survive JSON, and name the layers that have no kernel?"""

import json

import pytest
from torch import nn

from splitrelay.engine.select import resolve_engine
from splitrelay.errors import InputError
from splitrelay.kernels import NotCovered, build, convert_net, library, plan_from
from splitrelay.kernels.builtin_plans import find_cut, get_builtin_plan
from splitrelay.models import MODELS, ModelSpec, find_cut_index, get_model_spec
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
