"""Import functions of the user by name."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from splitrelay.errors import InputError, find_user_code


def load_user_function(kind: str, name: str) -> Any:
    """Import the function `module:function`. The module may be a file in the current folder.

    Args:
        kind: What the function is for, such as "model" or "loss". Error messages use it.
        name: The module and the function, separated by a colon.
    """
    module, _, function = name.partition(":")
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
        hint = "Use the form module:function. The module may be a file in the current folder."
        raise InputError(f"{kind} {name} cannot be imported", value=str(error), hint=hint) from None
