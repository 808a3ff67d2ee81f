"""Names of Python objects: the same content gives the same name, and any change another one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from splitrelay.api.objects import compute_hash, name_object
from splitrelay.errors import InputError
from splitrelay.user_functions import load_user_function


def make_net(width: int) -> nn.Sequential:
    net = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 2))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(0.5)
    return net


def make_scale(factor: float) -> object:
    return lambda outputs, y: factor * float((outputs - y).sum())


@dataclass(frozen=True)
class Settings:
    eta: float
    values: tuple[int, ...] = (1, 2)


def test_equal_content_has_an_equal_hash() -> None:
    for one, other in (
        (np.arange(4), np.arange(4)),
        (make_net(3), make_net(3)),
        (Settings(0.1), Settings(0.1)),
        (make_scale(2.0), make_scale(2.0)),
        ({"a": [1, 2.0]}, {"a": [1, 2.0]}),
    ):
        assert compute_hash(one) == compute_hash(other)


def test_every_change_gives_another_hash() -> None:
    changed = make_net(3)
    with torch.no_grad():
        changed[0].weight[0, 0] = 0.25  # type: ignore[index]
    frozen = make_net(3)
    frozen[0].weight.requires_grad_(False)  # type: ignore[union-attr]
    pairs = (
        (np.arange(4), np.arange(4.0)),
        (np.zeros((2, 2)), np.zeros(4)),
        (make_net(3), make_net(4)),
        (make_net(3), changed),
        (make_net(3), frozen),
        (make_scale(2.0), make_scale(3.0)),
        (Settings(0.1), Settings(0.2)),
        (lambda y: y + 1, lambda y: y + 2),
    )
    for one, other in pairs:
        assert compute_hash(one) != compute_hash(other)


def test_a_registered_object_is_found_by_its_name() -> None:
    net = make_net(3)
    name = name_object(net)
    assert name.startswith("python:Sequential-")
    assert load_user_function("model", name) is net


def test_an_object_of_another_process_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        load_user_function("model", "python:Net-000000000000")
    assert caught.value.hint
