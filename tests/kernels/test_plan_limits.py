"""Plans outside their limits are refused by the name of the layer, from a document and from Python alike."""

import copy
import json
import math
from typing import Any

import numpy as np
import pytest
from torch import nn

from splitrelay.engine.select import resolve_engine
from splitrelay.errors import InputError, OutOfRange
from splitrelay.kernels import NotCovered, convert_net, plan_from, read_plan
from splitrelay.kernels.network_plan import (
    BATCH,
    LARGEST,
    LAYERS,
    NAME,
    Conv2d,
    Dropout,
    Flatten,
    Linear,
    MaxPool2d,
    Plan,
    ReLU,
)
from splitrelay.kernels.workspace import Workspace
from splitrelay.models import ModelSpec

DOCUMENT: dict[str, Any] = {
    "shape": [1, 12, 12],
    "layers": [
        {"kind": "Conv2d", "name": "conv", "outputs": 6, "kernel": [3, 3], "padding": [1, 1], "bias": True},
        {"kind": "ReLU", "name": "relu"},
        {"kind": "MaxPool2d", "name": "pool", "kernel": [3, 3], "stride": [2, 2], "padding": [1, 1]},
        {"kind": "Dropout", "name": "drop", "p": 0.5},
        {"kind": "Flatten", "name": "flat"},
        {"kind": "Linear", "name": "fc", "outputs": 10, "bias": True},
    ],
}
NUMBER = {layer["name"]: j for j, layer in enumerate(DOCUMENT["layers"])}


def changed(layer: str, field: str, value: object) -> dict[str, Any]:
    """The document with one field of one layer changed."""
    document = copy.deepcopy(DOCUMENT)
    document["layers"][NUMBER[layer]][field] = value
    return document


def test_a_document_within_the_limits_comes_back() -> None:
    assert json.loads(json.dumps(plan_from(DOCUMENT).document())) == DOCUMENT
    assert read_plan(json.dumps(DOCUMENT)) == plan_from(plan_from(DOCUMENT).document())


@pytest.mark.parametrize(
    ("layer", "field", "value"),
    [
        ("conv", "padding", [-1, 0]),
        ("conv", "padding", [0, -30]),
        ("conv", "padding", [2**31, 0]),
        ("conv", "padding", [0.0, 0]),
        ("conv", "padding", [True, False]),
        ("conv", "padding", [1]),
        ("conv", "padding", [1, 1, 1]),
        ("conv", "padding", 1),
        ("conv", "kernel", [0, 3]),
        ("conv", "kernel", [3, -3]),
        ("conv", "kernel", [[3], 3]),
        ("conv", "kernel", "33"),
        ("conv", "outputs", 0),
        ("conv", "outputs", -8),
        ("conv", "outputs", 2**40),
        ("conv", "outputs", 6.0),
        ("conv", "outputs", None),
        ("conv", "bias", 1),
        ("conv", "bias", "true"),
        ("pool", "kernel", [0, 0]),
        ("pool", "kernel", [-5, -5]),
        ("pool", "stride", [0, 2]),
        ("pool", "stride", [2, -1]),
        ("pool", "stride", [math.inf, 2]),
        ("pool", "padding", [-1, -1]),
        ("pool", "padding", [2, 0]),
        ("drop", "p", -5),
        ("drop", "p", -5.0),
        ("drop", "p", 1),
        ("drop", "p", 1 - 1e-12),
        ("drop", "p", math.nan),
        ("drop", "p", math.inf),
        ("drop", "p", True),
        ("drop", "p", "0.5"),
        ("fc", "outputs", -8),
        ("fc", "outputs", True),
        pytest.param("fc", "outputs", 10**5000, id="fc-outputs-of-5001-digits"),
    ],
)
def test_a_number_outside_its_range_is_refused_by_the_name_of_the_layer(layer: str, field: str, value: object) -> None:
    with pytest.raises(InputError) as refused:
        plan_from(changed(layer, field, value))
    assert f"'{layer}'" in refused.value.what and field in refused.value.what
    assert refused.value.limit is not None and len(str(refused.value)) < 400


@pytest.mark.parametrize(
    "shape",
    [
        [0, 12, 12],
        [-1, 12, 12],
        [1, 12],
        [1, 12, 12, 1],
        [1, 12.0, 12],
        [True, 12, 12],
        [1, 2**40, 12],
        "abc",
        None,
        {},
    ],
)
def test_the_shape_of_an_input_has_a_range(shape: object) -> None:
    with pytest.raises(InputError) as refused:
        plan_from({**DOCUMENT, "shape": shape})
    assert "shape" in refused.value.what and refused.value.limit is not None


@pytest.mark.parametrize("name", ["", "x" * (NAME + 1), "relu", 5, None, "a\nb", "\x1b[31m", ["pool"]])
def test_names_are_short_printable_and_unique(name: object) -> None:
    with pytest.raises(InputError) as refused:
        plan_from(changed("pool", "name", name))
    assert "name" in refused.value.what and "\n" not in str(refused.value) and "\x1b" not in str(refused.value)


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        "plan",
        {},
        {"shape": [1, 12, 12]},
        {**DOCUMENT, "more": 1},
        {**DOCUMENT, "layers": {}},
        {**DOCUMENT, "layers": []},
        {**DOCUMENT, "layers": [None, *DOCUMENT["layers"]]},
        {**DOCUMENT, "layers": [[], *DOCUMENT["layers"]]},
        {**DOCUMENT, "layers": [{"name": "relu0"}, *DOCUMENT["layers"]]},
        {**DOCUMENT, "layers": [{"kind": "Plan", "name": "a"}, *DOCUMENT["layers"]]},
        {**DOCUMENT, "layers": [{"kind": ["ReLU"], "name": "a"}, *DOCUMENT["layers"]]},
        {**DOCUMENT, "layers": [{"kind": "ReLU", "name": "a", "p": 1}, *DOCUMENT["layers"]]},
        {**DOCUMENT, "layers": [{"kind": "ReLU"}, *DOCUMENT["layers"]]},
        {**DOCUMENT, "layers": [{"kind": "ReLU", "name": "a", 5: 1}, *DOCUMENT["layers"]]},
        changed("conv", "stride", [1, 1]),
    ],
    ids=str,
)
def test_a_document_has_exactly_these_keys(document: object) -> None:
    with pytest.raises(InputError):
        plan_from(document)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[" * 100_000,
        '{"shape": [1, 12, 12], "layers": [], "layers": []}',
        json.dumps(changed("drop", "p", math.nan)),
        json.dumps(changed("drop", "p", math.inf)),
        json.dumps(DOCUMENT).replace("0.5", "1" * 5000),
        json.dumps(DOCUMENT) + " " * 10**7,
    ],
    ids=["empty", "open", "deep", "double key", "NaN", "Infinity", "digits", "long"],
)
def test_a_text_that_is_no_plan_is_an_input_error(text: str) -> None:
    with pytest.raises(InputError):
        read_plan(text)


def test_there_are_not_too_many_layers() -> None:
    many = [{"kind": "ReLU", "name": f"relu{j}"} for j in range(LAYERS - len(DOCUMENT["layers"]))]
    many = [layer for layer in many if layer["name"] != "relu"]
    plan_from({**DOCUMENT, "layers": many + DOCUMENT["layers"]})
    with pytest.raises(OutOfRange) as refused:
        plan_from({**DOCUMENT, "layers": [*many, {"kind": "ReLU", "name": "more"}, *DOCUMENT["layers"]]})
    assert refused.value.value == LAYERS + 1


@pytest.mark.parametrize(
    ("shape", "layers", "which"),
    [
        ((8, 2**14, 2**14), (Flatten("flat"), Linear("fc", 10)), "input"),
        ((1, 2000, 2000), (Conv2d("wide", 1000, (3, 3)), Flatten("flat"), Linear("fc", 10)), "wide"),
        ((1, 2, 2), (Conv2d("wide", 9000, (1, 1), (1000, 1000)), Flatten("flat"), Linear("fc", 10)), "wide"),
        ((1000, 100, 100), (Flatten("flat"), Linear("fc", 1000)), "fc"),
        ((1000, 30, 30), (Conv2d("dense", 10_000, (30, 30)), Flatten("flat"), Linear("fc", 10)), "dense"),
    ],
)
def test_x_and_what_stands_between_two_layers_stay_below_a_limit(shape: Any, layers: Any, which: str) -> None:
    with pytest.raises(OutOfRange) as refused:
        Plan(shape, layers)
    assert which in refused.value.what and str(LARGEST) in str(refused.value.limit)
    assert int(str(refused.value.value)) > LARGEST


def test_weights_of_all_layers_together_stay_below_the_limit() -> None:
    layers = [Linear(f"fc{j}", 12_000) for j in range(5)]
    Plan((12_000, 1, 1), (Flatten("flat"), *layers[:3]))
    with pytest.raises(OutOfRange):
        Plan((12_000, 1, 1), (Flatten("flat"), *layers))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Conv2d("a", 4, (3, 3), (-1, -1)),
        lambda: Conv2d("a", 4, [3, 3]),
        lambda: MaxPool2d("a", (0, 0), (1, 1)),
        lambda: MaxPool2d("a", (2, 2), (0, 0)),
        lambda: Linear("a", -8),
        lambda: Linear("a", np.int64(8)),
        lambda: Dropout("a", -5.0),
        lambda: Dropout("a", math.nan),
        lambda: ReLU(5),
        lambda: Plan((1, 4, 4), [Flatten("a"), Linear("b", 3)]),
        lambda: Plan((1, 4, 4), (Flatten("a"), nn.Linear(16, 3))),
        lambda: Plan((1, 4, 4), (Flatten("a"), Linear("a", 3))),
        lambda: Plan([1, 4, 4], (Flatten("a"), Linear("b", 3))),
        lambda: Plan((1, 4, 4), ()),
        lambda: Plan((1, 4, 4), (Flatten("a"), ReLU("b"))),
        lambda: Plan((1, 1, 1), (Flatten("a"), ReLU("b"))),
        lambda: Plan((1, 4, 4), (Conv2d("a", 3, (2, 2)), Flatten("b"))),
        lambda: Plan((1, 4, 4), (Conv2d("a", 3, (4, 4)), ReLU("b"), Flatten("c"))),
        lambda: Plan((1, 4, 4), (Flatten("a"), Linear("b", 3), ReLU("c"), Dropout("d", 0.5))),
    ],
)
def test_the_same_checks_hold_for_plans_made_in_python(make: Any) -> None:
    with pytest.raises(InputError):
        make()


def test_a_net_that_ends_in_a_relu_runs_on_the_reference_engine() -> None:
    """The loss overwrites the outputs, by which the kernels would tell which of them the ReLU had closed."""
    net = ModelSpec("own", lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 3), nn.ReLU()), (1, 4, 4), 1)
    assert resolve_engine("auto", net)[0] == "reference"
    with pytest.raises(InputError) as refused:
        resolve_engine("fast", net)
    assert "'2'" in refused.value.what


def test_a_torch_net_outside_the_limits_has_no_kernel() -> None:
    for layer in (nn.MaxPool2d(2, 2, padding=2), nn.Conv2d(3, 4, 3, padding=5000), nn.Dropout(1.0)):
        with pytest.raises(NotCovered):
            convert_net(nn.Sequential(layer, nn.Flatten(), nn.Linear(4, 3)), (3, 8, 8))


@pytest.mark.parametrize("batch", [0, -1, BATCH + 1, True, 2.0])
def test_a_workspace_has_a_bounded_batch(batch: Any) -> None:
    plan = plan_from(DOCUMENT)
    with pytest.raises(OutOfRange) as refused:
        Workspace(plan, 0, len(plan.layers), batch)
    assert refused.value.limit is not None


@pytest.mark.parametrize(("first", "last"), [(0, 0), (-1, 3), (3, 2), (6, 6), (0, 7)])
def test_a_workspace_has_a_stretch_of_the_layers(first: int, last: int) -> None:
    with pytest.raises(OutOfRange):
        Workspace(plan_from(DOCUMENT), first, last, 2)


def test_a_workspace_that_no_memory_holds_is_refused() -> None:
    plan = Plan((8, 2**13, 2**13), (MaxPool2d("pool", (64, 64), (64, 64)), Flatten("flat"), Linear("fc", 2)))
    with pytest.raises(OutOfRange):
        Workspace(plan, 0, 1, BATCH)
