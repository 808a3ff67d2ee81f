"""Layers that draw numbers inside: found by running them once, since no list of kinds could be complete."""

from __future__ import annotations

from copy import deepcopy
from threading import RLock

import torch
from torch import nn

from splitrelay.errors import InputError
from splitrelay.models.dropout import Dropout

GENERATOR = RLock()  # torch's own generator is one for all threads: whoever builds or watches a net has it alone
WAY_OUT = "Switch its randomness off; nn.Dropout as a layer of the sequence has named masks."


def refuse_hidden_randomness(net: nn.Sequential, input_shape: tuple[int, ...]) -> None:
    """Run a copy on two empty images as in training, and raise on the innermost layer that moved torch's generator."""
    probe = deepcopy(net)
    for name, module in probe.named_modules():
        _watch(name, module)
        module.train(not isinstance(module, Dropout))  # ours draws by name
    h = torch.zeros(2, *input_shape)
    with GENERATOR, torch.random.fork_rng(devices=[]), torch.no_grad():
        for name, layer in probe.named_children():
            try:
                h = layer(h)
            except (RuntimeError, TypeError, ValueError, AttributeError, LookupError) as error:
                what = f"layer '{name}' ({type(layer).__name__}) cannot take what comes to it, {_shape(h)}"
                raise InputError(what, value=str(error).splitlines()[0]) from None


def _watch(name: str, module: nn.Module) -> None:
    """The state of torch's generator before and after; inner layers are asked before the ones around them."""
    before: list[torch.Tensor] = []

    def enter(*_: object) -> None:
        before.append(torch.get_rng_state())

    def leave(*_: object) -> None:
        if not torch.equal(before.pop(), torch.get_rng_state()):
            kind = type(module).__name__
            raise InputError(f"layer '{name}' ({kind}) draws numbers that have no name", hint=WAY_OUT)

    module.register_forward_pre_hook(enter)
    module.register_forward_hook(leave)


def _shape(h: object) -> str:
    return "x".join(map(str, h.shape)) if isinstance(h, torch.Tensor) else type(h).__name__
