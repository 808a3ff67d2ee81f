"""Imports in src/ against a table of allowed imports, exported names, the version, and examples in docstrings."""

import ast
import doctest
import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import splitrelay

SOURCE = Path(str(splitrelay.__file__)).parent
BASE = {
    "errors",
    "atomic_files",
    "structured_text",
    "notation",
    "table",
    "vectors",
    "randomness",
    "tensor_types",
    "user_functions",
}
RUNS = {"algorithms", "participation", "training", "evaluation", "data", "models", "objectives", "engine", "kernels"}

# package or module: (parts of splitrelay it may import besides BASE, third-party packages)
ALLOWED: dict[str, tuple[set[str], set[str]]] = {
    "errors": (set(), set()),
    "atomic_files": (set(), set()),
    "structured_text": (set(), set()),
    "notation": (set(), set()),
    "table": (set(), set()),
    "tensor_types": (set(), set()),
    "user_functions": (set(), set()),
    "vectors": (set(), set()),
    "randomness": (set(), {"numpy"}),
    "theory": (set(), {"numpy"}),
    "algorithms": (set(), set()),
    "participation": (set(), set()),
    "data": (set(), {"numpy"}),
    "models": ({"kernels.network_plan", "kernels.builtin_models"}, {"numpy", "torch", "safetensors"}),
    "objectives": ({"data", "models"}, {"numpy", "torch"}),
    "engine": ({"algorithms.base", "data", "objectives", "models", "kernels", "evaluation"}, {"numpy", "torch"}),
    # kernels runs without torch: it may import only the parts of data, engine and objectives that do not need torch
    "kernels": ({"algorithms.base", "data.augment", "engine.base", "objectives.batches"}, {"numpy"}),
    "training": ({"algorithms", "participation", "engine", "objectives"}, {"numpy"}),
    "evaluation": ({"data", "models", "objectives"}, {"torch"}),
    "testing": ({"algorithms", "participation", "engine", "objectives", "training"}, {"numpy"}),
    "runs": (RUNS | {"reports"}, {"numpy", "torch", "pydantic", "safetensors", "tomli_w"}),
    "tracking": ({"runs"}, set()),
    "sweeps": (RUNS | {"runs", "reports"}, {"numpy", "torch", "pydantic", "ray"}),
    "reports": (RUNS | {"runs", "theory", "paper.cells", "paper.demo"}, {"numpy", "matplotlib"}),
    "security": (set(), {"cryptography", "grpc"}),
    "network": ({"engine.base", "security"}, {"numpy", "grpc", "google", "safetensors", "xxhash"}),
    "deploy": (
        RUNS | {"runs", "network", "security"},
        {"numpy", "torch", "safetensors", "grpc", "xxhash"},
    ),
    "chaos": (RUNS | {"runs", "network", "security", "deploy"}, {"numpy", "grpc"}),
    "api": (RUNS | {"runs"}, {"numpy", "torch", "sklearn", "pandas", "matplotlib"}),
    "paper": (
        RUNS | {"runs", "sweeps", "reports", "theory"},
        {"numpy", "matplotlib", "torch", "pydantic", "threadpoolctl"},
    ),
    # only cli imports web; it imports parts of deploy, and so torch and gRPC, when a view needs them
    "web": (RUNS | {"runs", "sweeps.sweep", "reports", "theory"}, {"numpy"}),
    "cli": (
        RUNS
        | {"runs", "sweeps", "tracking", "reports", "theory", "network", "security", "deploy", "chaos", "paper", "web"},
        {"click"},
    ),
}


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found += [
                f"{node.module}.{alias.name}" if node.module == "splitrelay" else str(node.module)
                for alias in node.names
            ]
    return found


def find_forbidden_imports(path: Path) -> list[str]:
    part = part_of(path)
    parts, packages = ALLOWED[part]
    return [name for name in imports(path) if not is_allowed(name, part, parts | BASE, packages)]


def is_allowed(name: str, part: str, parts: set[str], packages: set[str]) -> bool:
    top, _, inner = name.partition(".")
    if top != "splitrelay":
        return top in sys.stdlib_module_names or top in packages
    if inner == "__version__":
        return True
    return any(inner == other or inner.startswith(f"{other}.") for other in parts | {part})


MODULES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_are_allowed(path: Path) -> None:
    assert find_forbidden_imports(path) == []


def test_a_forbidden_import_is_detected() -> None:
    assert not is_allowed("splitrelay.algorithms.base", "theory", BASE, {"numpy"})
    assert not is_allowed("torch", "theory", BASE, {"numpy"})
    assert not is_allowed("splitrelay.algorithms.fedavg", "engine", {"algorithms.base"}, set())


def test_no_module_carries_a_forbidden_name() -> None:
    assert not {path.stem for path in MODULES} & {"ssl", "random", "typing", "utils", "helpers"}


ROOT = Path(__file__).parents[2]
PACKAGES = [".".join(path.parent.relative_to(SOURCE.parent).parts) for path in sorted(SOURCE.rglob("__init__.py"))]
MODULE_NAMES = [
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
    for path in sorted(SOURCE.rglob("*.py"))
    if path.stem not in ("__init__", "__main__")
]
HEADING = re.compile(r"^## \[(\S+)\]", re.MULTILINE)


def import_module(name: str) -> ModuleType:
    """Import a module. Skip the test where it needs a package that is not installed, for example torch."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if str(error.name).startswith("splitrelay"):
            raise
        pytest.skip(f"needs {error.name}")


@pytest.mark.parametrize("name", PACKAGES + MODULE_NAMES)
def test_every_promised_name_is_there(name: str) -> None:
    module = import_module(name)
    promised = getattr(module, "__all__", [])
    assert len(set(promised)) == len(promised)
    assert [missing for missing in promised if not hasattr(module, missing)] == []


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_that_gathers_names_promises_them(name: str) -> None:
    package = import_module(name)
    source = Path(str(package.__file__)).read_text(encoding="utf-8")
    gathers = re.search(rf"^from {re.escape(name)}\.", source, re.MULTILINE)
    assert gathers is None or package.__all__


def test_the_package_is_typed() -> None:
    assert (SOURCE / "py.typed").exists()


def test_the_changelog_begins_with_this_version() -> None:
    headings = HEADING.findall((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    assert headings[0] == splitrelay.__version__


SRC = Path(__file__).parents[2] / "src"
MODULES_WITH_EXAMPLES = sorted(
    ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
    for path in SRC.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", MODULES_WITH_EXAMPLES)
def test_examples_in_docstrings_are_correct(name: str) -> None:
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted and not results.failed
