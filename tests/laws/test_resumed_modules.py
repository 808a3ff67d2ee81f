"""Traced modules with counters, random layers and frozen parameters resume to the same bits."""

import json
from pathlib import Path

import pytest
import torch

from splitrelay.errors import InputError
from splitrelay.runs.execute import execute
from splitrelay.runs.run_directory import RunDirectory
from splitrelay.runs.spec import Spec, load_spec
from tests.support.deployment import write_small_dataset
from tests.support.error_fields import expect_error

PRETRAINED = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.base, self.head = nn.Linear(64, 8), nn.Linear(8, 10)
        self.base.load_state_dict(torch.load("base.pt"))
        self.base.requires_grad_(False)

    def forward(self, x):
        return self.head(self.base(x.flatten(1)).tanh())
"""


def make_spec(folder: Path, model: str, *words: str) -> Spec:
    data = write_small_dataset(folder / "own.npz")
    return load_spec(None, [f"data={data}", "M=2", "C=5", "K=2", "engine=reference", f"model={model}", *words])


@pytest.mark.parametrize("name", ["counter", "vision_transformer"])
def test_a_resumed_run_has_the_same_bits(name: str, tmp_path: Path) -> None:
    model = f"tests.support.image_modules:{name}"
    whole, parts = RunDirectory(tmp_path / "whole"), RunDirectory(tmp_path / "parts")
    list(execute(make_spec(tmp_path, model, "R=4"), whole))
    for R in (1, 3, 4):
        list(execute(make_spec(tmp_path, model, f"R={R}"), parts))
    assert parts.model.read_bytes() == whole.model.read_bytes()


def test_other_frozen_parameters_are_refused_or_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "pretrained_net.py").write_text(PRETRAINED)
    directory, spec = RunDirectory(tmp_path / "run"), make_spec(tmp_path, "pretrained_net:Net", "R=1")
    torch.save(torch.nn.Linear(64, 8).state_dict(), "base.pt")
    list(execute(spec, directory))
    before = json.loads((directory.path / "environment.json").read_text())["constants"]
    assert {"base.weight", "base.bias"}.isdisjoint(read_names(directory.model))

    torch.save(torch.nn.Linear(64, 8).state_dict(), "base.pt")
    longer = make_spec(tmp_path, "pretrained_net:Net", "R=2")
    with expect_error(InputError, what="pretrained_net:Net", limit=before, hint="--accept-change"):
        list(execute(longer, directory))
    list(execute(longer, directory, accept_change=True))
    after = json.loads((directory.path / "environment.json").read_text())
    assert after["constants"] != before and after["changes"] == [{"round": 1, "before": {"constants": before}}]


def read_names(model: Path) -> set[str]:
    length = int.from_bytes(model.read_bytes()[:8], "little")
    return set(json.loads(model.read_bytes()[8 : 8 + length]))
