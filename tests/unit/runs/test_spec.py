"""Specs: presets, keys, hashes, the TOML file, the template and the schema."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from splitrelay.cli.main import app
from splitrelay.errors import InputError, UnknownName
from splitrelay.paper import CELLS
from splitrelay.paper.presets import PRESETS
from splitrelay.runs.build import compute_local_steps
from splitrelay.runs.spec import (
    KEYS,
    ORIGINAL_KEYS,
    OptimiserSpec,
    Spec,
    build_schema,
    format_template,
    load_spec,
    make_spec,
)


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
