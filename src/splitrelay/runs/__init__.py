"""Runs: from a spec to a run directory, and back from its records.

The package can be called: `sr.runs("results")` returns all runs of a folder. A function of this name cannot exist
beside the package, because Python makes every imported subpackage an attribute of its parent.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


class CallablePackage(ModuleType):
    """A package that is also the function `splitrelay.api.runs.find_runs`."""

    def __call__(self, folder: str | Path) -> Any:
        """Find all runs of a folder, at any depth; see `splitrelay.api.runs.find_runs`."""
        return import_module("splitrelay.api.runs").find_runs(folder)


sys.modules[__name__].__class__ = CallablePackage
