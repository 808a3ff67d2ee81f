"""Third parties that only some data need: let in by name when they are needed, and missed in one line."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from splitrelay.errors import InputError

INSTALL = {
    "PIL": "pip install pillow",  # comes with matplotlib
    "pyarrow": "pip install 'splitrelay[parquet]'",
}


def import_optional(module: str, why: str) -> Any:
    """The module, or the command that installs it."""
    top = module.partition(".")[0]
    try:
        return import_module(module)
    except ImportError:
        raise InputError(f"{why} needs {top}, which is not installed", hint=INSTALL[top]) from None
