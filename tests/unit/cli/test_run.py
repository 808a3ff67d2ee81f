"""`splitrelay run`, `evaluate` and `model` on a small data set: output, devices, and nothing left by an invalid run."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file

from splitrelay.cli.main import app
from splitrelay.cli.spec_arguments import list_spec_keys
from splitrelay.errors import Diverged, InputError, OutOfRange, SplitrelayError, UnknownName
from splitrelay.models import get_model_spec
from splitrelay.randomness import Purpose, rng
from splitrelay.runs.spec import KEYS
from tests.support.command_line import invoke


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generator = rng(4, Purpose.INSTANCES)
    y = np.arange(300) % 3
    x = np.clip(80 * y[:, None, None] + generator.normal(0, 30, (300, 8, 8)) + 40, 0, 255).astype(np.uint8)
    path = tmp_path_factory.mktemp("own") / "own.npz"
    np.savez(path, x=x, y=y)
    return path


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # runs are kept in the current folder unless said


def asked(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def refused(*words: str) -> SplitrelayError:
    error = asked(*words).exception
    assert isinstance(error, SplitrelayError)
    return error


def test_a_run_is_kept_and_plain_torch_loads_it(own: Path, tmp_path: Path) -> None:
    result = asked(
        "run", f"data={own}", "M=5", "partition=iid", "R=6", "K=4", "eta=0.2", "--out", str(tmp_path / "run")
    )
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in (tmp_path / "run" / "rounds.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == list(range(7))
    assert rows[0]["bytes_up"] == 0 < rows[1]["bytes_up"] < rows[-1]["bytes_up"]
    net = get_model_spec("lenet-small", (1, 8, 8), 3).net()
    net.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))
    score = json.loads(asked("evaluate", str(tmp_path / "run"), "--format", "json").output)
    assert score["accuracy"] == rows[-1]["test_accuracy"] and score["loss"] == rows[-1]["test_loss"]
    assert score["accuracy"] > 0.9


@pytest.mark.parametrize(
    "words",
    [
        ("model=mlp", "cut=1", "loss=mse", "eta=0.01"),
        ("dtype=float64", "cut=pool1"),
        ("engine=reference", "model=logistic"),
        ("validation=0.3", "model=logistic"),
    ],
)
def test_a_run_is_scored_by_its_own_words_to_the_bit(own: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    run = str(tmp_path / "run")
    assert asked("run", f"data={own}", "M=5", "C=1", "R=1", *words, "--out", run).exit_code == 0
    last = json.loads((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()[-1])
    for part in ("test", "validation") if "validation=0.3" in words else ("test",):
        score = json.loads(asked("evaluate", run, "--part", part, "--format", "json").output)
        assert (score["loss"], score["accuracy"]) == (last[f"{part}_loss"], last[f"{part}_accuracy"])


def test_words_come_before_the_runs_and_a_file_tells_its_precision(own: Path, tmp_path: Path) -> None:
    asked("run", f"data={own}", "M=5", "C=1", "R=1", "dtype=float64", "--out", str(tmp_path / "run"))
    file = str(tmp_path / "run" / "model.safetensors")
    whole, alone = (
        json.loads(asked("evaluate", path, "--data", str(own), "--part", "train", "--format", "json").output)
        for path in (str(tmp_path / "run"), file)
    )
    assert whole == alone
    other = json.loads(asked("evaluate", str(tmp_path / "run"), "--loss", "mse", "--format", "json").output)
    assert other["loss"] != json.loads(asked("evaluate", str(tmp_path / "run"), "--format", "json").output)["loss"]
    assert "kept from training" in str(refused("evaluate", str(tmp_path / "run"), "--part", "validation"))


def test_the_same_run_is_the_same_file(own: Path, tmp_path: Path) -> None:
    for name, more in (("a", ()), ("b", ("placement=whole", "every=3", "--workers", "2")), ("c", ("seed=5",))):
        asked("run", f"data={own}", "algorithm=fedavg", "M=5", "C=1", "R=2", *more, "--out", str(tmp_path / name))
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in "abc"]
    assert files[0] == files[1] != files[2]


def test_a_run_can_start_from_another(own: Path, tmp_path: Path) -> None:
    asked("run", f"data={own}", "M=5", "C=1", "R=3", "--out", str(tmp_path / "first"))
    result = asked(
        "run", f"data={own}", "M=5", "C=1", "R=1", f"init={tmp_path}/first/model.safetensors", "--format", "json"
    )
    first = (tmp_path / "first" / "rounds.jsonl").read_text().splitlines()[-1]
    assert json.loads(result.stdout)[0]["test_loss"] == json.loads(first)["test_loss"]


def test_a_diverging_run_keeps_what_came_before(own: Path, tmp_path: Path) -> None:
    error = refused("run", f"data={own}", "eta=1e25", "R=3", "--out", str(tmp_path / "run"))
    assert isinstance(error, Diverged) and "Lower eta" in str(error)
    assert len((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize("loss", ["mse", "cross-entropy"])
@pytest.mark.parametrize(
    "algorithm", ["ssl", "splitfed-v2", "splitfed-v3", "sflg", "scaffold", "fedseq", "minibatch-sgd"]
)
def test_every_algorithm_and_loss_runs(own: Path, algorithm: str, loss: str) -> None:
    groups = ["G=2"] if algorithm in ("sflg", "fedseq") else []
    result = asked("run", f"data={own}", f"algorithm={algorithm}", f"loss={loss}", "M=4", "R=1", "K=2", *groups)
    assert result.exit_code == 0, result.output


def test_validation_is_scored_on_what_clients_kept_back(own: Path) -> None:
    result = asked("run", f"data={own}", "validation=0.5", "partition=iid", "M=4", "R=1", "--format", "csv")
    assert result.exit_code == 0 and len(result.stdout.splitlines()) == 3


@pytest.mark.parametrize(
    ("words", "kind", "says"),
    [
        (("algorithm=sls",), UnknownName, "Did you mean 'ssl'?"),
        (("modl=mlp",), UnknownName, "Did you mean 'model'?"),
        (("cut=pool9",), UnknownName, "Did you mean"),
        (("cut=99",), OutOfRange, "1 <= cut <= 9"),
        (("S=11", "order=sampled"), InputError, "S = 11"),
        (("K=0",), OutOfRange, "K >= 1"),
        (("clip=-1",), OutOfRange, "clip > 0"),
        (("per_half=true", "clip=1", "placement=whole"), InputError, "placement=cut"),
        (("form=best",), InputError, "needs 'paper' or 'balanced'; got 'best'"),
        (("eta=fast",), InputError, "needs a number; got 'fast'"),
        (("K=1.5",), InputError, "needs a whole number"),
        (("--device", "gpu"), UnknownName, "unknown device 'gpu'"),
        (("--device", "cuda"), InputError, "'cuda'"),
        (("loss=huber",), UnknownName, "unknown loss"),
        (("model=nowhere:net",), InputError, "No module named 'nowhere'"),
        (("init=nothing.safetensors",), InputError, "no weights at nothing.safetensors"),
        (("partition=iit",), UnknownName, "Did you mean 'iid'?"),
        (("M=2", "C=1"), InputError, "cannot hold all 3 classes"),
        (("M=10", "M=12"), InputError, "M is given twice; got M=10 M=12. Give it once."),
        (("partition.M=10", "M=10"), InputError, "M is given twice; got partition.M=10 M=10."),
        (("a.toml", "b.toml"), InputError, "run takes one spec; got a.toml b.toml"),
    ],
)
def test_wrong_words_get_one_line(own: Path, words: tuple[str, ...], kind: type, says: str) -> None:
    error = refused("run", f"data={own}", *words)
    assert isinstance(error, kind) and says in str(error) and "\n" not in str(error)


def test_of_a_device_that_is_none_nothing_else_is_said(own: Path) -> None:
    result = asked("run", f"data={own}", "model=lenet5", "--device", "gpu")
    assert isinstance(result.exception, UnknownName) and result.output == ""


def test_the_help_lists_every_key_of_the_spec() -> None:
    assert [key.name for key in list_spec_keys()] == list(KEYS)


def test_a_word_goes_on_top_of_a_file_and_of_a_preset(tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text("K = 3\n[partition]\nM = 7\n")
    for words in ([str(tmp_path / "spec.toml")], ["preset=paper/cross-device-mnist-c1-k10"]):
        printed = tomllib.loads(asked("run", *words, "M=12", "--print-spec").stdout)
        assert printed["partition"]["M"] == 12


def test_a_printed_spec_runs_as_it_is(own: Path, tmp_path: Path) -> None:
    printed = asked("run", f"data={own}", "M=5", "C=1", "R=2", "eta=0.3", "--print-spec")
    (tmp_path / "spec.toml").write_text(printed.output)
    for name, words in (
        ("file", [str(tmp_path / "spec.toml")]),
        ("words", [f"data={own}", "M=5", "C=1", "R=2", "eta=0.3"]),
    ):
        assert asked("run", *words, "--out", str(tmp_path / name)).exit_code == 0
    assert (tmp_path / "file/model.safetensors").read_bytes() == (tmp_path / "words/model.safetensors").read_bytes()
    assert (tmp_path / "file/spec.toml").read_text() == printed.output


def test_a_model_is_shown_with_what_each_cut_sends() -> None:
    shown = json.loads(asked("model", "lenet5", "--format", "json").output)
    assert shown["parameters"] == 44_426
    usual = next(cut for cut in shown["cuts"] if cut["usual"])
    assert usual["after"] == "pool2" and usual["smashed"] == 256 and usual["bottom_parameters"] == 2572
    assert shown["layers"][0]["flops"] == 6 * 24 * 24 * 2 * 25
    text = asked("model", "vgg11").output
    assert "9,750,922" in text and "pool3 *" in text and "9.85%" in text


def test_layers_without_names_are_shown_with_the_number_to_cut_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["from torch import nn", "", "", "def net():", "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))"]
    (tmp_path / "without_names.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    shown = asked("model", "without_names:net", "shape=1x8x8").output
    assert "  1  (Flatten) *" in shown and "takes the number of the client's layers" in shown


def test_weights_of_another_model_are_refused(own: Path, tmp_path: Path) -> None:
    asked("run", f"data={own}", "M=5", "C=1", "R=1", "--out", str(tmp_path))
    refused("evaluate", str(tmp_path), "--data", str(own), "--model", "mlp")
    (tmp_path / "junk.safetensors").write_bytes(b"junk")
    assert "junk.safetensors" in str(refused("evaluate", str(tmp_path / "junk.safetensors"), "--data", str(own)))


def test_double_precision_is_double() -> None:
    assert get_model_spec("mlp", (1, 8, 8), 3).x0(1, torch.float64).dtype == torch.float64


def test_validation_stands_beside_the_test_score(own: Path) -> None:
    words = ("run", f"data={own}", "partition=iid", "M=4", "R=1", "--format", "json")
    plain, kept = (json.loads(asked(*words, *more).stdout)[-1] for more in ((), ("validation=0.5",)))
    assert "validation_accuracy" not in plain and 0 <= kept["validation_accuracy"] <= 1
    assert len(kept["test_per_class"]) == 3


def test_own_steps_follow_the_samples(own: Path) -> None:
    words = ("run", f"data={own}", "M=4", "partition=dirichlet", "alpha=1", "R=1", "--format", "json")
    same, proportional = (json.loads(asked(*words, more).stdout)[-1]["bytes_up"] for more in ("tau=same", "K=9"))
    own_steps = json.loads(asked(*words, "tau=proportional").stdout)[-1]["bytes_up"]
    assert same != own_steps < proportional


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("route=peer-to-peer", "algorithm=fedavg"), "fedavg"),
        (("route=peer-to-peer", "gamma=2"), "gamma = 2 combines"),
        (("route=peer-to-peer", "placement=whole"), "needs placement=cut"),
        (("clip=per-half", "placement=whole"), "placement=cut"),
        (("evaluator=10",), "evaluator = 10"),
        (("preset=paper/cross-device-mnist-c1-k11",), "Did you mean 'paper/cross-device-mnist-c1-k10'?"),
        (("preset=paper/cross-device-mnist-c1-k10", "algorithm=scaffold"), "the paper has no rate for scaffold"),
        (("protocol=papers",), "Did you mean 'paper'?"),
        (("tau=equal",), "tau"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    assert says in str(refused("run", *words))
    assert list(tmp_path.iterdir()) == []


def test_route_changes_no_bit(own: Path, tmp_path: Path) -> None:
    for route in ("centralized", "peer-to-peer"):
        asked("run", f"data={own}", "M=4", "C=1", "R=2", f"route={route}", "--out", str(tmp_path / route))
    files = [(tmp_path / route / "model.safetensors").read_bytes() for route in ("centralized", "peer-to-peer")]
    assert files[0] == files[1]


@pytest.mark.parametrize(
    "command",
    [
        "run R=1 K=1 M=5 --out {folder}/new",
        "sweep R=1 K=1 M=5 eta=0.1,0.2 --out {folder}/new",
        "grid R=1 K=1 M=5 eta=0.1,0.2 --out {folder}/new",
        "evaluate {folder}/run",
        "verify {folder}/run",
    ],
    ids=lambda command: command.split()[0],
)
def test_an_unknown_device_is_refused(command: str, tmp_path: Path) -> None:
    assert invoke(f"splitrelay run R=1 K=1 M=5 --out {tmp_path}/run").code == 0
    answer = invoke(f"splitrelay {command.format(folder=tmp_path)} --device abacus")
    assert answer.code == 2
    assert "abacus" in answer.output
    assert not (tmp_path / "new" / "spec.toml").exists()


@pytest.mark.parametrize("command", ["evaluate", "verify"])
def test_the_cpu_is_a_device(command: str, tmp_path: Path) -> None:
    assert invoke(f"splitrelay run R=1 K=1 M=5 engine=reference --out {tmp_path}/run").code == 0
    assert invoke(f"splitrelay {command} {tmp_path}/run --device cpu").code == 0


@pytest.mark.parametrize("setting", ["cut=nonsense", "metrics=nonsense", "order=nonsense", "schedule=step", "G=3"])
def test_a_refused_run_leaves_nothing(setting: str, tmp_path: Path) -> None:
    answer = invoke(f"splitrelay run M=5 K=1 R=1 {setting} --out {tmp_path}/run")
    assert answer.code == 2
    assert not (tmp_path / "run").exists()


def test_an_existing_folder_stays(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert invoke(f"splitrelay run M=5 K=1 R=1 cut=nonsense --out {tmp_path}/run").code == 2
    assert (tmp_path / "run").is_dir()
