"""Looking changes nothing: how often, on which thread, with how many engines."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from splitrelay.data.images import DataSet, ImageSet
from splitrelay.data.partition_schemes import draw_partition
from splitrelay.engine.thread_pool import Pool
from splitrelay.engine.torch_engine import SplitEngine
from splitrelay.errors import Diverged, InputError, OutOfRange, UnknownName
from splitrelay.models import get_model_spec
from splitrelay.objectives.batches import Batches
from splitrelay.objectives.losses import Loss
from splitrelay.objectives.network import DeviceImages, Network
from splitrelay.randomness import Purpose, rng
from splitrelay.runs.build import split_validation
from splitrelay.runs.spec import Spec, make_spec
from splitrelay.runs.trainer import Trainer
from tests.support.engines import ENGINES
from tests.support.error_fields import expect_error

BOTH = pytest.mark.parametrize("engine", ENGINES)


@pytest.fixture(scope="module")
def data() -> DataSet:
    generator = rng(3, Purpose.INSTANCES)
    centres = generator.integers(0, 256, (4, 1, 8, 8))

    def images(N: int) -> ImageSet:
        y = generator.integers(0, 4, N)
        x = np.clip(centres[y] + generator.normal(0, 40, (N, 1, 8, 8)), 0, 255).astype(np.uint8)
        return ImageSet(x, y, tuple("abcd"), (0.5,), (0.3,))

    return DataSet("blobs", images(240), images(700))


def looks(data: DataSet, trial: Spec = Spec(), R: int = 4, workers: int = 1, **more):  # noqa: B008
    partition = draw_partition("exdir", data.train.y, M=5, C=2, alpha=10.0, seed=1)
    learning = Trainer(trial, data, partition, workers=workers)
    return [(look, learning.algorithm.model(state)) for look, state in learning.run(R, **more)]


@BOTH
def test_looking_less_often_or_on_another_thread_changes_nothing(data: DataSet, engine: str) -> None:
    plain = make_spec(engine=engine)
    full = looks(data, plain)
    assert [look.r for look, _ in full] == [0, 1, 2, 3, 4]
    for seen in (
        looks(data, plain, every=4),
        looks(data, plain, overlap=False),
        looks(data, make_spec(placement="whole", engine=engine)),
    ):
        assert torch.equal(seen[-1][1], full[-1][1])
        assert seen[-1][0].score == full[-1][0].score
    assert [look.score for look, _ in looks(data, plain, overlap=False)] == [look.score for look, _ in full]


@BOTH
def test_more_engines_change_nothing(data: DataSet, engine: str) -> None:
    fedavg = make_spec(algorithm="fedavg", K=2, engine=engine)
    assert torch.equal(looks(data, fedavg)[-1][1], looks(data, fedavg, workers=3)[-1][1])


@BOTH
def test_it_learns(data: DataSet, engine: str) -> None:
    scores = [look.score for look, _ in looks(data, make_spec(engine=engine), R=12)]
    assert scores[0].accuracy < 0.5 < 0.9 < scores[-1].accuracy
    assert scores[-1].loss < scores[0].loss and len(scores[-1].per_class) == 4


@BOTH
def test_splitfed_v3_is_scored_for_all_and_for_each_client(data: DataSet, engine: str) -> None:
    partition = draw_partition("exdir", data.train.y, M=5, C=2, alpha=10.0, seed=1)
    learning = Trainer(make_spec(algorithm="splitfed-v3", S=3, order="sampled", engine=engine), data, partition)
    look, state = list(learning.run(1))[-1]
    own = learning.evaluate_clients(state)
    assert sorted(own) == sorted(learning.order(0)) and len({score.loss for score in own.values()}) == 3
    assert all(score != look.score for score in own.values())
    with expect_error(InputError, what="ssl", hint=True):
        Trainer(make_spec(), data, partition).evaluate_clients(None)


@BOTH
def test_bytes_are_counted_by_hand(data: DataSet, engine: str) -> None:
    """One visit of K steps: 64 floats an image at pool2, batches of up to 20, and the client's half both ways."""
    learning = Trainer(make_spec(K=3, S=1, engine=engine), data, draw_partition("iid", data.train.y, M=4, seed=1))
    list(learning.run(1))
    bottom = 4 * learning.model_spec.layout().ends[6] + 64
    assert learning.clients.up == bottom + 3 * (64 + 4 * 64 * 20 + 4 * 20 + 8) + (64 + 8)
    assert learning.clients.down == bottom + 3 * (64 + 4 * 64 * 20 + 8)


@BOTH
def test_an_infinite_loss_stops_the_run_with_its_name(data: DataSet, engine: str) -> None:
    with expect_error(Diverged, what=("round 0", "eta=1e+20"), hint=("eta", "clip")):
        looks(data, make_spec(eta=1e20, engine=engine))


def test_wrong_words_are_answered(data: DataSet) -> None:
    for trial, words in (
        (make_spec(algorithm="sls"), "ssl"),
        (make_spec(model="lenet"), "lenet5"),
        (make_spec(order="sample"), "sampled"),
    ):
        with expect_error(UnknownName, hint=words):
            looks(data, trial)
    for order in ("sampled", "fixed", "permutation", "consumed"):
        with expect_error(OutOfRange, value=9, limit="1 <= S <= M = 5"):
            looks(data, make_spec(S=9, order=order))
    with expect_error(UnknownName, kind="lenet-small", name="pool", hint="pool2"):
        looks(data, make_spec(cut="pool"))


@pytest.mark.parametrize(
    "wrong", [{"eta": -0.1}, {"clip": 0.0}, {"momentum": 1.0}, {"weight_decay": -1.0}, {"gamma": 0.0}, {"K": 0}]
)
def test_numbers_that_make_no_step_are_refused(wrong: dict[str, float]) -> None:
    ((key, value),) = wrong.items()
    with expect_error(OutOfRange, what=key, value=str(value), limit=key):
        make_spec(**wrong)


@pytest.mark.parametrize("words", [{"gamma": 0.5}, {"weighted": True}])
def test_what_an_algorithm_does_not_know_is_refused(data: DataSet, words: dict[str, float]) -> None:
    with expect_error(InputError, what="splitfed-v2", hint=next(iter(words))):
        looks(data, make_spec(algorithm="splitfed-v2", **words))


@pytest.mark.parametrize("name", ["fedseq", "sflg"])
def test_more_groups_than_clients_a_round_are_refused_before_anything_starts(data: DataSet, name: str) -> None:
    partition = draw_partition("exdir", data.train.y, M=5, C=2, alpha=10.0, seed=1)
    with expect_error(OutOfRange, value=4, limit="1 <= G <= 3"):
        Trainer(make_spec(algorithm=name, order="sampled", S=3, G=4), data, partition)


def summed(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, labels, reduction="sum")


def one_for_each_image(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, labels, reduction="none")


def of_other_shapes(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, labels[None])


def averaged(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.multi_margin_loss(outputs, labels)


@pytest.mark.parametrize(
    ("loss", "value"),
    [(summed, "the same images twice"), (one_for_each_image, "(4,)"), (of_other_shapes, "batch_size")],
)
def test_user_loss_must_be_a_mean(data: DataSet, loss: Loss, value: str) -> None:
    images, model = DeviceImages(data.train), get_model_spec("logistic", (1, 8, 8), 4)
    Network(model, images, [np.arange(9)], loss=averaged)
    with expect_error(InputError, what=loss.__name__) as error:
        Network(model, images, [np.arange(9)], loss=loss)
    assert value in str(error.value.value)


def test_algorithms_cut_where_the_engine_cuts_in_double_precision_too(data: DataSet) -> None:
    partition = draw_partition("iid", data.train.y, M=2, seed=1)
    learning = Trainer(make_spec(algorithm="splitfed-v2", dtype="float64"), data, partition)
    bottom, _ = learning.algorithm.cut.halves(learning.x0())
    assert len(bottom) == SplitEngine(learning.network, 1).boundary


def test_sizes_are_those_of_the_samples_that_train(data: DataSet) -> None:
    partition = draw_partition("iid", data.train.y, M=6, seed=1)
    assert (
        Trainer(make_spec(algorithm="fedavg", weighted=True, validation=0.25), data, partition).algorithm.sizes
        == [30] * 6
    )


def test_a_share_of_every_clients_samples_can_be_held_out(data: DataSet) -> None:
    partition = draw_partition("iid", data.train.y, M=6, seed=1)
    rest, kept = split_validation(partition.indices, 0.25, seed=1)
    assert [len(held) for held in rest] == [30] * 6 and len(kept) == 60
    assert sorted([*np.concatenate(rest), *kept]) == list(range(240))
    with expect_error(OutOfRange, value=1.0, limit="0 <= validation < 1"):
        split_validation(partition.indices, 1.0, seed=1)
    with expect_error(InputError, value=0.01, hint=("40", "0.025")):
        split_validation(partition.indices, 0.01, seed=1)


@BOTH
def test_clients_without_samples_are_never_drawn(data: DataSet, engine: str) -> None:
    division = draw_partition("iid", data.train.y, M=4, seed=1)
    gaps = type(division)((division.indices[0], np.array([], dtype=np.int64), *division.indices[1:]), division.labels)
    learning = Trainer(make_spec(engine=engine), data, gaps)
    assert {m for r in range(9) for m in learning.order(r)} == {0, 2, 3, 4}
    assert math.isfinite(list(learning.run(1))[-1][0].train_loss)


def test_a_client_without_samples_or_a_pool_without_engines_is_an_answer_not_a_wait(data: DataSet) -> None:
    with expect_error(InputError, hint="order"):
        Batches().positions(0, 3, rng(1, Purpose.BATCHES))
    with expect_error(OutOfRange, what="engines", value=0):
        Pool([])


def test_a_run_limits_torch_to_one_thread_and_restores_the_number(data: DataSet) -> None:
    partition = draw_partition("iid", data.train.y, M=4, seed=1)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        trainer = Trainer(make_spec(engine="reference"), data, partition)
        assert torch.get_num_threads() == 3
        first, second = trainer.run(1), Trainer(make_spec(engine="reference"), data, partition).run(1)
        next(first)
        next(second)
        assert torch.get_num_threads() == 1
        first.close()
        assert torch.get_num_threads() == 1  # the second run goes on
        second.close()
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
