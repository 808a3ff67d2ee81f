"""Run every layer once when a model is built, and find out what training must know about it.

No list of layer types can be complete. Therefore the checks observe two runs of a copy of each layer on two samples of
zeros. They find the layers that draw random numbers, the integer buffers that training changes, and the layers that
overwrite their input. They raise InputError for a state that can neither be named nor saved: a generator of the layer,
numpy's or Python's random numbers, a Python number that changes, a frozen parameter that changes. Any other state, such
as a list or a global variable, is found by its effect: with the same input, random numbers and buffers, the second call
of a layer must have the output of the first one.
"""

from __future__ import annotations

import random  # noqa: TID251  # only its state is read
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from threading import RLock
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

from splitrelay.errors import InputError, find_user_code
from splitrelay.models.dropout import Dropout
from splitrelay.models.layer_draws import HINT, DrawRecorder
from splitrelay.models.layers import Layers
from splitrelay.tensor_types import TensorType

BATCH = 2  # samples of a check
TORCH_RNG_LOCK = RLock()  # all threads share torch's generator; hold this lock while a model is built or checked
GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
NUMBERS = (bool, int, float)
Value = Any  # a tensor, or a tuple of tensors in front of the first layer


@dataclass(frozen=True)
class LayerFacts:
    """What training must know about the layers of a model.

    Attributes:
        random: The layers that draw random numbers inside.
        overwriting: The layers that change their input in place, and get a copy of it therefore.
        counters: The integer buffers that training changes.
    """

    random: frozenset[int]
    overwriting: frozenset[int]
    counters: frozenset[str]


def check_layer_types(net: Layers) -> None:
    """Turn in-place operations off, and raise InputError for layers whose state cannot be saved."""
    for name, module in net.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.momentum is None:
            what = f"layer '{name}' averages over all earlier batches, and x does not contain their number"
            raise InputError(what, hint="Give the layer a momentum, such as 0.1.")
        if hasattr(module, "inplace"):
            module.inplace = False  # same numbers, and smashed data are not overwritten
        for key, value in vars(module).items():
            if isinstance(value, GENERATORS):
                what = f"layer '{name}' ({type(module).__name__}) has a random generator of its own, '{key}'"
                raise InputError(what, value=type(value).__name__, hint=HINT)
        if any(isinstance(each, nn.UninitializedParameter) for each in module._parameters.values()):
            what = f"layer '{name}' ({type(module).__name__}) does not know the shape of its weights yet"
            raise InputError(what, hint="Use the layer without 'Lazy', and give it the number of its inputs.")


def make_zeros(inputs: tuple[TensorType, ...], batch: int, dtype: torch.dtype = torch.float32) -> Value:
    """Return one sample of zeros for each input: a tensor, or a tuple of tensors if there are several inputs."""
    types = [dtype if each.is_float else getattr(torch, each.dtype) for each in inputs]
    zeros = tuple(torch.zeros(batch, *each.shape, dtype=kind) for each, kind in zip(inputs, types, strict=True))
    return zeros if len(zeros) > 1 else zeros[0]


def get_python_state() -> Any:
    """Return the state of Python's random numbers, to notice whether a layer draws them."""
    return random.getstate()


def call_layer(layer: Callable[..., Any], h: Value) -> Any:
    """Call a layer with one tensor, or with the tensors of a tuple."""
    return layer(*h) if isinstance(h, tuple) else layer(h)


def inspect_layers(net: Layers, inputs: tuple[TensorType, ...]) -> LayerFacts:
    """Run a copy of the model as in training and as in evaluation, and return what was found."""
    probe = deepcopy(net)
    for parameter in probe.parameters():
        if parameter.dim() == 4:  # as x stores it: some code of users needs another format
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    entered: list[str] = []
    for name, module in probe.named_modules():
        _record_calls(name, module, entered)
    found: list[tuple[bool, bool]] = []
    with TORCH_RNG_LOCK, torch.random.fork_rng(devices=[]), torch.no_grad():
        probe.eval()
        for _ in _run_layers(probe, inputs, entered, "in evaluation mode"):
            pass
        for module in probe.modules():
            module.train(not isinstance(module, Dropout))  # its masks have names
        constants = {name: _take_snapshot(tensor) for _, name, tensor in probe.list_constants()}
        for _ in range(2):  # a value that is computed once and kept is no state; the second run changes it no more
            numbers = {name: _list_numbers(module) for name, module in probe.named_modules()}
            found = list(_run_layers(probe, inputs, entered, ""))
    for name, module in probe.named_modules():
        for key in sorted(key for key, value in _list_numbers(module).items() if numbers[name].get(key) != value):
            what = f"layer '{name}' ({type(module).__name__}) counts with its attribute '{key}', which is not saved"
            raise InputError(what, hint=f"Use a buffer: self.register_buffer('{key}', torch.tensor(0)).")
    counters = _find_counters(probe, constants)
    with TORCH_RNG_LOCK, torch.random.fork_rng(devices=[]), torch.no_grad():
        _check_repeats(probe, inputs)
    return LayerFacts(
        random=frozenset(j for j, (has_draws, _) in enumerate(found) if has_draws),
        overwriting=frozenset(j for j, (_, overwrites) in enumerate(found) if overwrites),
        counters=counters,
    )


def _run_layers(
    probe: Layers, inputs: tuple[TensorType, ...], entered: list[str], mode: str
) -> Iterator[tuple[bool, bool]]:
    """Yield for each layer whether it draws and whether it overwrites its input."""
    h = make_zeros(inputs, BATCH)
    for name, layer in probe.named_children():
        del entered[:]
        parts = h if isinstance(h, tuple) else (h,)
        before = [part._version if isinstance(part, torch.Tensor) else 0 for part in parts]
        with _report_user_error(name, layer, h), _check_draws(entered), DrawRecorder() as recorder:
            out = call_layer(layer, h)
        overwrites = before != [part._version if isinstance(part, torch.Tensor) else 0 for part in parts]
        if recorder.has_draws and mode:
            what = f"layer '{name}' ({type(layer).__name__}) draws random numbers {mode}"
            raise InputError(what, hint="Pass training=self.training to its dropout.")
        if recorder.has_own_generator:
            what = f"layer '{name}' ({type(layer).__name__}) draws from a random generator of its own"
            raise InputError(what, hint=HINT)
        if recorder.has_draws:
            _check_backward(name, layer, h)
        yield recorder.has_draws, overwrites
        h = _store_images(out)


def _check_repeats(probe: Layers, inputs: tuple[TensorType, ...]) -> None:
    """Raise InputError for a layer whose output depends on earlier calls other than through its buffers."""
    h = tree_map_only(torch.Tensor, _fill, make_zeros(inputs, BATCH))
    numbers = torch.get_rng_state()
    for name, layer in probe.named_children():
        buffers = [
            (module, key, buffer.clone())
            for module in layer.modules()
            for key, buffer in module._buffers.items()
            if buffer is not None
        ]
        outputs = []
        for _ in range(2):
            for module, key, value in buffers:
                module._buffers[key] = value.clone()
            torch.set_rng_state(numbers)
            copy = tree_map_only(torch.Tensor, torch.clone, h)  # a layer can overwrite its input
            with _report_user_error(name, layer, h):
                outputs.append(tree_map_only(torch.Tensor, torch.clone, call_layer(layer, copy)))
        one, other = ([leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)] for out in outputs)
        if not all(torch.allclose(*pair, equal_nan=True) for pair in zip(one, other, strict=True)):
            what = f"the output of layer '{name}' ({type(layer).__name__}) depends on earlier calls"
            hint = "Keep what it needs from them in a buffer: self.register_buffer(...)."
            raise InputError(what, hint=hint)
        h = _store_images(outputs[0])


def _store_images(out: Value) -> Value:
    """Return images in the format in which submodel.py passes them to the next layer."""
    is_image = isinstance(out, torch.Tensor) and out.dim() == 4
    return out.contiguous(memory_format=torch.channels_last) if is_image else out


def _fill(zeros: torch.Tensor) -> torch.Tensor:
    """Return other numbers than zeros, which hide factors. Integers remain, because they may be positions."""
    is_real = zeros.is_floating_point()
    return torch.linspace(-1, 1, zeros.numel(), dtype=zeros.dtype).view_as(zeros) if is_real else zeros


@torch.enable_grad()
def _check_backward(name: str, layer: nn.Module, h: Value) -> None:
    """Raise InputError if the backward pass draws: the layer computes its random numbers again, without their names."""
    parts = [part.detach().clone() for part in (h if isinstance(h, tuple) else (h,))]
    copies = tuple(part.requires_grad_() if part.is_floating_point() else part for part in parts)
    out = layer(*(part.clone() for part in copies))
    if not isinstance(out, torch.Tensor) or not out.requires_grad:
        return
    with DrawRecorder() as recorder:
        out.sum().backward()  # type: ignore[no-untyped-call]
    layer.zero_grad()
    if recorder.has_draws:
        what = f"layer '{name}' ({type(layer).__name__}) draws random numbers in the backward pass"
        raise InputError(what, hint="Do not use torch.utils.checkpoint around dropout.")


@contextmanager
def _check_draws(entered: list[str]) -> Iterator[None]:
    """Raise InputError if random numbers were drawn that are not torch's, and so cannot get a name."""
    python, array = random.getstate(), np.random.get_state()  # noqa: NPY002
    yield
    after = np.random.get_state()  # noqa: NPY002
    is_same_array = all(np.array_equal(a, b) for a, b in zip(array, after, strict=True))
    if python != random.getstate() or not is_same_array:
        kind = "Python's" if python != random.getstate() else "numpy's"
        hint = "Draw with torch's functions, such as torch.rand; their numbers get names."
        raise InputError(f"layer '{_get_last(entered)}' draws random numbers with {kind} generator", hint=hint)


@contextmanager
def _report_user_error(name: str, layer: nn.Module, h: Value) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, TypeError, ValueError, AttributeError, LookupError, NotImplementedError) as error:
        shape = "x".join(map(str, h.shape)) if isinstance(h, torch.Tensor) else type(h).__name__
        place = find_user_code(error)
        where = f", {place}" if place else ""
        what = f"layer '{name}' ({type(layer).__name__}) does not accept its input {shape}{where}"
        is_whole = isinstance(h, torch.Tensor) and not h.is_floating_point()
        hint = "Integers and bytes are for embeddings. Give numbers as float32." if is_whole else None
        if any(parameter.dtype == torch.float64 for parameter in layer.parameters()):
            hint = "Give a module of float32 numbers, and dtype=float64 to train it with float64."
        value = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(what, value=value, hint=hint) from None


def _record_calls(name: str, module: nn.Module, entered: list[str]) -> None:
    module.register_forward_pre_hook(lambda *_: entered.append(name))


def _get_last(entered: list[str]) -> str:
    return entered[-1] if entered else ""


def _list_numbers(module: nn.Module) -> dict[str, Any]:
    return {key: value for key, value in vars(module).items() if isinstance(value, NUMBERS) and key != "training"}


def _take_snapshot(tensor: torch.Tensor) -> Any:
    """Return a copy of a buffer. Of a frozen parameter, which may be large, return the number of its changes."""
    return tensor._version if isinstance(tensor, nn.Parameter) else tensor.clone()


def _find_counters(probe: Layers, before: dict[str, Any]) -> frozenset[str]:
    """Return the integer buffers that training has changed. Raise InputError for other constants that have changed."""
    counters = set()
    for layer, name, tensor in probe.list_constants():
        old, new = before.get(name), _take_snapshot(tensor)
        if torch.equal(old, new) if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor) else old == new:
            continue
        owner, attribute = probe.find_owner(layer, name)
        is_saved = attribute in owner._buffers and attribute not in owner._non_persistent_buffers_set
        if not is_saved or tensor.is_complex():
            kind = "a buffer that torch does not save" if attribute in owner._buffers else "a frozen parameter"
            hint = "Register it as a buffer that is saved (persistent=True)."
            raise InputError(f"training changes {name}, {kind}", hint=hint)
        counters.add(name)
    return frozenset(counters)
