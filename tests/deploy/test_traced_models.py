"""Traced modules with randomness, batch norm, counters and frozen parameters: deployed is simulated, to the bit."""

from pathlib import Path

import pytest
import torch
from torch import nn

from splitrelay.data import load
from splitrelay.deploy.backend import ClientContext
from splitrelay.deploy.backend_torch import Client
from splitrelay.deploy.handshake import build_terms
from splitrelay.errors import InputError
from tests.support import module_zoo
from tests.support.deployment import LocalDeployment, remove_times, simulate_run, small_spec
from tests.support.error_fields import expect_error

PREFIX = "model=tests.support.module_zoo:"
WAYS = [
    "resnet cut=inner.layer1 clip=1",
    "vision_transformer cut=inner.patches",
    "lstm cut=inner.rnn momentum=0.5",
    "volumes cut=inner.conv",  # smashed data with five axes
    "counter cut=inner.warm",
]


@pytest.mark.parametrize("words", WAYS)
def test_deployed_is_simulated(words: str, tmp_path: Path) -> None:
    spec = small_spec(tmp_path, *f"{PREFIX}{words} engine=reference M=2 C=5 R=1".split())
    expected = simulate_run(spec, tmp_path / "simulated")
    stage = LocalDeployment(spec, tmp_path)
    for m in stage.partition.clients:
        stage.join(m)
    rows = stage.play()
    assert set(stage.words.values()) == {"all rounds are done"}
    assert stage.serving.directory.model.read_bytes() == expected.model.read_bytes()
    assert remove_times(rows) == remove_times(expected.read_rows())


def test_a_client_with_other_frozen_parameters_takes_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = small_spec(tmp_path, *f"{PREFIX}counter cut=inner.warm engine=reference".split())
    data = load(spec.data.name)
    terms = build_terms(spec, data)
    context = ClientContext(0, spec, terms, data.train)
    Client(context)
    build = module_zoo.counter

    def build_other() -> nn.Module:
        module = build()
        with torch.no_grad():
            module.first.base.bias += 1  # as if from another file of pretrained weights
        return module

    monkeypatch.setattr(module_zoo, "counter", build_other)
    with expect_error(InputError, what="counter", limit=terms.plan.split()[1], hint=True):
        Client(context)
    assert build_terms(spec, data).spec_hash != terms.spec_hash  # so that an operator sees the difference


def test_terms_of_a_model_without_constants_are_as_before(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, *f"{PREFIX}lstm engine=reference".split())
    assert build_terms(spec, load(spec.data.name)).plan == ""
