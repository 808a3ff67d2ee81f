"""Test layouts, cuts, dropout and submodels."""

import errno
import os
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from splitrelay.errors import InputError, OutOfRange, OutputError, UnknownName
from splitrelay.models import ModelSpec, SubModel, find_cut_index, get_model_spec
from splitrelay.models.dropout import Dropout
from splitrelay.models.registry import MODELS
from splitrelay.models.submodel import FastMaxPool, fast_maxpool
from splitrelay.models.summary import summarize_model
from splitrelay.models.weights_io import save_weights
from splitrelay.randomness import Purpose, rng
from tests.support.error_fields import expect_error

COUNTS = {
    "logistic": 7850,
    "mlp": 50_890,
    "lenet5": 44_426,
    "cnnmnist": 228_586,
    "cnncifar": 40_890,
    "vgg11": 9_750_922,
}


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_counts(name: str) -> None:
    shape = (3, 32, 32) if name in ("vgg11", "cnncifar") else (1, 28, 28)
    assert get_model_spec(name, shape, 10).layout().parameters == COUNTS[name]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_tensor_starts_on_a_64_byte_boundary(dtype: torch.dtype) -> None:
    layout = get_model_spec("lenet5", (1, 28, 28), 10).layout(dtype)
    size = torch.empty((), dtype=dtype).element_size()
    assert all(slot.start * size % 64 == 0 for slot in layout.slots)
    assert all(end * size % 64 == 0 for end in layout.ends)


def test_unpack_inverts_pack() -> None:
    model = get_model_spec("lenet5", (1, 28, 28), 10)
    state = model.net().state_dict()
    layout = model.layout()
    back = layout.unpack(layout.pack(state))
    assert back.keys() == state.keys() and all(torch.equal(back[name], state[name]) for name in state)
    assert all(tensor.is_contiguous() for tensor in back.values())


def test_packing_rejects_unknown_tensors() -> None:
    small, deep = own(nn.Linear(4, 4)), own(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    with expect_error(InputError, what="2.bias", hint=True):
        small.layout().pack(deep.net().state_dict())
    batch_norm = own(nn.BatchNorm1d(4), nn.Linear(4, 2))
    assert len(batch_norm.layout().pack(batch_norm.net().state_dict())) == batch_norm.layout().size


def test_save_weights_reports_the_system_error(tmp_path: Path) -> None:
    model = own(nn.Linear(4, 4))
    with expect_error(OutputError, what=str(tmp_path), value=os.strerror(errno.ENAMETOOLONG), hint=True):
        save_weights(tmp_path / ("a" * 254), model.layout(), model.x0(1))
    assert not list(tmp_path.iterdir())


def test_x0_depends_on_the_seed_only_and_leaves_torchs_generator_unchanged() -> None:
    model = get_model_spec("mlp", (1, 8, 8), 10)
    before = torch.get_rng_state()
    first, again, other = model.x0(1), model.x0(1), model.x0(2)
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_vgg11_has_the_initialization_of_the_paper() -> None:
    model = get_model_spec("vgg11", (3, 32, 32), 10)
    tensors = model.layout().unpack(model.x0(1))
    assert tensors["fc1.weight"].std() == pytest.approx(0.01, rel=0.02) and not tensors["fc1.bias"].any()
    assert tensors["conv4_1.weight"].std() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.02)


def test_submodel_weights_are_views_of_one_buffer() -> None:
    model = get_model_spec("lenet5", (1, 28, 28), 10)
    submodel = SubModel(model, 0, 6, torch.float32)
    submodel.load(model.x0(1)[: submodel.layout.size])
    weight = submodel.layers.conv2.weight
    submodel.x.fill_(3.0)
    assert (weight == 3.0).all() and weight.is_contiguous(memory_format=torch.channels_last)


def test_cut_is_found_by_name_and_number() -> None:
    model = get_model_spec("lenet5", (1, 28, 28), 10)
    assert [find_cut_index(model, cut) for cut in (None, "pool2", 6, "6")] == [6] * 4
    with pytest.raises(UnknownName) as unknown:
        find_cut_index(model, "pol2")
    assert unknown.value.name == "pol2" and "pool2" in str(unknown.value.hint)
    for cut in (12, "fc3"):  # the server would have no layer
        with pytest.raises(OutOfRange) as error:
            find_cut_index(model, cut)
        assert error.value.value == 12 and "1 <= cut <= 11" in str(error.value.limit)


def test_too_small_images_and_unknown_models_are_rejected() -> None:
    with expect_error(InputError, what=("vgg11", "32x32"), value="1x28x28"):
        get_model_spec("vgg11", (1, 28, 28), 10)
    with expect_error(UnknownName, name="resnet", hint="lenet5"):
        get_model_spec("resnet", (3, 32, 32), 10)


def test_batch_norm_without_momentum_is_rejected() -> None:
    with expect_error(InputError, what="'0'", hint=True):
        own(nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 2)).net()


class Attention(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.heads = nn.MultiheadAttention(4, 2, dropout=dropout, batch_first=True)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return self.heads(h[:, None], h[:, None], h[:, None])[0][:, 0]


class Noise(nn.Module):
    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h + torch.randn_like(h)


class Recurrent(nn.LSTM):
    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return super().forward(h[:, None])[0][:, 0]


@pytest.mark.parametrize(
    "layer",
    [
        Attention(dropout=0.1),
        nn.Sequential(nn.Linear(4, 4), Noise()),
        Recurrent(4, 4, num_layers=2, dropout=0.5, batch_first=True),
        nn.Sequential(nn.Linear(4, 4), nn.Dropout()),
        nn.RReLU(),
    ],
)
def test_layers_that_draw_inside_are_found(layer: nn.Module) -> None:
    model = own(nn.Linear(4, 4), layer, nn.Dropout(), nn.Linear(4, 2))
    if isinstance(layer, nn.Sequential) and isinstance(layer[1], Noise):
        with expect_error(InputError, what="'1' (Sequential)", hint=True):  # it draws in evaluation too
            model.layout()
    else:
        assert model.facts.random == {1}  # nn.Dropout as a layer has masks of its own


class OwnGenerator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.source = torch.Generator()

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h + torch.rand(h.shape, generator=self.source)


class HiddenGenerator(nn.Module):
    SOURCES = (torch.Generator(),)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h * (torch.rand(h.shape, generator=self.SOURCES[0]) if self.training else 1)


class NumpyNoise(nn.Module):
    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h * np.random.rand()  # noqa: NPY002


class Clock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ticks = 0

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        self.ticks += 1
        return h * self.ticks


class ListClock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        self.seen.append(1)
        return h * len(self.seen)


class LastInput(nn.Module):
    """It adds what it saw before, which is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.zeros(())

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        out, self.last = h + self.last, h.detach().mean()
        return out


class GlobalClock(nn.Module):
    TICKS: ClassVar[list[int]] = []

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        GlobalClock.TICKS.append(1)
        return h * len(GlobalClock.TICKS)


class KeepsOutput(nn.Module):
    """It keeps what it computed and never reads it, as many attention layers do. This is no state."""

    kept: torch.Tensor

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        self.kept = nn.functional.dropout(h, training=self.training)
        return self.kept


class Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Dropout())

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = checkpoint(self.inner, h, use_reentrant=False)
        return out


class MovingWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Linear(4, 4).requires_grad_(False)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                self.teacher.weight.mul_(0.9)
        return self.teacher(h)


@pytest.mark.parametrize(
    ("layer", "where"),
    [
        (OwnGenerator(), "'source'"),
        (HiddenGenerator(), "HiddenGenerator"),
        (NumpyNoise(), "'1'"),
        (Clock(), "'ticks'"),
        (ListClock(), "'1' (ListClock)"),
        (LastInput(), "'1' (LastInput)"),
        (GlobalClock(), "'1' (GlobalClock)"),
        (Recomputed(), "'1' (Recomputed)"),
        (MovingWeights(), "1.teacher.weight"),
    ],
)
def test_state_that_cannot_be_saved_is_rejected(layer: nn.Module, where: str) -> None:
    with expect_error(InputError, what=where, hint=True):
        own(nn.Linear(4, 4), layer, nn.Linear(4, 2)).layout()


def test_check_for_randomness_accepts_deterministic_layers_and_changes_nothing() -> None:
    norm = nn.BatchNorm1d(4)
    model = own(Attention(dropout=0.0), norm, nn.Dropout(), KeepsOutput(), nn.Linear(4, 2))
    before = torch.get_rng_state()
    assert model.layers() == list("01234")
    assert not norm.running_mean.any() and torch.equal(torch.get_rng_state(), before)


def test_layers_that_do_not_fit_each_other_are_rejected() -> None:
    with expect_error(InputError, what=("'1' (Linear)", "2x5"), value=("2x5", "4x2")):
        own(nn.Linear(4, 5), nn.Linear(4, 2)).layers()


def test_model_is_built_once_for_all_layouts() -> None:
    built: list[int] = []
    model = ModelSpec("own", lambda: built.append(1) or nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), (4,), 1)
    for _ in range(3):
        model.layout(), model.layout(torch.float64), model.layers(), find_cut_index(model, None)
    assert len(built) == 1


def test_cut_in_digits_is_the_number_of_layers() -> None:
    model = own(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    assert model.layers() == ["0", "1", "2"]
    assert find_cut_index(model, 1) == find_cut_index(model, "1") == 1  # after the layer that torch calls "0"
    with pytest.raises(OutOfRange) as error:
        find_cut_index(model, "0")
    assert error.value.value == 0 and "1 <= cut <= 2" in str(error.value.limit)


def test_shared_weights_are_rejected() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    with expect_error(InputError, what=("0.weight", "1.weight"), hint=True):
        own(first, second).layout()


def own(*layers: nn.Module) -> ModelSpec:
    return ModelSpec("own", lambda: nn.Sequential(*layers), (4,), 1)


def test_layer_without_weights_may_be_used_twice() -> None:
    tanh = nn.Tanh()
    assert own(nn.Linear(4, 4), tanh, nn.Linear(4, 4), tanh, nn.Linear(4, 2)).layers() == list("01234")
    with expect_error(InputError, what="'1'", hint=True):
        own(*[nn.BatchNorm1d(4, affine=False)] * 2).net()


def test_inplace_is_turned_off() -> None:
    net = own(nn.Linear(4, 4), nn.Sequential(nn.ReLU(inplace=True)), nn.Linear(4, 2)).net()
    h = -torch.ones(1, 4)
    assert torch.equal(net[1](h), torch.zeros(1, 4)) and torch.equal(h, -torch.ones(1, 4))


def test_model_must_be_a_module_with_layers() -> None:
    with expect_error(InputError, what="own", value="dict"):
        ModelSpec("own", dict, (2,), 1).net()
    with expect_error(InputError, what="own", hint=True):
        ModelSpec("own", nn.Sequential, (2,), 1).layers()
    with expect_error(InputError, what="'0' (LazyLinear)", hint=True):
        own(nn.LazyLinear(4), nn.Linear(4, 2)).net()


def test_dropout_preserves_the_mean_and_needs_a_source() -> None:
    dropout, h = Dropout(0.25), torch.ones(4, 100)
    with pytest.raises(InputError):
        dropout(h)
    dropout.source = lambda shape: torch.linspace(0, 1, 400).view(shape)
    out = dropout(h)
    assert out.mean() == pytest.approx(1, abs=0.01) and out.unique().tolist() == pytest.approx([0, 4 / 3])
    assert torch.equal(dropout.eval()(h), h)


def test_built_in_models_have_a_valid_default_cut() -> None:
    for name in MODELS:
        model = get_model_spec(name, (3, 32, 32), 10)
        assert 1 <= find_cut_index(model, None) < len(model.layers())


@pytest.mark.parametrize("shape", [(3, 6, 24, 24), (2, 16, 7, 9), (1, 1, 8, 8), (4, 8, 2, 2)])
def test_fast_maxpool_equals_torch_in_numbers_and_format(shape: tuple[int, ...]) -> None:
    h = torch.from_numpy(rng(1, Purpose.INSTANCES).standard_normal(shape)).to(memory_format=torch.channels_last)
    pool = fast_maxpool(nn.MaxPool2d(2))
    assert isinstance(pool, FastMaxPool)
    for images in (h, h.contiguous(), h[0]):
        theirs = nn.MaxPool2d(2)(images)
        assert torch.equal(pool(images), theirs) and pool(images).stride() == theirs.stride()


@pytest.mark.parametrize(
    "settings", [{"kernel_size": 3}, {"stride": 1}, {"padding": 1}, {"dilation": 2}, {"ceil_mode": True}]
)
def test_fast_maxpool_returns_other_layers_unchanged(settings: dict[str, int]) -> None:
    layer = nn.MaxPool2d(**{"kernel_size": 2, **settings})
    assert fast_maxpool(layer) is layer


# FLOPs of layers, composite layers included, against numbers worked out by hand.


class Residual(nn.Module):
    """A block with a matrix product that no single layer of torch makes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 64))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h + self.inner(h) + h @ torch.ones(64, 64)


def make_net() -> nn.Sequential:
    block = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1, groups=1), nn.ReLU(), nn.Conv2d(4, 1, 1))
    return nn.Sequential(block, nn.Flatten(), Residual(), nn.Linear(64, 10))


def test_flops_of_composite_layers_are_counted() -> None:
    summary = summarize_model(ModelSpec("own", make_net, (1, 8, 8), 1))
    block = 2 * 9 * 4 * 64 + 2 * 4 * 64
    residual = 2 * 64 * 32 + 2 * 32 * 64 + 2 * 64 * 64
    assert [row.flops for row in summary.layers] == [block, 0, residual, 2 * 64 * 10]
    assert summary.cuts[0].flops_share == block / (block + residual + 2 * 64 * 10)
