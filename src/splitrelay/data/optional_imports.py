"""Import optional dependencies lazily, and explain how to install them if they are missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from splitrelay.errors import InputError

INSTALL = {
    "PIL": "pip install pillow",  # comes with matplotlib
    "pyarrow": "pip install 'splitrelay[parquet]'",
    "pandas": "pip install 'splitrelay[frames]'",
    "rich": "pip install 'splitrelay[learn]'",
    "sklearn": "pip install 'splitrelay[learn]'",
}


def import_optional(module: str, why: str) -> Any:
    """Import a module. Raise InputError with the install command if it is missing.

    Args:
        module: The full name of the module.
        why: What needs the module, for the error message.
    """
    top = module.partition(".")[0]
    try:
        return import_module(module)
    except ImportError:
        raise InputError(f"{why} needs {top}, which is not installed", hint=INSTALL[top]) from None
