"""Algorithms, orders, partitions and data of the user: `module:name`, or a name that an installed package registers.

A part is a class or a function. Its parameters are filled by their names, so it takes only what it needs. This module
does not import torch, because deployed clients of the fast engine run without it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from splitrelay.errors import InputError, SplitrelayError, find_user_code
from splitrelay.runs.spec import Spec
from splitrelay.user_functions import is_user_function, load_user_function

GROUPS = {"algorithm": "splitrelay.algorithms", "order": "splitrelay.orders", "partition": "splitrelay.partitions"}


def find_target(kind: str, name: str) -> str | None:
    """Return the `module:name` of a part of the user, or None if no installed package registers the name."""
    if is_user_function(name):
        return name
    return next((entry.value for entry in _list_entry_points(kind) if entry.name == name), None)


def list_registered_names(kind: str) -> list[str]:
    """Return the names that installed packages register for a kind of part."""
    return sorted(entry.name for entry in _list_entry_points(kind))


def list_code(spec: Spec) -> list[str]:
    """Return the `module:name` of all code of the user that a spec names, without repetitions."""
    named = (spec.model.name, spec.model.loss, spec.optimiser.schedule, *spec.metrics)
    found = [name for name in (*named, spec.data.name) if is_user_function(name)]
    for kind, name in (("algorithm", spec.algorithm), ("order", spec.order), ("partition", spec.partition.kind)):
        target = find_target(kind, name)
        if target is not None:
            found.append(target)
    return list(dict.fromkeys(found))


def build_part(kind: str, name: str, values: Mapping[str, Any]) -> Any:
    """Import a part of the user and call it with the values that its parameters name.

    Raises:
        InputError: It cannot be imported, has a parameter without a value, or raises an error.
    """
    target = find_target(kind, name)
    assert target is not None  # the caller has found it
    part = load_user_function(kind, target)
    if not callable(part):
        raise InputError(f"{kind} {name} is no class or function", value=type(part).__name__)
    try:
        parameters = inspect.signature(part).parameters.values()
    except ValueError:  # some classes and functions that are written in C
        raise InputError(f"{kind} {name} does not tell its parameters", value=type(part).__name__) from None
    given = {each.name: values[each.name] for each in parameters if each.name in values}
    for each in parameters:
        is_required = each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        if each.name not in values and is_required:
            hint = "Give it a default value, or use the names of these values."
            what = f"{kind} {name} has a parameter that Splitrelay has no value for"
            raise InputError(what, value=each.name, limit=", ".join(values), hint=hint)
    return _call(f"{kind} {name}", lambda: part(**given))


@dataclass(frozen=True)
class UserOrder:
    """An order of the user. The clients of each round are checked.

    Attributes:
        name: The name in the spec.
        order: Returns the clients of round r.
        M: The number of clients.
    """

    name: str
    order: Callable[[int], Iterable[Any]]
    M: int

    def __call__(self, r: int, /) -> Sequence[int]:
        clients: list[int] = _call(f"order {self.name}", lambda: [int(m) for m in self.order(r)])
        wrong = [m for m in clients if not 0 <= m < self.M]
        if wrong or not clients:
            value, limit = wrong[0] if wrong else "no client", f"numbers from 0 to {self.M - 1}"
            raise InputError(f"order {self.name} returns no clients for round {r}", value=value, limit=limit)
        return clients


def _call(what: str, run: Callable[[], Any]) -> Any:
    try:
        return run()
    except SplitrelayError:
        raise
    except Exception as error:
        place = find_user_code(error) or "outside of it"
        value = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(f"{what} fails: error in your code, {place}", value=value) from error


def _list_entry_points(kind: str) -> Iterable[EntryPoint]:
    return _read_entry_points(entry_points, GROUPS[kind], tuple(sys.path))


@lru_cache(64)  # reading the metadata of all packages takes milliseconds, and a table reads a thousand specs
def _read_entry_points(read: Callable[..., Any], group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group. `path` makes packages visible that are added to sys.path later."""
    return tuple(read(group=group))
