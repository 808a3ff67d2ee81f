"""Random numbers that layers draw inside: attention dropout, dropout of recurrent layers, stochastic depth, noise.

The name of such numbers is (seed, round, client, occurrence, step, layer). Whole and cut models draw the same numbers,
and a resumed run repeats them.

Torch has one generator for the whole process, and several engines run in threads at the same time. Therefore a layer
that draws runs inside `NamedDraws`. It is a dispatch mode of torch: it sees every operation of the layer, also those
that torch calls from C++, and gives a generator of its own to each operation that draws. A dispatch mode belongs to one
thread, so engines do not disturb each other and need no lock. The backward pass draws nothing.

Layers without randomness do not pay for this: `layer_checks` finds the layers that draw when the model is built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from splitrelay.errors import InputError

HINT = "Turn its randomness off, or draw with torch's functions and without a generator of its own."
aten = torch.ops.aten
WITH_GENERATOR = {  # these operations have a second form that takes a generator
    aten.rand.default: aten.rand.generator,
    aten.randn.default: aten.randn.generator,
    aten.randint.default: aten.randint.generator,
    aten.randint.low: aten.randint.low_generator,
    aten.randperm.default: aten.randperm.generator,
    aten.rand_like.default: aten.rand_like.generator,
    aten.randn_like.default: aten.randn_like.generator,
    aten.randint_like.default: aten.randint_like.generator,
    aten.randint_like.Tensor: aten.randint_like.Tensor_generator,
    aten.randint_like.low_dtype: aten.randint_like.low_generator_dtype,
}


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that does not import the compiler of torch, which takes longer than torch itself."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class NamedDraws(DispatchMode):  # type: ignore[no-untyped-call]
    """Let all operations in a `with` block draw from generators with this seed, one for each device."""

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operation of torch."""
        kwargs = kwargs or {}
        if not does_draw(func, args, kwargs):
            return func(*args, **kwargs)
        generator = self._get_generator(args, kwargs)
        if func is aten.native_dropout.default:
            # The result and the mask, as torch's native_dropout returns them.
            h, p = args[0], args[1]
            mask = torch.empty_like(h, dtype=torch.bool).bernoulli_(1 - p, generator=generator)
            return h * mask * (1 / (1 - p) if p < 1 else 0.0), mask
        func = WITH_GENERATOR.get(func, func)
        if not any(argument.name == "generator" for argument in func._schema.arguments):
            raise InputError(f"the operation {func} draws random numbers that have no name", hint=HINT)
        return func(*args, **{**kwargs, "generator": generator})

    def _get_generator(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Generator:
        tensors = (each for each in args if isinstance(each, torch.Tensor))
        device = torch.device(kwargs.get("device") or next((tensor.device for tensor in tensors), "cpu"))
        if device not in self._generators:
            self._generators[device] = torch.Generator(device)
            self._generators[device].manual_seed(self._seed)
        return self._generators[device]


class DrawRecorder(DispatchMode):  # type: ignore[no-untyped-call]
    """Record whether the operations in a `with` block draw, and whether one of them has a generator of its own."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.has_draws = self.has_own_generator = False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operation of torch."""
        if does_draw(func, args, kwargs or {}):
            self.has_draws = True
            values = (*args, *(kwargs or {}).values())
            self.has_own_generator |= any(isinstance(value, torch.Generator) for value in values)
        return func(*args, **(kwargs or {}))


def does_draw(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether an operation draws random numbers. Attention with dropout 0 and the like draw nothing."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    for position, argument in enumerate(func._schema.arguments):
        if argument.name in ("dropout_p", "dropout", "training", "train"):
            value = args[position] if position < len(args) else kwargs.get(argument.name, argument.default_value)
            if not value:
                return False
    return True
