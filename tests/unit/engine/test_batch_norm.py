"""Batch norm cannot train on one image: the error names the client, the layer and the fix."""

from types import SimpleNamespace

import numpy as np
import pytest
from torch import nn

from splitrelay.data.images import DataSet
from splitrelay.data.partition import Partition
from splitrelay.data.partition_schemes import draw_partition
from splitrelay.data.user_datasets import load_user_dataset
from splitrelay.errors import WorkError
from splitrelay.runs.spec import make_spec
from splitrelay.runs.trainer import Trainer


@pytest.fixture(scope="module")
def halves() -> tuple[DataSet, Partition]:
    y = np.arange(50) % 2
    pixels = (np.arange(16)[None] * (y[:, None] + 3) + np.arange(50)[:, None]) % 256
    data = load_user_dataset(SimpleNamespace(data=pixels.reshape(-1, 4, 4).astype(np.uint8), targets=y))
    return data, draw_partition("iid", data.train.y, M=2, seed=1)


def make_net() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.Sequential(nn.ReLU(), nn.BatchNorm1d(4)), nn.Linear(4, 2))


@pytest.mark.parametrize("placement", ["cut", "whole"])
@pytest.mark.parametrize("cut", [1, 3])
def test_batch_of_one_image_names_client_layer_and_fix(
    halves: tuple[DataSet, Partition], placement: str, cut: int
) -> None:
    data, partition = halves
    n = len(partition.indices[0])
    spec = make_spec(M=2, partition="iid", batch=n - 1, K=2, order="fixed", placement=placement, cut=cut)
    with pytest.raises(WorkError) as error:
        list(Trainer(spec, data, partition, model=make_net).run(1))
    assert "client 0" in error.value.what and "2.1" in error.value.what.split("'")
    assert error.value.hint is not None and "drop_last=true" in error.value.hint
    assert error.value.limit is not None


def test_drop_last_trains_such_a_client(halves: tuple[DataSet, Partition]) -> None:
    data, partition = halves
    batch = len(partition.indices[0]) - 1
    spec = make_spec(M=2, partition="iid", batch=batch, K=2, order="fixed", drop_last=True)
    *_, (last, _) = Trainer(spec, data, partition, model=make_net).run(1)
    assert last.r == 1
