"""Samples of any shape and type, from arrays, tensors and data sets of torch and Hugging Face."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from splitrelay.api.inputs import make_data
from splitrelay.data.images import ImageSet
from splitrelay.data.samples import NO_TOKEN, SampleSet
from splitrelay.data.user_samples import get_client_positions, load_any, load_hugging_face, load_samples
from splitrelay.errors import InputError, OutOfRange
from splitrelay.objectives.network import DeviceSamples
from tests.support.error_fields import expect_error
from tests.support.small_datasets import build_arrays, build_columns


class Signals(Dataset):
    """A map-style data set with two inputs."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int):
        return (torch.full((2, 4), float(i)), torch.tensor([i, i + 1])), i % 2


def test_every_source_of_arrays_gives_the_same_samples(tmp_path: Path) -> None:
    x, y = build_arrays()
    np.savez(tmp_path / "a.npz", x=x, y=y)
    first = load_samples(x, y)
    tensors = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    for other in (
        load_samples(torch.from_numpy(x), torch.from_numpy(y)),
        load_samples(tensors),
        load_samples(tmp_path / "a.npz"),
        load_samples(x.astype(np.float32), y.astype(np.int32)),
        load_any(x, y),
    ):
        assert np.array_equal(first.train.x, other.train.x)
        assert np.array_equal(first.test.y, other.test.y)
    assert first.train.x.dtype == np.float32
    assert (len(first.train), len(first.test), first.train.outputs) == (48, 12, 2)


def test_a_data_set_of_torch_may_have_several_inputs() -> None:
    train = load_samples(Signals(), test=0.2).train
    assert [str(one) for one in train.inputs] == ["float32 (2, 4)", "int64 (2,)"]
    features, labels = DeviceSamples(train, torch.float64).batch(torch.tensor([0, 2]))
    assert [one.dtype for one in features] == [torch.float64, torch.int64]
    assert labels.dtype == torch.int64


def test_hugging_face_data_sets_are_tables_or_arrays() -> None:
    import datasets  # noqa: PLC0415 - it takes seconds

    columns = build_columns(50)
    names = ["no", "yes"]
    features = datasets.Features(
        {
            "age": datasets.Value("float64"),
            "ward": datasets.Value("string"),
            "died": datasets.ClassLabel(names=names),
        }
    )
    rows = {"age": columns["age"], "ward": columns["ward"], "died": [names.index(one) for one in columns["died"]]}
    table = load_hugging_face(datasets.Dataset.from_dict(rows, features), "died", client="ward")
    assert (table.train.classes, table.train.columns) == (("no", "yes"), ("age",))
    assert get_client_positions(table.train)[0] == ("east", "north", "south")
    text = datasets.Dataset.from_dict({"input_ids": [[1, 2, 3]] * 10, "mask": [[1, 1, 0]] * 10, "label": [0, 1] * 5})
    tokens = load_any(text, "label", test=0.2)
    assert [str(one) for one in tokens.train.inputs] == ["int64 (3,)", "int64 (3,)"]
    ragged = datasets.Dataset.from_dict({"ids": [[1], [1, 2]], "label": [0, 1]})
    with expect_error(InputError):
        load_hugging_face(ragged, "label")


def test_sr_fit_reads_hugging_face_data_sets_with_all_options() -> None:
    import datasets  # noqa: PLC0415 - it takes seconds

    columns = build_columns(50)
    rows = {"age": [None, *columns["age"][1:]], "ward": columns["ward"], "died": columns["died"]}
    table = datasets.Dataset.from_dict(rows)
    settings: dict[str, Any] = {"missing": "mean", "standardize": False}
    data, keys = make_data(table, "died", columns["ward"], 0.2, {**settings, "categorical": "ward", "R": 2})
    assert data is not None and isinstance(data.train, SampleSet)
    assert (keys, len(data.train.columns)) == ({"R": 2}, 4)
    assert get_client_positions(data.train)[0] == ("east", "north", "south")
    narrow, _ = make_data(table, None, None, 0.2, {**settings, "label": "died", "ignore": ["ward"]})
    assert narrow is not None and str(narrow.train.inputs[0]) == "float32 (1,)"
    arrays = datasets.Dataset.from_dict({"ids": [[1, 2]] * 10, "label": [0, 1] * 5})
    data, _ = make_data(arrays, None, list("ab") * 5, 0.2, {})
    assert data is not None and isinstance(data.train, SampleSet) and data.train.clients is not None
    wrong: list[tuple[Any, Any, dict[str, Any]]] = [
        (arrays, None, {"missing": "mean"}),
        (arrays, np.zeros(10), {}),
        (datasets.DatasetDict(train=arrays, test=arrays), None, {}),
        (arrays.to_iterable_dataset(), None, {}),
    ]
    for source, y, options in wrong:
        with expect_error(InputError):
            make_data(source, y, None, 0.2, options)


def test_targets_beside_a_data_frame() -> None:
    x, y = build_arrays()
    frame = pandas.DataFrame(x, columns=list("abcde"))
    data = load_any(frame, y, test=0.25)
    assert data.train.columns == tuple("abcde")
    assert (data.train.target, len(data.test)) == ("classes", 15)
    real = load_any(frame, pandas.Series(x[:, 0]))
    assert (real.train.target, real.train.outputs) == ("real", 1)


def test_the_kind_of_targets_is_not_guessed_where_two_are_possible() -> None:
    x, _ = build_arrays(20)
    with expect_error(InputError, hint="target=multi-label or target=tokens"):
        load_samples(x, np.zeros((20, 3), np.int64))
    tokens = load_samples(x, np.full((20, 3), 4), target="tokens")
    assert (tokens.train.outputs, tokens.train.classes) == (5, ())
    with expect_error(OutOfRange):
        load_samples(x, np.full((20, 3), 4), target="tokens", outputs=4)
    with expect_error(OutOfRange):
        load_samples(x, np.full((20, 3), NO_TOKEN - 1), target="tokens", outputs=4)


def test_wrong_arrays_are_refused() -> None:
    x, y = build_arrays(20)
    bad = x.copy()
    bad[7, 1] = np.nan
    with expect_error(InputError) as caught:
        load_samples(bad, y)
    assert "sample" in str(caught.value.value)
    for features, targets in ((x[:5], y), (x.astype(str), y), (x, None), (x * 1e300, y)):
        with expect_error(InputError):
            load_samples(features, targets)
    with expect_error(InputError):
        load_samples(x, y, clients=["a"] * 3)
    with expect_error(InputError):
        load_samples(x, y, test=(x[:, :2], y))
    with expect_error(InputError, value="3"):
        load_samples(x, y, test=(x, y + 3))


def test_a_part_keeps_everything_but_the_other_samples() -> None:
    x, y = build_arrays()
    whole = load_samples(x, y, clients=np.arange(60) % 3).train
    part = whole.part(np.array([4, 2]))
    assert np.array_equal(part.x, whole.x[[4, 2]])
    assert part.clients.tolist() == whole.clients[[4, 2]].tolist()
    assert (part.target, part.outputs, part.classes) == (whole.target, whole.outputs, whole.classes)


def test_images_describe_themselves_as_samples_do() -> None:
    images = ImageSet(np.zeros((2, 1, 8, 8), np.uint8), np.array([0, 1]), ("a", "b", "c"), (0.5,), (0.5,))
    assert (images.target, images.outputs, str(images.inputs[0])) == ("classes", 3, "float32 (1, 8, 8)")


@pytest.mark.parametrize("target, y", [("classes", np.zeros((3, 2))), ("real", np.zeros(3, np.int64))])
def test_targets_of_the_wrong_form_are_refused(target, y) -> None:
    with expect_error(InputError):
        SampleSet(np.zeros((3, 2), np.float32), y, target)
