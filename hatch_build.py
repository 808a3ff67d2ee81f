"""Compile the fast engine when the package is built: into the wheel, or in place for an editable installation.

If there is no compiler, or it fails, the package has no fast engine, and a warning says so.
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
    """Build every kind that machines of this family can use; splitrelay chooses one when it runs."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and add the files to the wheel."""
        if self.target_name != "wheel":
            return
        made = self._compile(self._get_folder(version))
        if made and version != "editable":
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
            build_data["force_include"].update({str(path): f"splitrelay/kernels/{path.name}" for path in made})

    def _get_folder(self, version: str) -> Path:
        if version == "editable":
            return Path(self.root) / KERNELS
        self._folder = tempfile.TemporaryDirectory(prefix="splitrelay-")  # must live until hatchling is done
        return Path(self._folder.name)

    def _compile(self, folder: Path) -> list[Path]:
        builder = _import_by_path(Path(self.root) / KERNELS / "build.py")
        command = builder.find_compiler()
        if command is None:
            self.app.display_warning("splitrelay: no compiler, so no fast engine; the reference engine runs everything")
            return []
        made = []
        for kind in builder.get_kinds():
            try:
                builder.build(kind, command, folder / builder.get_file_name(kind))
                made.append(folder / builder.get_file_name(kind))
            except (OSError, subprocess.CalledProcessError) as error:
                self.app.display_warning(f"splitrelay: the fast engine for {kind} could not be built ({error})")
        return made


def _import_by_path(path: Path) -> ModuleType:
    """Import splitrelay.kernels.build by its path: the package cannot be imported before it is installed."""
    spec = importlib.util.spec_from_file_location("splitrelay_kernels_build", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
