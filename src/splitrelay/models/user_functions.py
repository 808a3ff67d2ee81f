"""The user's own functions by name: module:function, also of a module in the current folder."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from splitrelay.errors import InputError


def own_function(kind: str, name: str) -> Any:
    """What `module:function` names."""
    module, _, function = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # last, so that it shadows nothing
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        hint = "Name it module:function; a module in the current folder will do."
        raise InputError(f"{kind} {name} cannot be had", value=str(error), hint=hint) from None
