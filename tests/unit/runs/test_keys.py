"""Keys of a spec: suggestions for common words, keys without effect, and keys that came later."""

import re
from pathlib import Path

import numpy as np
import pytest

from splitrelay.data import load
from splitrelay.data.images import DataSet
from splitrelay.data.partition import Partition
from splitrelay.errors import InputError, UnknownName
from splitrelay.runs.build import build_partition
from splitrelay.runs.spec import Spec, load_spec, make_spec, parse_spec
from splitrelay.runs.trainer import Trainer


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    path = tmp_path_factory.mktemp("own") / "own.npz"
    pixels = (np.arange(64)[None] * (np.arange(90)[:, None] % 3 + 3)) % 256
    np.savez(path, x=pixels.reshape(-1, 8, 8).astype(np.uint8), y=np.arange(90) % 3)
    return load(str(path))


def build_trainer(spec: Spec, data: DataSet) -> tuple[Trainer, Partition]:
    partition = build_partition(spec, data)
    return Trainer(spec, data, partition), partition


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("lr", "eta"),
        ("learning_rate", "eta"),
        ("LR", "eta"),
        ("epochs", "R"),
        ("batch_size", "batch"),
        ("clients", "M"),
        ("optimizer", "momentum"),
        ("device", "--device"),
    ],
)
def test_common_words_suggest_our_keys(word: str, key: str) -> None:
    with pytest.raises(UnknownName) as error:
        load_spec(None, [f"{word}=1"])
    assert error.value.hint is not None and key in re.findall(r"[\w-]+", error.value.hint)
    with pytest.raises(UnknownName) as error:
        parse_spec({"optimiser": {word: 1}})
    assert error.value.hint is not None and key in re.findall(r"[\w-]+", error.value.hint)


def test_shards_is_a_key_and_its_default_keeps_the_hash(data: DataSet) -> None:
    spec = make_spec(partition="shards", M=3, shards=4)
    assert build_partition(spec, data).settings["shards"] == 4
    assert make_spec(partition="shards", M=3, shards=2).hash == make_spec(partition="shards", M=3).hash != spec.hash


def test_second_run_of_a_trainer_starts_with_zero_bytes(data: DataSet) -> None:
    trainer, _ = build_trainer(make_spec(M=3, partition="iid", K=1, R=2), data)
    first, second = ([(row.r, row.up, row.down) for row, _ in trainer.run(2)] for _ in range(2))
    assert first == second
    assert first[0] == (0, 0, 0) and first[-1][1] > 0


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"algorithm": "fedavg", "G": 2}, "G"),
        ({"algorithm": "ssl", "G": 3}, "G"),
        ({"partition": "iid", "C": 3}, "C"),
        ({"partition": "iid", "alpha": 1.0}, "alpha"),
        ({"partition": "dirichlet", "C": 1}, "C"),
        ({"partition": "dirichlet", "form": "balanced"}, "form"),
        ({"partition": "exdir", "shards": 3}, "shards"),
        ({"draw": "full", "batch": 7}, "batch"),
        ({"draw": "replacement", "drop_last": True}, "drop_last"),
    ],
)
def test_key_without_effect_is_refused(data: DataSet, settings: dict[str, object], key: str) -> None:
    with pytest.raises(InputError) as error:
        build_trainer(make_spec(M=3, **settings), data)
    assert key in error.value.what.split() or f"Remove {key}" in (error.value.hint or "")


def test_stored_spec_with_a_key_without_effect_can_be_read(tmp_path: Path) -> None:
    file = tmp_path / "spec.toml"
    file.write_text(make_spec(partition="iid", C=3, G=2).to_toml() + "\n")
    assert load_spec(file).partition.C == 3


def test_drop_last_leaves_out_short_batches(data: DataSet) -> None:
    spec = make_spec(partition="iid", M=3, batch=13, drop_last=True)  # 10 * 3 = 30 samples per client: 13 + 13 + 4
    trainer, _ = build_trainer(spec, data)
    n = len(trainer.network.holdings[0])
    sizes = [len(at) for at in trainer.network.batches.positions(n, 5, np.random.default_rng(1))]  # noqa: TID251
    assert n % 13 and set(sizes) == {13}
    assert make_spec(drop_last=False).hash == make_spec().hash != make_spec(drop_last=True).hash


@pytest.mark.parametrize("engine", ["reference", "fast"])
def test_drop_last_gives_the_same_batches_on_both_engines(data: DataSet, engine: str) -> None:
    spec = make_spec(partition="iid", M=3, batch=13, K=4, drop_last=True, engine=engine)
    short = spec.model_copy(update={"optimiser": spec.optimiser.model_copy(update={"drop_last": False})})
    (*_, (dropped, _)), (*_, (kept, _)) = (list(build_trainer(each, data)[0].run(1)) for each in (spec, short))
    assert dropped.up > kept.up  # every step sends 13 images
