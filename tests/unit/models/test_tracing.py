"""Trace modules: names of cuts, errors, constants, counters and stages."""

from pathlib import Path
from threading import Event, Thread

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from splitrelay.errors import InputError, OutOfRange, UnknownName
from splitrelay.models import ModelSpec, Stages, SubModel, find_cut_index, get_model_spec
from splitrelay.models.layer_draws import NamedDraws
from splitrelay.tensor_types import TensorType
from tests.support.error_fields import expect_error
from tests.support.module_zoo import GPT, LoRA, MaskedText, ResNet, TorchEncoder, UNet

IMAGE, ROW = (2, 8, 8), (4,)


def spec_of(module: type[nn.Module], shape: tuple = ROW) -> ModelSpec:
    return get_model_spec(module, shape, 5)


class Two(nn.Module):
    """A base for small modules with two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 5)


def test_a_cut_has_the_name_of_the_module_that_ends_there() -> None:
    model = spec_of(ResNet, IMAGE)
    layers = model.layers()
    assert [layers[find_cut_index(model, cut) - 1] for cut in ("stem", "layer1.0", "layer1", "layer2")] == [
        "stem", "layer1.0", "layer1", "layer2",
    ]  # fmt: skip
    assert (
        find_cut_index(model, "layer1.1.relu") == find_cut_index(model, "layer1.1") == find_cut_index(model, "layer1")
    )
    assert find_cut_index(model, 1) == find_cut_index(model, "stem") == 1


def test_a_cut_in_a_skip_connection_names_the_nearest_cuts() -> None:
    model = spec_of(ResNet, IMAGE)
    with expect_error(InputError, what="layer1.0.conv2", value="'stem'", hint=("stem", "layer1.0.add")):
        find_cut_index(model, "layer1.0.conv2")
    with expect_error(InputError, what="bottom", hint="cat_1"):
        find_cut_index(spec_of(UNet, IMAGE), "bottom")
    with pytest.raises(UnknownName) as error:
        find_cut_index(model, "layer9")
    assert error.value.name == "layer9"


def test_names_of_tensors_are_those_of_the_module() -> None:
    for module, inputs in ((ResNet, IMAGE), (GPT, (TensorType((7,), "int64"),)), (LoRA, (12,))):
        model = get_model_spec(module, inputs, 5)
        trained = {name for name, parameter in module().named_parameters() if parameter.requires_grad}
        assert {slot.name for slot in model.layout().slots if slot.parameter} == trained
        missing, unexpected = module().load_state_dict(model.layout().unpack(model.x0(1)), strict=False)
        assert not unexpected and not any(name in trained for name in missing)


def test_x0_is_the_initialization_of_torch() -> None:
    model = spec_of(ResNet, IMAGE)
    assert torch.equal(model.x0(3), model.x0(3)) and not torch.equal(model.x0(3), model.x0(4))
    assert model.x0(3).dtype == torch.float32 and model.x0(3, torch.float64).dtype == torch.float64


class Branching(Two):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        if h.sum() > 0:
            h = h.relu()
        return self.second(h)


class InnerBranching(Two):
    class Inner(nn.Module):
        def forward(self, h: torch.Tensor) -> torch.Tensor:
            return h.relu() if h.sum() > 0 else h

    def __init__(self) -> None:
        super().__init__()
        self.inner = self.Inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.inner(self.first(x)))


def test_an_untraceable_model_points_to_its_line_and_to_stages() -> None:
    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "if h.sum() > 0:" in text)
    with expect_error(InputError, what=("Branching", f"line {line}"), hint="Stages"):
        spec_of(Branching).layers()


def test_an_untraceable_part_is_one_layer() -> None:
    assert spec_of(InnerBranching).layers() == ["first", "inner", "second"]


def test_stages_are_layers_and_the_first_takes_all_inputs() -> None:
    inputs = (TensorType((7,), "int64"), TensorType((7,)))
    stages = get_model_spec(lambda: Stages({"text": MaskedText(), "head": nn.Linear(5, 5)}), inputs, 5)
    assert stages.layers() == ["text", "head"]
    model = SubModel(stages, 0, 2, torch.float32)
    assert model.predict((torch.zeros(3, 7, dtype=torch.int64), torch.ones(3, 7))).shape == (3, 5)
    assert get_model_spec(lambda: Stages([Branching(), nn.Linear(5, 5)]), ROW, 5).layers() == ["0", "1"]
    with expect_error(OutOfRange, value=0):
        Stages([])
    with expect_error(InputError, what="0", value="function"):
        Stages([F.relu])


class Tied(Two):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(self.first(x).tanh()))


class TiedTensor(Two):
    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).tanh())


def test_shared_weights_are_refused() -> None:
    with expect_error(InputError, what=("first", "weight"), hint=("Shared weights", "Stages")):
        spec_of(Tied).layers()
    with expect_error(InputError, what=("first.weight", "second.weight"), hint="Shared weights"):
        spec_of(TiedTensor).layers()
    assert get_model_spec(lambda: Stages([Tied(), nn.Linear(5, 5)]), ROW, 5).layers() == ["0", "1"]


class TwoResults(Two):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.first(x), self.second(x)


class AlwaysDropout(Two):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.dropout(self.first(x), 0.5))


class TracedDraw(Two):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x) + torch.rand(4))


def test_models_that_cannot_be_trained_are_refused() -> None:
    with expect_error(InputError, what="TwoResults", value="tuple", hint="Stages"):
        spec_of(TwoResults).layers()
    with expect_error(InputError, what="dropout", hint="training=self.training"):
        spec_of(AlwaysDropout).layers()
    with expect_error(InputError, what="TracedDraw", hint="Stages"):
        spec_of(TracedDraw).layers()
    with expect_error(InputError, what="MaskedText", value="1 inputs", limit=("ids", "mask")):
        spec_of(MaskedText).layers()
    with expect_error(InputError, what="2x3", value="shapes"):
        spec_of(Two1, (3,)).layers()


class Two1(Two):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


class Everywhere(Two):
    """The mask is needed to the end, so nothing can be cut."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x) * mask) * mask[:, :1]


def test_a_model_without_a_cut_says_which_values_would_cross() -> None:
    model = get_model_spec(Everywhere, (TensorType((4,)), TensorType((4,))), 5)
    assert len(model.layers()) == 1
    with expect_error(OutOfRange, what="cannot be cut", hint="'mask'"):
        find_cut_index(model, None)


def test_a_module_starts_at_its_own_weights() -> None:
    module = Two1().eval()
    model = get_model_spec(module, ROW, 5)
    assert model.has_own_start and model.name == "Two1"
    assert torch.equal(model.layout().unpack(model.x0(1))["first.weight"], module.first.weight)
    assert torch.equal(model.x0(1), model.x0(2))
    assert all(part.training for part in model.net())
    submodel = SubModel(model, 0, 2, torch.float32)
    submodel.load(torch.zeros(model.layout().size))
    assert module.first.weight.any() and not module.training  # the user's module is not changed


def test_frozen_parameters_are_constants_with_a_digest() -> None:
    model = get_model_spec(LoRA, (12,), 5)
    names = {slot.name for slot in model.layout().slots}
    assert names == {"first.A", "first.B", "second.A", "second.B", "head.weight", "head.bias"}
    assert model.layout().ends[1] == 32 + 16  # A (2, 12) and B (8, 2) in steps of 16 floats
    again = get_model_spec(LoRA, (12,), 5)
    assert model.constants_digest == again.constants_digest != ""
    one, two = ({n: t for _, n, t in net.list_constants()} for net in (model.net(), model.net()))
    assert one.keys() == {"first.base.weight", "first.base.bias", "second.base.weight", "second.base.bias"}
    assert all(torch.equal(one[name], two[name]) for name in one)

    def other() -> nn.Module:
        module = LoRA()
        module.first.base.bias.data[0] += 1
        return module

    assert get_model_spec(other, (12,), 5).constants_digest != model.constants_digest
    assert get_model_spec(Two1, ROW, 5).constants_digest == ""


class Permuted(Two):
    """A random integer buffer, which must be the same in both halves, and a counter of steps."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("order", torch.randperm(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x[:, self.order])[:, self.order].tanh())


def test_random_integer_buffers_are_the_same_in_all_parts() -> None:
    model = spec_of(Permuted)
    orders = [{name: t for _, name, t in model.net().list_constants()}["order"] for _ in range(3)]
    assert all(torch.equal(order, orders[0]) for order in orders) and model.constants_digest


class Replacing(nn.Module):
    """A float buffer that is replaced by a new tensor, not changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("count", torch.tensor(0))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean = 0.5 * self.mean + 0.5 * h.detach().mean(0)
            self.count = self.count + 1
        return h - self.mean


def test_replaced_buffers_and_counters_are_stored_in_x() -> None:
    model = ModelSpec("own", lambda: nn.Sequential(Replacing(), nn.Linear(4, 2)), ROW, 1)
    assert model.facts.counters == {"0.count"}
    submodel = SubModel(model, 0, 2, torch.float32)
    submodel.load(model.x0(1))
    for _ in range(2):
        submodel.forward(torch.ones(3, 4))
    tensors = model.layout().unpack(submodel.x)
    assert torch.equal(tensors["0.mean"], torch.full((4,), 0.75)) and tensors["0.count"].item() == 2
    assert tensors["0.count"].dtype == torch.int64
    submodel.load(submodel.x.clone())
    submodel.forward(torch.ones(3, 4))
    assert model.layout().unpack(submodel.x)["0.count"].item() == 3
    submodel.load(model.x0(1))  # a visit starts at its x, whatever was trained before
    submodel.forward(torch.ones(3, 4))
    assert model.layout().unpack(submodel.x)["0.count"].item() == 1


def test_masks_of_two_threads_do_not_mix() -> None:
    """While one thread traces, another one calls modules; neither sees the other."""
    stop, errors = Event(), []
    module, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.ones(2, 4)
    expected = module(x)

    def call() -> None:
        while not stop.is_set():
            if not torch.equal(module(x), expected):
                errors.append("another result")

    thread = Thread(target=call)
    thread.start()
    try:
        for _ in range(5):
            spec_of(ResNet, IMAGE).layers()
    finally:
        stop.set()
        thread.join()
    assert not errors


def test_torchs_encoder_is_divided_into_its_layers() -> None:
    model = get_model_spec(TorchEncoder, (TensorType((7,), "int64"),), 5)
    assert model.layers() == ["embed", "encoder.layers.0", "encoder.layers.1", "encoder", "getitem", "head"]


def test_named_draws_give_each_operation_a_generator() -> None:
    before = torch.get_rng_state()

    def draw() -> list[torch.Tensor]:
        x = torch.zeros(3, 4)
        return [
            torch.rand(3), torch.randn(3), torch.randint(9, (3,)), torch.randint(2, 9, (3,)), torch.randperm(5),
            torch.rand_like(x), torch.randn_like(x), torch.randint_like(x, 9), x.bernoulli(0.5), x.normal_(),
            F.dropout(torch.ones(3, 4)), torch.ops.aten.native_dropout(torch.ones(3, 4), 0.5, True)[0],
            torch.multinomial(torch.ones(4), 2), F.rrelu(-torch.ones(3, 4), training=True),
        ]  # fmt: skip

    with NamedDraws(1):
        first = draw()
    with NamedDraws(1):
        again = draw()
    with NamedDraws(2):
        other = draw()
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert sum(not torch.equal(a, b) for a, b in zip(first, other, strict=True)) > 10
    assert torch.equal(torch.get_rng_state(), before)
