"""Compiles the fast engine when the package is built: into the wheel, or in place where it is installed editable.

Without a compiler, or where it fails, there is a package without the fast engine, and a line that says so.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

KERNELS = Path("src") / "splitrelay" / "kernels"


class Kernels(BuildHookInterface):  # type: ignore[type-arg]
    """Every build that this machine's family can use; the right one is chosen where it runs."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and tell hatchling what to take along."""
        if self.target_name != "wheel":
            return
        made = self._compiled(self._place(version))
        if made and version != "editable":
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
            build_data["force_include"].update({str(path): f"splitrelay/kernels/{path.name}" for path in made})

    def _place(self, version: str) -> Path:
        if version == "editable":
            return Path(self.root) / KERNELS
        self._folder = tempfile.TemporaryDirectory(prefix="splitrelay-")  # lives until hatchling is done
        return Path(self._folder.name)

    def _compiled(self, place: Path) -> list[Path]:
        builder = _builder(Path(self.root) / KERNELS / "build.py")
        command = builder.compiler()
        if command is None:
            self.app.display_warning("splitrelay: no compiler, so no fast engine; the reference engine runs everything")
            return []
        made = []
        for kind in builder.kinds_here():
            try:
                builder.build(kind, command, place / builder.name(kind))
                made.append(place / builder.name(kind))
            except (OSError, subprocess.CalledProcessError) as error:
                self.app.display_warning(f"splitrelay: the fast engine for {kind} could not be built ({error})")
        return made


def _builder(path: Path) -> ModuleType:
    """splitrelay.kernels.build by its path: the package itself cannot be imported before it is installed."""
    spec = importlib.util.spec_from_file_location("splitrelay_kernels_build", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
