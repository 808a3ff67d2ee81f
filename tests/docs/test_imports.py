"""Check every import in src/ against a table of allowed imports."""

import ast
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "splitrelay"
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
    "models": ({"kernels.network_plan", "kernels.builtin_plans"}, {"numpy", "torch", "safetensors"}),
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
    # only cli imports web; torch and gRPC are imported by its modules visits and federation when they are needed
    "web": (
        RUNS
        | {"runs", "sweeps.sweep", "reports", "theory", "deploy.client_usage", "deploy.events", "deploy.visit_cost"},
        {"numpy"},
    ),
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
