"""Functions and objects of the user by name: `module:function`, or an object that a Python program has registered."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

from splitrelay.errors import InputError, find_user_code

PYTHON = "python"  # python:NAME is an object of this process
_OBJECTS: dict[str, Any] = {}


def register_object(name: str, target: Any) -> None:
    """Make an object of this process available under the name `python:NAME`."""
    _OBJECTS[name] = target


def is_user_function(name: str) -> bool:
    """Return whether a name has the form `module:function`."""
    return ":" in name


def get_function_name(name: str) -> str:
    """Return the function of `module:function`, or the readable part of `python:NAME-HASH`."""
    return name.partition(":")[2].partition("-")[0]


def get_short_name(name: str) -> str:
    """Return the readable part of `python:NAME-HASH`, and every other name as it is."""
    return get_function_name(name) if name.startswith(f"{PYTHON}:") else name


def load_user_function(kind: str, name: str) -> Any:
    """Import the function `module:function`. The module may be a file in the current folder.

    Args:
        kind: What the function is for, such as "model" or "loss". Error messages use it.
        name: The module and the function, separated by a colon.
    """
    module, _, function = name.partition(":")
    if module == PYTHON:
        if name not in _OBJECTS:
            hint = "Continue the run by the same call of sr.fit(..., out=...) in Python."
            raise InputError(f"{kind} {name} is an object of a Python program that is not running here", hint=hint)
        return _OBJECTS[name]
    form = "Use the form module:function. The module may be a file in the current folder."
    if not all(module.split(".")) or not function or not name.isprintable():  # importlib has other errors for these
        raise InputError(f"{kind} {name} is not the name of a function", hint=form)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # at the end, so that it hides no installed module
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        place = find_user_code(error)
        if place:  # the module exists, and fails while it is imported
            raise InputError(
                f"{kind} {name} cannot be imported: error in your code, {place}", value=str(error)
            ) from error
        raise InputError(f"{kind} {name} cannot be imported", value=str(error), hint=form) from None


def check_takes_no_arguments(kind: str, name: str, target: Any) -> None:
    """Raise InputError unless an object of the user is a function that can be called without arguments."""
    hint = f"A {kind} is a function without required arguments, or an object that is ready to use."
    if not callable(target):
        raise InputError(f"{kind} {name} is not a function", value=type(target).__name__, hint=hint)
    try:
        signature = inspect.signature(target)
    except (ValueError, TypeError):  # a function of C without a signature
        return
    try:
        signature.bind()
    except TypeError:
        what = f"{kind} {name} cannot be called without arguments"
        raise InputError(what, value=f"arguments {signature}", hint=hint) from None
