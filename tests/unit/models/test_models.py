"""Layouts, cuts and layers: where every number of x lives."""

from pathlib import Path

import pytest
import torch
from torch import nn

from splitrelay.errors import InputError, OutOfRange, OutputError, UnknownName
from splitrelay.models import Blueprint, Stretch, blueprint, cut_index, lay_out
from splitrelay.models.architectures import MODELS
from splitrelay.models.dropout import Dropout
from splitrelay.models.pooling import PooledByPairs, quick
from splitrelay.models.weights_io import save_weights
from splitrelay.randomness import Purpose, rng

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
    assert blueprint(name, shape, 10).layout().parameters == COUNTS[name]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_tensor_starts_on_a_64_byte_boundary(dtype: torch.dtype) -> None:
    layout = blueprint("lenet5", (1, 28, 28), 10).layout(dtype)
    size = torch.empty((), dtype=dtype).element_size()
    assert all(slot.start * size % 64 == 0 for slot in layout.slots)
    assert all(end * size % 64 == 0 for end in layout.ends)


def test_packing_and_unpacking_lose_nothing() -> None:
    model = blueprint("lenet5", (1, 28, 28), 10)
    state = model.net().state_dict()
    layout = model.layout()
    back = layout.unpack(layout.pack(state))
    assert back.keys() == state.keys() and all(torch.equal(back[name], state[name]) for name in state)
    assert all(tensor.is_contiguous() for tensor in back.values())


def test_weights_that_would_be_left_over_are_refused() -> None:
    small, deep = own(nn.Linear(4, 4)), own(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    with pytest.raises(InputError, match=r"the model holds no '2\.bias'"):
        small.layout().pack(deep.net().state_dict())
    batch_norm = own(nn.BatchNorm1d(4), nn.Linear(4, 2))
    assert len(batch_norm.layout().pack(batch_norm.net().state_dict())) == batch_norm.layout().size


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    model = own(nn.Linear(4, 4))
    with pytest.raises(OutputError, match=r"cannot write .*File name too long"):
        save_weights(tmp_path / ("a" * 254), model.layout(), model.x0(1))
    assert not list(tmp_path.iterdir())


def test_the_start_is_named_by_the_seed_and_leaves_torchs_own_generator_alone() -> None:
    model = blueprint("mlp", (1, 8, 8), 10)
    before = torch.get_rng_state()
    first, again, other = model.x0(1), model.x0(1), model.x0(2)
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_vgg_starts_as_the_paper_says() -> None:
    model = blueprint("vgg11", (3, 32, 32), 10)
    tensors = model.layout().unpack(model.x0(1))
    assert tensors["fc1.weight"].std() == pytest.approx(0.01, rel=0.02) and not tensors["fc1.bias"].any()
    assert tensors["conv4_1.weight"].std() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.02)


def test_a_stretch_is_windows_into_one_buffer() -> None:
    model = blueprint("lenet5", (1, 28, 28), 10)
    stretch = Stretch(model, 0, 6, torch.float32)
    stretch.load(model.x0(1)[: stretch.layout.size])
    weight = stretch.layers.conv2.weight
    stretch.x.fill_(3.0)
    assert (weight == 3.0).all() and weight.is_contiguous(memory_format=torch.channels_last)


def test_cuts_by_name_and_number() -> None:
    model = blueprint("lenet5", (1, 28, 28), 10)
    assert cut_index(model, None) == cut_index(model, "pool2") == cut_index(model, 6) == cut_index(model, "6") == 6
    with pytest.raises(UnknownName, match="Did you mean 'pool2'"):
        cut_index(model, "pol2")
    for cut in (12, "fc3"):  # nothing would be left for the server
        with pytest.raises(OutOfRange, match="1 <= cut <= 11"):
            cut_index(model, cut)


def test_too_small_images_are_refused() -> None:
    with pytest.raises(InputError, match="vgg11 needs images of at least 32x32; got 1x28x28"):
        blueprint("vgg11", (1, 28, 28), 10)
    with pytest.raises(UnknownName, match="unknown model 'resnet'"):
        blueprint("resnet", (3, 32, 32), 10)


@pytest.mark.parametrize(
    ("layers", "says"),
    [
        ([nn.Linear(4, 4), nn.Dropout2d()], "Dropout2d"),
        ([nn.Sequential(nn.Linear(4, 4), nn.Dropout()), nn.Linear(4, 2)], "draws numbers that have no name"),
        ([nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 2)], "averages over all batches"),
    ],
)
def test_layers_whose_state_or_randomness_cannot_be_named_are_refused(layers: list[nn.Module], says: str) -> None:
    with pytest.raises(InputError, match=says):
        Blueprint("own", lambda: nn.Sequential(*layers), (4,), 1).net()


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
    ("layer", "named"),
    [
        (Attention(dropout=0.1), r"'0\.heads' \(MultiheadAttention\)"),
        (nn.Sequential(nn.Linear(4, 4), Noise()), r"'0\.1' \(Noise\)"),
        (Recurrent(4, 4, num_layers=2, dropout=0.5, batch_first=True), r"'0' \(Recurrent\)"),
    ],
)
def test_randomness_inside_a_layer_is_found_and_named(layer: nn.Module, named: str) -> None:
    with pytest.raises(InputError, match=named + " draws numbers that have no name"):
        own(layer, nn.Linear(4, 2)).layout()


def test_a_look_for_randomness_changes_nothing_and_lets_quiet_layers_pass() -> None:
    norm = nn.BatchNorm1d(4)
    model = own(Attention(dropout=0.0), norm, nn.Dropout(), nn.Linear(4, 2))
    before = torch.get_rng_state()
    assert model.layers() == list("0123")
    assert not norm.running_mean.any() and torch.equal(torch.get_rng_state(), before)


def test_layers_that_do_not_fit_each_other_are_told_of() -> None:
    with pytest.raises(InputError, match=r"layer '1' \(Linear\) cannot take what comes to it, 2x5; got mat1 and mat2"):
        own(nn.Linear(4, 5), nn.Linear(4, 2)).layers()


def test_a_model_is_looked_at_once() -> None:
    built: list[int] = []
    model = Blueprint("own", lambda: built.append(1) or nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), (4,), 1)
    for _ in range(3):
        model.layout(), model.layout(torch.float64), model.layers(), cut_index(model, None)
    assert len(built) == 1


def test_a_cut_given_as_digits_is_the_number_of_layers_also_where_layers_are_called_by_numbers() -> None:
    model = own(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    assert model.layers() == ["0", "1", "2"]
    assert cut_index(model, 1) == cut_index(model, "1") == 1  # after the layer that torch calls "0"
    with pytest.raises(OutOfRange, match=r"1 <= cut <= 2, so that both sides have a layer; got 0"):
        cut_index(model, "0")


def test_tied_weights_are_refused() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    with pytest.raises(InputError, match=r"0\.weight and 1\.weight share one tensor"):
        lay_out(nn.Sequential(first, second))


def own(*layers: nn.Module) -> Blueprint:
    return Blueprint("own", lambda: nn.Sequential(*layers), (4,), 1)


def test_a_layer_that_stands_twice_is_run_twice() -> None:
    tanh = nn.Tanh()
    assert own(nn.Linear(4, 4), tanh, nn.Linear(4, 4), tanh, nn.Linear(4, 2)).layers() == list("01234")
    with pytest.raises(InputError, match="layer '1' stands twice"):
        own(*[nn.BatchNorm1d(4, affine=False)] * 2).net()


def test_no_layer_works_in_place() -> None:
    net = own(nn.Linear(4, 4), nn.Sequential(nn.ReLU(inplace=True)), nn.Linear(4, 2)).net()
    h = -torch.ones(1, 4)
    assert torch.equal(net[1](h), torch.zeros(1, 4)) and torch.equal(h, -torch.ones(1, 4))


def test_something_else_than_a_sequence_is_refused() -> None:
    with pytest.raises(InputError, match=r"must be an nn\.Sequential of layers; got Linear"):
        Blueprint("own", lambda: nn.Linear(2, 2), (2,), 1).net()


def test_dropout_keeps_the_mean_and_needs_a_name() -> None:
    dropout, h = Dropout(0.25), torch.ones(4, 100)
    with pytest.raises(InputError, match="without the name of its mask"):
        dropout(h)
    dropout.source = lambda shape: torch.linspace(0, 1, 400).view(shape)
    out = dropout(h)
    assert out.mean() == pytest.approx(1, abs=0.01) and out.unique().tolist() == pytest.approx([0, 4 / 3])
    assert torch.equal(dropout.eval()(h), h)


def test_every_model_of_the_house_can_be_cut_where_it_says() -> None:
    for name in MODELS:
        model = blueprint(name, (3, 32, 32), 10)
        assert 1 <= cut_index(model, None) < len(model.layers())


@pytest.mark.parametrize("shape", [(3, 6, 24, 24), (2, 16, 7, 9), (1, 1, 8, 8), (4, 8, 2, 2)])
def test_pooling_by_pairs_is_torchs_own_and_in_its_format(shape: tuple[int, ...]) -> None:
    h = torch.from_numpy(rng(1, Purpose.INSTANCES).standard_normal(shape)).to(memory_format=torch.channels_last)
    pool = quick(nn.MaxPool2d(2))
    assert isinstance(pool, PooledByPairs)
    for images in (h, h.contiguous(), h[0]):
        theirs = nn.MaxPool2d(2)(images)
        assert torch.equal(pool(images), theirs) and pool(images).stride() == theirs.stride()


@pytest.mark.parametrize(
    "settings", [{"kernel_size": 3}, {"stride": 1}, {"padding": 1}, {"dilation": 2}, {"ceil_mode": True}]
)
def test_any_other_pooling_is_left_to_torch(settings: dict[str, int]) -> None:
    layer = nn.MaxPool2d(**{"kernel_size": 2, **settings})
    assert quick(layer) is layer
