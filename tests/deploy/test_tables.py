"""Deployments on tables and arrays: equal to the simulation to the bit, and a file that does not fit is named."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from splitrelay.data.tables import Column, TableTransform, read_table
from splitrelay.deploy.backend import Shape
from splitrelay.deploy.client_data import compute_digest, describe_data, read_source
from splitrelay.deploy.handshake import AgreedSpec, build_terms, check_agreed, read_agreed_spec, read_spec, write_terms
from splitrelay.deploy.handshake import compute_digest as compute_terms_digest
from splitrelay.deploy.lease_limits import compute_disclosure, derive_allowed_visits
from splitrelay.deploy.sample_terms import (
    build_format,
    check_columns,
    convert_samples,
    describe_samples,
    get_columns,
    read_sample_terms,
)
from splitrelay.errors import InputError
from splitrelay.randomness import Purpose, rng
from splitrelay.runs.build import load_data, resolve_spec
from splitrelay.runs.spec import DataSpec, Spec, make_spec
from tests.support.deployment import LocalDeployment, remove_times, simulate_run
from tests.support.error_fields import expect_error
from tests.support.small_datasets import build_columns, write_table

TABLE = {
    "label": "died", "client": "ward", "categorical": "sex", "ignore": "days", "model": "mlp", "metrics": "auroc,f1",
}  # fmt: skip
REAL = {
    "label": "days", "client": "ward", "categorical": "sex", "ignore": "died", "target": "real", "model": "mlp",
    "loss": "squared-error", "metrics": "r2",
}  # fmt: skip
ARRAYS = {"read_as": "samples", "partition": "iid", "M": 3, "model": "mlp"}
WAYS = {
    "classes": {**TABLE, "clip": 1.0},
    "whole": {**TABLE, "algorithm": "fedavg"},
    "real": {**REAL, "dtype": "float64"},
    "several labels": {**ARRAYS, "target": "multi-label", "loss": "bce", "metrics": "auroc"},
}


LIES = ({"name": "age"}, {"name": []}, {"name": 5}, {"mean": 10**400}, {"std": 10**400}, {"std": 0}, {"fill": 10**400})


def make(folder: Path, **settings) -> Spec:
    """Return the spec of a small table, or of arrays with three labels."""
    if "label" in settings:
        columns = build_columns()
        columns["age"][3] = ""  # every host must replace it by the same number
        data = write_table(folder / "wards.csv", columns)
        settings["missing"] = "median"
    else:
        data = folder / "many.npz"
        x = rng(1, Purpose.INSTANCES).normal(size=(60, 4))
        np.savez(data, x=x, y=(x[:, :3] > 0).astype(int))
    common = {"data": str(data), "R": 2, "K": 2, "eta": 0.05, "batch": 8, "engine": "reference"}
    return resolve_spec(make_spec(**{**common, **settings}))[0]


@pytest.mark.parametrize("way", WAYS)
def test_deployed_is_simulated(way: str, tmp_path: Path) -> None:
    spec = make(tmp_path, **WAYS[way])
    expected = simulate_run(spec, tmp_path / "simulated")
    stage = LocalDeployment(spec, tmp_path)
    for m in stage.partition.clients:
        stage.join(m)
    rows = stage.play()
    assert stage.serving.directory.model.read_bytes() == expected.model.read_bytes()
    assert json.dumps(remove_times(rows)) == json.dumps(remove_times(expected.read_rows()))
    assert set(stage.words.values()) == {"all rounds are done"}


@pytest.fixture
def offered(tmp_path: Path):
    spec = make(tmp_path, **TABLE)
    return spec, build_terms(spec, load_data(spec.data))


def test_the_statistics_are_part_of_the_terms(offered, tmp_path: Path) -> None:
    spec, terms = offered
    assert read_spec(terms) == spec
    samples = read_sample_terms(terms)
    assert samples == describe_samples(load_data(spec.data).train)
    other = replace(terms, samples=terms.samples.replace('"mean": ', '"mean": 1'))
    with expect_error(InputError, limit=terms.spec_hash):
        read_spec(other)
    (tmp_path / "terms.toml").write_text(write_terms(terms))
    agreed = read_agreed_spec(tmp_path / "terms.toml")
    check_agreed(agreed, spec, terms)
    with expect_error(InputError):
        check_agreed(agreed, spec, other)
    with expect_error(InputError):
        check_agreed(agreed, spec, replace(terms, samples=""))
    check_agreed(AgreedSpec(spec), spec, terms)


def bring(offered, columns: dict, folder: Path):
    spec, terms = offered
    file = write_table(folder / "own.csv", columns)
    return convert_samples(file, read_source(file), spec, terms)


def test_a_hospital_brings_its_own_file(offered, tmp_path: Path) -> None:
    columns = build_columns(30)
    del columns["ward"], columns["days"]
    own = bring(offered, dict(reversed(columns.items())), tmp_path)  # the order of the columns does not matter
    assert (len(own), own.columns, own.classes) == (30, ("age", "pressure", "sex=f", "sex=m"), ("no", "yes"))
    data = load_data(offered[0].data)
    assert own.transform == data.train.transform
    text = describe_data("client 0", own)
    assert "30 samples" in text
    digests = {compute_digest(part, salt=b"s", secret=b"", client=0) for part in (own, own.part(np.arange(29)))}
    assert len(digests) == 2


@pytest.mark.parametrize(
    "change, named",
    [
        (lambda c: c.pop("age"), "age"),
        (lambda c: c.pop("died"), "died"),
        (lambda c: c.update(sex=["x"] * 30), "x"),
        (lambda c: c.update(died=["maybe"] * 30), "maybe"),
        (lambda c: c.update(age=["old"] * 30), "age"),
    ],
    ids=["column", "label", "category", "class", "type"],
)
def test_a_file_that_does_not_fit_is_named(offered, change, named: str, tmp_path: Path) -> None:
    columns = build_columns(30)
    change(columns)
    with expect_error(InputError) as caught:
        bring(offered, columns, tmp_path)
    assert named in str(caught.value)


def test_arrays_of_another_shape_are_refused(tmp_path: Path) -> None:
    spec = make(tmp_path, **WAYS["several labels"])
    terms = build_terms(spec, load_data(spec.data))
    file = tmp_path / "own.npz"
    for x, y in ((np.zeros((5, 3)), np.zeros((5, 3))), (np.zeros((5, 4), int), np.zeros((5, 3)))):
        np.savez(file, x=x, y=y)
        with expect_error(InputError, limit="float32 (4,)"):
            convert_samples(file, None, spec, terms)
    with expect_error(InputError):
        convert_samples(write_table(tmp_path / "own.csv"), None, spec, terms)


@pytest.mark.parametrize(
    "text",
    ["[]", "{}", '{"inputs": []}', "x" * 9, "[" * 5000],
)
def test_terms_that_cannot_be_read_are_refused(offered, text: str) -> None:
    with expect_error(InputError):
        read_sample_terms(replace(offered[1], samples=text))


@pytest.mark.parametrize(
    "name, value",
    [
        ("outputs", 0), ("outputs", 10**9), ("outputs", math.inf), ("outputs", 2**20), ("target", "gold"),
        ("width", -1), ("inputs", [["float32", [3]]]), ("inputs", [["float32", [math.inf]]]),
        *(("transform", lie) for lie in LIES),
    ],
)  # fmt: skip
def test_terms_outside_their_limits_are_refused(offered, name: str, value: object) -> None:
    spec, terms = offered
    content = {**json.loads(terms.samples), name: value}
    if name == "transform":
        content["transform"] = [{"name": "age"}, {"name": "pressure"}, {"name": "height"}, {"name": "weight", **value}]
    terms = replace(terms, samples=json.dumps(content))
    with expect_error(InputError):
        read_spec(replace(terms, spec_hash=compute_terms_digest(terms, spec)))


@pytest.mark.parametrize(
    "lie",
    [
        {"name": "days"}, {"name": "died"}, {"name": "ward"}, {"name": "sex", "categories": []},
        {"name": "age", "categories": ["40"]},
    ],
    ids=lambda lie: lie["name"],
)  # fmt: skip
def test_a_server_gets_no_column_that_the_clients_spec_leaves_out(offered, lie: dict, tmp_path: Path) -> None:
    """A plain spec does not fix the transform, and the digest of these terms fits."""
    spec, terms = offered
    content = {**json.loads(terms.samples), "transform": [lie], "inputs": [["float32", [1]]]}
    terms = replace(terms, samples=json.dumps(content))
    terms = replace(terms, spec_hash=compute_terms_digest(terms, spec))
    check_agreed(AgreedSpec(spec), read_spec(terms), terms)
    disclosure = compute_disclosure(
        spec, Shape(1, 1, 2, (1,), 1), derive_allowed_visits(spec, 0), 9, get_columns(terms)
    )
    assert any(lie["name"] in line for line in disclosure.describe())
    with expect_error(InputError, value=lie["name"]):
        bring((spec, terms), {**build_columns(30), "ward": range(30)}, tmp_path)  # a ward may have a number as its name


@pytest.mark.parametrize(
    "settings, lie",
    [
        ({"missing": "refuse"}, {"name": "age", "fill": 40.0}),
        ({"missing": "median"}, {"name": "age", "std": 9.0}),
        ({"standardize": False, "missing": "median"}, {"name": "age", "std": 1e-9, "fill": 40.0}),
        ({"standardize": False, "missing": "median"}, {"name": "age", "mean": 1.0, "fill": 40.0}),
    ],
    ids=["fill", "no fill", "std", "mean"],
)
def test_a_server_gets_no_numbers_that_the_clients_spec_rules_out(settings: dict, lie: dict) -> None:
    form = build_format(DataSpec(label=("died",), **settings))
    check_columns(TableTransform((Column("age", fill=40.0 if "median" in settings.values() else None),)), form, "wards")
    with expect_error(InputError, value="age"):
        check_columns(TableTransform((Column(**lie),)), form, "wards")


def test_exported_rows_keep_their_text(tmp_path: Path) -> None:
    spec = make(tmp_path, **TABLE)
    stage = LocalDeployment(spec, tmp_path)
    table = read_table(tmp_path / "wards.csv")
    written = read_table(tmp_path / "data" / "client-0000" / "data.csv")
    assert list(written.columns) == list(table.columns)
    assert set(written.get("age").tolist()) <= set(table.get("age").tolist())
    assert len(written) == len(stage.partition.indices[0])


@pytest.mark.parametrize("settings", [TABLE, REAL], ids=["classes", "real"])
def test_the_evaluator_of_a_sealed_run_reports_the_metrics(settings: dict, tmp_path: Path) -> None:
    spec = make(tmp_path, **settings, route="peer-to-peer")
    expected = simulate_run(spec, tmp_path / "simulated")
    stage = LocalDeployment(spec, tmp_path, keys=True)
    for m in stage.partition.clients:
        test = {"test": tmp_path / "data" / "test.csv", "keep": tmp_path / "model"} if m == spec.evaluator else {}
        stage.join(m, **test)
    rows = stage.play()
    assert json.dumps(remove_times(rows)) == json.dumps(remove_times(expected.read_rows()))
    assert (tmp_path / "model").read_bytes() == expected.model.read_bytes()


MODEL = """
from torch import nn


def make():
    return nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20))
"""


def test_tokens_over_a_cut_are_simulated_and_deployed_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    x = rng(2, Purpose.INSTANCES).integers(0, 20, (45, 6))
    y = np.where(np.arange(6) < 4, (x + 1) % 20, -100)  # the next token; the last two positions do not count
    np.savez("text.npz", x=x, y=y)
    settings = {
        "data": "text.npz", "read_as": "samples", "target": "tokens", "loss": "token-cross-entropy", "eta": 1.0,
        "metrics": "perplexity", "partition": "iid", "M": 3, "model": "token_model:make", "cut": 1, "R": 2, "K": 3,
    }  # fmt: skip
    spec, whole = (resolve_spec(make_spec(**settings, placement=one))[0] for one in ("cut", "whole"))
    expected = simulate_run(spec, tmp_path / "simulated")
    assert simulate_run(whole, tmp_path / "whole").model.read_bytes() == expected.model.read_bytes()
    stage = LocalDeployment(spec, tmp_path)
    for m in stage.partition.clients:
        stage.join(m)
    rows = stage.play()
    assert stage.serving.directory.model.read_bytes() == expected.model.read_bytes()
    assert json.dumps(remove_times(rows)) == json.dumps(remove_times(expected.read_rows()))
    assert rows[-1]["test_perplexity"] < rows[0]["test_perplexity"]
