"""Compile the fast engine when the package is built: into the wheel, or in place for an editable installation.

If there is no compiler, or it fails, the package has no fast engine, and a warning says so. tools/release.py sets
SPLITRELAY_WHEEL to build a wheel for a given family of machines; a failure is then an error.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

KERNELS = Path("src") / "splitrelay" / "kernels"
TARGET = "SPLITRELAY_WHEEL"  # x86_64, aarch64, or any: a wheel without the fast engine


class Kernels(BuildHookInterface):  # type: ignore[type-arg]
    """Build every kind that machines of one family can use; splitrelay chooses one when it runs."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and add the files to the wheel."""
        target = os.environ.get(TARGET, "")
        if self.target_name != "wheel":
            return
        folder = self._get_folder(version)
        if version != "editable":
            self._add_commit(folder, build_data)
        if target == "any":
            return
        builder = _import_by_path(Path(self.root) / KERNELS / "build.py")
        command = builder.find_compiler("zig" if target else None)
        made = self._compile(builder, command, folder, target)
        if made and version != "editable":
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{_get_platform(builder, target)}"
            build_data["force_include"].update({str(path): f"splitrelay/kernels/{path.name}" for path in made})

    def _get_folder(self, version: str) -> Path:
        if version == "editable":
            return Path(self.root) / KERNELS
        self._folder = tempfile.TemporaryDirectory(prefix="splitrelay-")  # must live until hatchling is done
        return Path(self._folder.name)

    def _add_commit(self, folder: Path, build_data: dict[str, Any]) -> None:
        """Add the file COMMIT, which splitrelay.runs.machine reads. An sdist outside a repository has no commit."""
        git = ["git", "--no-optional-locks", "-C", self.root]
        try:
            asked = [subprocess.run([*git, *words], capture_output=True, text=True, check=True).stdout.strip()
                     for words in (("rev-parse", "HEAD"), ("ls-files", "src/splitrelay/__init__.py"),
                                   ("status", "--porcelain", "--", "src"))]  # fmt: skip
        except (OSError, subprocess.CalledProcessError):
            return
        commit, is_tracked, changes = asked
        if is_tracked:
            (folder / "COMMIT").write_text(f"{commit}{' modified' * bool(changes)}\n", encoding="ascii")
            build_data["force_include"][str(folder / "COMMIT")] = "splitrelay/COMMIT"

    def _compile(self, builder: ModuleType, command: list[str] | None, folder: Path, target: str) -> list[Path]:
        if command is None:
            self.app.display_warning("splitrelay: no compiler, so no fast engine; the reference engine runs everything")
            return []
        made = []
        for kind in builder.get_kinds(target):
            try:
                builder.build(kind, command, folder / builder.get_file_name(kind))
                made.append(folder / builder.get_file_name(kind))
            except (OSError, subprocess.CalledProcessError) as error:
                if target:
                    raise
                self.app.display_warning(f"splitrelay: the fast engine for {kind} could not be built ({error})")
        if target and not made:
            raise RuntimeError(f"{TARGET}={target} is not known. Known: x86_64, aarch64, any.")
        return made


def _get_platform(builder: ModuleType, target: str) -> str:
    """Return the platform tag: that of this machine, or of a release, which zig builds for an old C library."""
    if not target:
        return sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return f"manylinux_{builder.GLIBC.replace('.', '_')}_{target}.manylinux2014_{target}"


def _import_by_path(path: Path) -> ModuleType:
    """Import splitrelay.kernels.build by its path: the package cannot be imported before it is installed."""
    spec = importlib.util.spec_from_file_location("splitrelay_kernels_build", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
