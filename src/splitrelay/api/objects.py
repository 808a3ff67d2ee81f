"""Give objects of a Python program names, so that a spec can contain them: `python:NAME-HASH`.

A spec consists of text and numbers. `sr.fit` also accepts modules, functions, arrays and algorithms as objects. It
registers each object under a name that contains a hash of its content. The same call gives the same names, so that a
run can be continued; a changed object gives another name, and therefore another run.
"""

from __future__ import annotations

import hashlib
import inspect
import types
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from splitrelay.errors import InputError
from splitrelay.participation import Fixed
from splitrelay.user_functions import PYTHON, register_object

LENGTH = 12  # digits of a hash in a name
ORDER_VALUES = ("M", "S", "seed")  # parameters of a function that makes an order


def name_object(target: Any, value: Any = None, name: str | None = None) -> str:
    """Register an object and return the name that stands for it in a spec.

    Args:
        target: The object whose content is hashed.
        value: The object to register, if it is another one.
        name: The readable part of the name. The default is the name of the function or class.
    """
    readable = name or str(getattr(target, "__name__", type(target).__name__))
    full = f"{PYTHON}:{readable.strip('<>').replace(' ', '_')}-{compute_hash(target)[:LENGTH]}"
    register_object(full, target if value is None else value)
    return full


def name_part(part: Any) -> str:
    """Return a name as it is, and the name of any other object after registering it."""
    return part if isinstance(part, str) else name_object(part)


def name_algorithm(part: Any) -> str:
    """Return the name of an algorithm. An object that is ready to use is registered as a function that returns it."""
    return name_object(part, lambda: part) if is_ready_algorithm(part) else name_part(part)


def is_ready_algorithm(part: Any) -> bool:
    """Return whether an algorithm is an object, in contrast to a name, a class or a function."""
    return not isinstance(part, str | type) and hasattr(part, "round")


def name_order(part: Any) -> str:
    """Return the name of an order. A function of the round, or a list, is registered as a function that returns it.

    A class, or a function of M, S and seed, makes an order and is registered as it is.
    """
    part = Fixed(part) if isinstance(part, list | tuple) else part
    if isinstance(part, str | type) or not callable(part):
        return name_part(part)
    required = [each.name for each in inspect.signature(part).parameters.values() if each.default is each.empty]
    is_of_round = len(required) == 1 and required[0] not in ORDER_VALUES
    return name_object(part, lambda: part) if is_of_round else name_part(part)


def name_metrics(metrics: Any) -> tuple[str, ...]:
    """Return the names of metrics: a sequence of names and functions, or one of them alone."""
    several = [metrics] if isinstance(metrics, str) or callable(metrics) else metrics
    if not isinstance(several, Iterable):
        raise InputError("metrics must be names or functions", value=type(metrics).__name__)
    return tuple(map(name_part, several))


def compute_hash(target: Any) -> str:
    """Return the SHA-256 of the content of an object, in hexadecimal."""
    digest = hashlib.sha256()
    for part in _iterate_content(target, set()):
        digest.update(part)
        digest.update(b"\0")
    return digest.hexdigest()


def _iterate_content(target: Any, seen: set[int]) -> Iterable[bytes]:
    """Yield the content of an object: code of functions and classes, numbers of arrays, fields of objects."""
    if target is None or isinstance(target, str | bytes | bool | int | float | complex | Path):
        yield f"{type(target).__name__} {target!r}".encode()
    elif isinstance(target, np.ndarray):
        yield f"array {target.dtype} {target.shape}".encode()
        yield repr(target.tolist()).encode() if target.dtype.kind == "O" else np.ascontiguousarray(target).tobytes()
    elif hasattr(target, "detach") and hasattr(target, "cpu"):  # a tensor
        yield from _iterate_content(target.detach().cpu().numpy(), seen)
    elif id(target) in seen:
        yield b"again"
    else:
        seen.add(id(target))
        yield from _iterate_parts(target, seen)


def _iterate_parts(target: Any, seen: set[int]) -> Iterable[bytes]:
    if isinstance(target, Mapping):
        for key in target:
            yield from _iterate_content(key, seen)
            yield from _iterate_content(target[key], seen)
    elif isinstance(target, list | tuple | set | frozenset):
        yield f"{type(target).__name__} {len(target)}".encode()
        for item in sorted(target, key=repr) if isinstance(target, set | frozenset) else target:
            yield from _iterate_content(item, seen)
    elif isinstance(target, types.FunctionType | types.MethodType):
        yield from _iterate_function(target, seen)
    elif isinstance(target, type):
        yield f"{target.__module__}.{target.__qualname__}".encode()
        yield _get_source(target)
    else:
        yield from _iterate_content(type(target), seen)
        if hasattr(target, "state_dict") and hasattr(target, "extra_repr"):  # a module of torch
            yield repr(target).encode()
            yield from _iterate_content(dict(target.state_dict()), seen)
            trained = [name for name, tensor in target.named_parameters() if tensor.requires_grad]
            yield from _iterate_content(trained, seen)
        elif is_dataclass(target):
            yield from _iterate_content([getattr(target, each.name) for each in fields(target)], seen)
        elif hasattr(target, "__dict__"):
            yield from _iterate_content(vars(target), seen)
        else:
            yield repr(target).encode()


def _iterate_function(function: Any, seen: set[int]) -> Iterable[bytes]:
    """Yield the source of a function, or its byte code, and the values that it has captured."""
    yield f"{function.__module__}.{function.__qualname__}".encode()
    yield _get_source(function)
    code = function.__code__
    yield code.co_code
    yield repr([constant for constant in code.co_consts if not isinstance(constant, types.CodeType)]).encode()
    for cell in function.__closure__ or ():
        yield from _iterate_content(cell.cell_contents, seen)
    yield from _iterate_content(function.__defaults__ or (), seen)
    if isinstance(function, types.MethodType):
        yield from _iterate_content(function.__self__, seen)


def _get_source(target: Any) -> bytes:
    try:
        return inspect.getsource(target).encode()
    except (OSError, TypeError):  # typed into an interpreter, or built in
        return b""
