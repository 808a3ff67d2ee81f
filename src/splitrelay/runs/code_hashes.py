"""Hashes of the user's modules. This module does not import torch: deployed clients compare their code with it."""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from threading import Lock

from splitrelay.runs.spec import Spec
from splitrelay.runs.user_parts import list_code

Sources = dict[str, str]  # name of a file: its SHA-256
PARSING = Lock()  # CPython before 3.11.8 may crash if two threads parse source code (gh-106905)


def compute_code(spec: Spec) -> Sources:
    """Return the hash of every module of the user that a spec names, and of the modules of its folder it imports."""
    code: Sources = {}
    for target in list_code(spec):
        code.update(_hash_module(target.partition(":")[0]))
    return code


def find_module_file(name: str) -> Path | None:
    """Return the file that is executed if a module is imported, or None. Packages above it are imported."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # as for the import itself
    try:
        found = find_spec(name)
    except (ImportError, ValueError):
        return None
    if found is None or found.origin is None or not Path(found.origin).is_file():
        return None
    return Path(found.origin).resolve()


def _hash_module(name: str) -> Sources:
    file = find_module_file(name)
    if file is None:
        return {}
    top = (
        file.parents[name.count(".") + (file.name == "__init__.py")] if name.count(".") < len(file.parts) - 1 else file
    )
    is_installed = "site-packages" in file.parts
    files = {file} if is_installed else _find_imports(file, top)
    return {f"module {path.relative_to(top).as_posix()}": hash_path(path) for path in sorted(files)}


def _find_imports(file: Path, top: Path) -> set[Path]:
    """Return a module, and all modules in and below its folder that it imports, directly or indirectly."""
    found, waiting = {file}, [file]
    while waiting:
        path = waiting.pop()
        new = set(_iterate_imported_files(path, top)) - found
        found |= new
        waiting += new
    return found


def list_definitions(file: Path) -> set[str]:
    """Return the names of the functions and classes that a module defines, and to which it assigns values."""
    found, waiting = set[str](), list[ast.AST](_parse(file))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)  # what is defined inside is not a name of the module
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        waiting += ast.iter_child_nodes(node)
    return found


def _parse(file: Path) -> list[ast.stmt]:
    try:
        with PARSING:
            return ast.parse(file.read_bytes()).body
    except (SyntaxError, ValueError):
        return []


def _iterate_imported_files(file: Path, top: Path) -> Iterator[Path]:
    for node in ast.walk(ast.Module(_parse(file), [])):
        if isinstance(node, ast.Import):
            names, base = [alias.name for alias in node.names], top
        elif isinstance(node, ast.ImportFrom):
            prefix = f"{node.module}." if node.module else ""
            names = [node.module or "", *(f"{prefix}{alias.name}" for alias in node.names)]
            base = file.parents[node.level - 1] if node.level else top
        else:
            continue
        for name in filter(None, names):
            parts = name.split(".")
            for length in range(1, len(parts) + 1):
                path = base.joinpath(*parts[:length])
                yield from (each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file())


def hash_path(path: Path) -> str:
    """Return the SHA-256 of a file, or of the names and hashes of all files in a folder."""
    if path.is_dir():
        inside = (each for each in sorted(path.rglob("*")) if each.is_file())
        text = "".join(f"{each.relative_to(path).as_posix()} {hash_path(each)}\n" for each in inside)
        return hashlib.sha256(text.encode()).hexdigest()
    stat = path.stat()
    return _hash_file(path.resolve(), stat.st_mtime_ns, stat.st_size, stat.st_ino)


@lru_cache(4096)  # the points of a sweep share their data; the other arguments notice a change
def _hash_file(path: Path, *stamp: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
