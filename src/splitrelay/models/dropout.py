"""Dropout with named masks, and the check that no other layer draws random numbers.

The name of a mask is (seed, round, client, occurrence, step, layer). Whole and cut models draw the same masks, and a
resumed run repeats them. Random numbers without a name would break this, so layers that draw them are an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from threading import RLock

import torch
from torch import nn

from splitrelay.errors import InputError, OutOfRange

STOCHASTIC = (
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU,
    nn.FractionalMaxPool2d, nn.FractionalMaxPool3d,
)  # fmt: skip
TORCH_RNG_LOCK = RLock()  # all threads share torch's generator; hold this lock while a model is built or checked


class Dropout(nn.Module):
    """Set entries to zero with probability p and scale the others by 1/(1-p).

    Attributes:
        source: Returns the named uniform random numbers of a mask for a given shape.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise OutOfRange("dropout probability p", limit="0 <= p < 1", value=p)
        self.p = p
        self.source: Callable[[tuple[int, ...]], torch.Tensor] | None = None

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """Apply the mask in training mode. Return h unchanged in evaluation mode."""
        if not self.training or self.p == 0:
            return h
        if self.source is None:
            raise InputError("a dropout layer ran in training mode without the name of its mask")
        mask = self.source(tuple(h.shape)).to(h.device) >= self.p
        return h * mask / (1 - self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def use_named_dropout(net: nn.Sequential) -> nn.Sequential:
    """Replace torch's nn.Dropout by Dropout with named masks. Raise InputError for other stochastic layers."""
    named = nn.Sequential()
    for name, layer in list_layers(net):
        named.add_module(name, Dropout(layer.p) if type(layer) is nn.Dropout else layer)
    for name, module in named.named_modules():
        _check_layer(name, module)
        if hasattr(module, "inplace"):
            module.inplace = False  # same numbers, and smashed data are not overwritten
    return named


def list_layers(net: nn.Sequential) -> Iterator[tuple[str, nn.Module]]:
    """Yield (name, layer) for every position. Torch's named_children omits a layer that is used a second time."""
    seen: set[int] = set()
    for name, layer in net._modules.items():
        assert layer is not None
        is_repeated = id(layer) in seen
        if is_repeated and layer.state_dict():
            hint = "Shared weights are not supported. Create a separate layer for each use."
            raise InputError(f"layer '{name}' is used twice", hint=hint)
        seen.add(id(layer))
        yield name, deepcopy(layer) if is_repeated else layer


def _check_layer(name: str, module: nn.Module) -> None:
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.momentum is None:
        what = f"layer '{name}' averages over all earlier batches, and x does not contain their number"
        raise InputError(what, hint="Give the layer a momentum, such as 0.1.")
    if isinstance(module, STOCHASTIC):
        raise _unnamed_randomness(name, module)


def check_hidden_randomness(net: nn.Sequential, input_shape: tuple[int, ...]) -> None:
    """Run a copy of the model on two zero images and raise InputError if a layer used torch's generator.

    No list of layer types can be complete. Therefore this check observes the generator itself. The error names the
    innermost layer that drew numbers.
    """
    probe = deepcopy(net)
    for name, module in probe.named_modules():
        _observe(name, module)
        module.train(not isinstance(module, Dropout))  # its masks have names
    h = torch.zeros(2, *input_shape)
    with TORCH_RNG_LOCK, torch.random.fork_rng(devices=[]), torch.no_grad():
        for name, layer in probe.named_children():
            try:
                h = layer(h)
            except (RuntimeError, TypeError, ValueError, AttributeError, LookupError) as error:
                shape = "x".join(map(str, h.shape)) if isinstance(h, torch.Tensor) else type(h).__name__
                what = f"layer '{name}' ({type(layer).__name__}) does not accept its input {shape}"
                raise InputError(what, value=str(error).splitlines()[0]) from None


def _observe(name: str, module: nn.Module) -> None:
    """Compare the state of torch's generator before and after each call of the module."""
    states: list[torch.Tensor] = []

    def enter(*_: object) -> None:
        states.append(torch.get_rng_state())

    def leave(*_: object) -> None:
        if not torch.equal(states.pop(), torch.get_rng_state()):
            raise _unnamed_randomness(name, module)

    module.register_forward_pre_hook(enter)
    module.register_forward_hook(leave)


def _unnamed_randomness(name: str, module: nn.Module) -> InputError:
    what = f"layer '{name}' ({type(module).__name__}) draws random numbers that have no name"
    hint = "Turn its randomness off. Only nn.Dropout as a layer of the sequence gets named masks."
    return InputError(what, hint=hint)
