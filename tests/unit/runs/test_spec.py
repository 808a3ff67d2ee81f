"""Specs: presets, keys, hashes, the TOML file, the template, the schema, and the natural placement."""

import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import splitrelay.paper.presets  # noqa: F401  (makes presets available in specs)
from splitrelay.cli.main import app
from splitrelay.data import load
from splitrelay.data.images import DataSet
from splitrelay.data.partition import Partition
from splitrelay.errors import InputError, UnknownName
from splitrelay.paper import CELLS
from splitrelay.paper.presets import PRESETS
from splitrelay.reports.accuracy import build_accuracy_table
from splitrelay.reports.curves import draw_curves
from splitrelay.reports.runs_table import build_runs_table
from splitrelay.runs.build import build_partition, compute_local_steps
from splitrelay.runs.registry import ALGORITHMS
from splitrelay.runs.spec import (
    KEYS,
    ORIGINAL_KEYS,
    OptimiserSpec,
    Spec,
    build_schema,
    format_template,
    load_spec,
    make_spec,
    parse_spec,
)
from splitrelay.runs.trainer import Trainer
from tests.support.run_directories import write_run


def of(*words: str) -> Spec:
    return load_spec(None, words)


def test_the_papers_cell_in_the_papers_protocol() -> None:
    spec = of("preset=paper/cross-device-mnist-c1-k10")
    assert (spec.algorithm, spec.order, spec.S, spec.K, spec.R) == ("ssl", "consumed", 10, 10, 1000)
    assert (spec.partition.M, spec.partition.C, spec.partition.alpha, spec.partition.form) == (500, 1, 10, "paper")
    assert (spec.model.name, spec.optimiser.eta, spec.optimiser.clip, spec.weighted) == ("lenet5", 0.01, None, False)
    assert (spec.optimiser.weight_decay, spec.optimiser.batch, spec.optimiser.draw) == (1e-4, 20, "passes")


def test_fedavg_draws_and_has_its_own_rate() -> None:
    spec = of("preset=paper/cross-device-mnist-c2-k20", "algorithm=fedavg")
    assert (spec.order, spec.optimiser.eta, spec.optimiser.clip, spec.R) == ("sampled", 0.05, 10, 400)


def test_the_authors_protocol() -> None:
    words = ("preset=paper/cross-device-mnist-c1-k10", "protocol=authors")
    ssl, fedavg = of(*words), of(*words, "algorithm=fedavg")
    assert (ssl.order, fedavg.order) == ("sampled", "sampled")
    assert (ssl.partition.form, ssl.weighted, fedavg.weighted) == ("balanced", False, True)


def test_across_silos_everybody_takes_part() -> None:
    assert of("preset=paper/cross-silo-cifar10-c1-k5").order == "permutation"
    assert of("preset=paper/cross-silo-cifar10-c1-k5", "algorithm=fedavg").optimiser.eta == 0.5


def test_words_go_on_top_of_a_preset_and_a_file_between(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('preset = "paper/cross-device-mnist-c2-k10"\nR = 7\nK = 3\n')
    spec = load_spec(tmp_path / "a.toml", ["K=4", "clip=none"])
    assert (spec.R, spec.K, spec.optimiser.clip, spec.partition.M) == (7, 4, None, 500)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("algorithm", ["ssl", "fedavg"])
def test_every_preset_is_a_spec(name: str, algorithm: str) -> None:
    assert of(f"preset={name}", f"algorithm={algorithm}").S == 10


def test_there_is_a_preset_for_every_cell_and_the_clipping_figure() -> None:
    assert len(CELLS) == 23 and len(PRESETS) == 23 + 8
    assert of("preset=paper/clipping-c1-max10-above").optimiser.eta == 0.03
    assert of("preset=paper/clipping-c2-free-best").optimiser.clip is None


def test_per_half_in_short() -> None:
    step = of("clip=per-half").optimiser
    assert (step.clip, step.per_half) == (10, True)


def test_the_template_is_the_default_spec() -> None:
    assert Spec.model_validate(tomllib.loads(format_template("x"))) == Spec()


def test_new_writes_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["new", "first"]).exit_code == 0
    before = (tmp_path / "first.toml").read_text()
    error = CliRunner().invoke(app, ["new", "first"]).exception
    assert isinstance(error, InputError)
    assert (tmp_path / "first.toml").read_text() == before
    assert load_spec(tmp_path / "first.toml") == Spec()


def test_the_schema_has_every_key() -> None:
    schema, names = build_schema(), set()
    for name, field in schema["properties"].items():
        inner = schema["$defs"].get(field.get("$ref", "").rpartition("/")[2], {}).get("properties")
        names |= {f"{name}.{key}" for key in inner} if inner else {name}
    assert names == {key.path for key in KEYS.values()}
    assert schema["additionalProperties"] is False


def test_every_key_has_a_description_and_one_short_name() -> None:
    assert all(key.description for key in KEYS.values())
    assert KEYS["eta"].path == "optimiser.eta" and KEYS["data"].path == "data.name"
    assert KEYS["seed"].path == "seed" and KEYS["partition.seed"].path == "partition.seed"


@pytest.mark.parametrize("name", ["plain", "caf\u00e9", "\U0001f600", "\x7f", 'quote"and\\\\slash', "tab\t"])
def test_a_spec_is_equal_after_its_file_is_read(tmp_path: Path, name: str) -> None:
    spec = of("preset=paper/cross-device-mnist-c2-k10", "cut=3", "seed=9", f"data=/sets/{name}")
    (tmp_path / "spec.toml").write_text(spec.to_toml(), encoding="utf-8")
    assert load_spec(tmp_path / "spec.toml") == spec
    assert load_spec(tmp_path / "spec.toml").hash == spec.hash != of("seed=9").hash


def test_make_spec_takes_the_short_names_of_keys() -> None:
    assert make_spec(algorithm="fedavg", eta=0.3, M=20) == of("algorithm=fedavg", "eta=0.3", "M=20")
    with pytest.raises(UnknownName):
        make_spec(learning_rate=0.3)


class LaterOptimiser(OptimiserSpec):
    nesterov: bool = False


class LaterSpec(Spec):
    """A spec with two keys that were added later."""

    channel: str | None = None
    optimiser: LaterOptimiser = LaterOptimiser()


def test_a_new_key_with_its_default_does_not_change_the_hash() -> None:
    later = LaterSpec()
    assert (later.hash, later.identity, later.digest) == (Spec().hash, Spec().identity, Spec().digest)
    assert LaterSpec(channel="int8").hash != Spec().hash
    assert LaterSpec(optimiser=LaterOptimiser(nesterov=True)).hash != Spec().hash


def test_original_keys_are_always_part_of_the_hash() -> None:
    """The set is frozen: all keys of the first version, and never a later one."""
    assert len(ORIGINAL_KEYS) == 36 and set(Spec().flatten()) >= ORIGINAL_KEYS


def test_presets_are_listed() -> None:
    rows = json.loads(CliRunner().invoke(app, ["presets", "cross-silo", "--format", "json"]).output)
    assert len(rows) == 8 and rows[0]["preset"] == "paper/cross-silo-cifar10-c1-k5"


def test_a_preset_without_a_provider_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("splitrelay.runs.presets._provider", [])
    with pytest.raises(InputError) as caught:
        load_spec(None, ["protocol=paper"])
    assert caught.value.value == "paper" and caught.value.hint


def test_a_list_of_local_steps(tmp_path: Path) -> None:
    spec = of("M=3", "tau=3+5+2")
    assert spec.tau == (3, 5, 2) == make_spec(M=3, tau=[3, 5, 2]).tau
    assert (spec.largest_K, spec.mean_K) == (5, 10 / 3)
    (tmp_path / "a.toml").write_text(spec.to_toml())
    assert load_spec(tmp_path / "a.toml") == spec and spec.hash != of("M=3").hash
    assert spec.hash != of("M=3", "tau=3+2+5").hash


@pytest.mark.parametrize("text", ["3+5", "3+5+0", "3+5+x", "3,5,2", "", "3+5+-2", "3+5+2.5"])
def test_a_list_of_local_steps_has_a_number_for_each_client(text: str) -> None:
    with pytest.raises(InputError):
        of("M=3", f"tau={text}")


def test_the_keys_of_the_output_keep_old_hashes() -> None:
    assert of("output=last", "output_decay=0").hash == of().hash != of("output=average").hash


def test_clients_make_the_steps_of_the_list() -> None:
    holdings = [np.arange(n) for n in (4, 5, 6)]
    assert compute_local_steps(of("M=3", "tau=3+5+2"), holdings) == (3, 5, 2)
    with pytest.raises(InputError) as caught:  # the data may decide how many clients there are
        compute_local_steps(of("M=3", "tau=3+5+2"), holdings[:2])
    assert caught.value.value == 3


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


WHOLE = ("fedavg", "fedprox", "fedavgm", "fedadam", "scaffold", "fedseq")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_default_placement_is_the_natural_one(algorithm: str) -> None:
    natural = "whole" if algorithm in WHOLE else "cut"
    assert make_spec(algorithm=algorithm).placement == natural
    assert make_spec(algorithm=algorithm, placement="auto").hash == make_spec(algorithm=algorithm).hash
    assert make_spec(algorithm=algorithm).hash == make_spec(algorithm=algorithm, placement=natural).hash


def test_template_takes_the_placement_of_another_algorithm(tmp_path: Path) -> None:
    (tmp_path / "first.toml").write_text(format_template("first"))
    assert load_spec(tmp_path / "first.toml", ["algorithm=fedavg"]).placement == "whole"
    assert load_spec(tmp_path / "first.toml").placement == "cut"


def test_stored_spec_keeps_its_placement_and_its_hash(tmp_path: Path) -> None:
    spec = make_spec(algorithm="fedavg", placement="cut")
    (tmp_path / "spec.toml").write_text(spec.to_toml() + "\n")
    assert 'placement = "cut"' in spec.to_toml()
    assert load_spec(tmp_path / "spec.toml") == spec
    assert load_spec(tmp_path / "spec.toml").hash == "ec172a2d200d"  # as before the default was auto


def test_presets_keep_the_placement_of_their_records() -> None:
    assert load_spec(None, ["preset=paper/cross-device-mnist-c1-k10", "algorithm=fedavg"]).placement == "cut"


def test_per_half_clipping_of_fedavg_needs_a_cut() -> None:
    with pytest.raises(InputError):
        make_spec(algorithm="fedavg", clip="per-half")
    assert make_spec(algorithm="fedavg", clip="per-half", placement="cut").optimiser.per_half


def test_fedavg_over_a_cut_is_called_splitfed_v1_where_bytes_are_shown(tmp_path: Path) -> None:
    cut = write_run(tmp_path / "cut", [0.1, 0.5], "algorithm=fedavg", "placement=cut")
    whole = write_run(tmp_path / "whole", [0.1, 0.6], "algorithm=fedavg", "placement=whole")
    table = build_runs_table([cut, whole])
    assert [row[0] for row in table.rows] == ["SplitFed V1", "fedavg"]
    assert [record["algorithm"] for record in table.records] == ["fedavg", "fedavg"]
    figure = draw_curves([cut], by_bytes=True).figure
    labels = {text.get_text() for legend in figure.legends for text in legend.get_texts()}
    assert any("SplitFed V1" in label for label in labels) and not any("FedAvg" in label for label in labels)


def test_tables_and_figures_of_both_placements_call_the_cut_one_splitfed_v1(tmp_path: Path) -> None:
    cut = write_run(tmp_path / "cut", [0.1, 0.5], "algorithm=fedavg", "placement=cut")
    whole = write_run(tmp_path / "whole", [0.1, 0.6], "algorithm=fedavg", "placement=whole")
    heads = [head.name for head in build_accuracy_table([cut, whole]).columns]
    assert heads[-2:] == ["FedAvg", "SplitFed V1"]
    assert [head.name for head in build_accuracy_table([cut]).columns][-1] == "FedAvg"
    figure = draw_curves([cut, whole]).figure
    labels = {text.get_text() for legend in figure.legends for text in legend.get_texts()}
    assert {label.partition(",")[0] for label in labels} == {"FedAvg", "SplitFed V1"}
