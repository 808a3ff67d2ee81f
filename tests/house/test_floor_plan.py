"""Rooms and doors: which room may import which, and which third parties it may let in."""

import ast
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "splitrelay"
CELLAR = {"errors", "files", "notation", "vectors", "randomness", "traffic"}
LOWER = {"theory", "algorithms", "orders", "data", "models", "objectives", "clients", "kernels"}
EXPERIMENTS = LOWER | {"training", "evaluation", "records", "testing"}
DEPLOY = EXPERIMENTS | {"experiments", "wire"}

# room: (rooms it may import beside the cellar, third parties)
PLAN: dict[str, tuple[set[str], set[str]]] = {
    "errors": (set(), set()),
    "files": (set(), set()),
    "notation": (set(), set()),
    "vectors": (set(), set()),
    "randomness": (set(), {"numpy"}),
    "traffic": (set(), set()),
    "theory": (set(), {"numpy"}),
    "algorithms": (set(), set()),
    "orders": (set(), set()),
    "data": (set(), {"numpy"}),
    "models": ({"kernels.plan", "kernels.builtin_plans"}, {"torch", "safetensors"}),
    "objectives": ({"data", "models"}, {"numpy", "torch"}),
    "clients": ({"algorithms.base", "objectives", "models"}, {"numpy", "torch"}),
    "kernels": ({"algorithms.base"}, {"numpy"}),
    "wire": ({"algorithms.base", "clients"}, {"numpy", "grpc", "google", "cryptography", "safetensors", "xxhash"}),
    "training": ({"algorithms", "orders", "clients", "objectives"}, {"numpy"}),
    "evaluation": ({"models", "objectives"}, {"torch"}),
    "records": (set(), {"torch", "safetensors"}),
    "testing": ({"algorithms", "orders", "clients", "objectives", "training"}, {"numpy"}),
    "experiments": (EXPERIMENTS, {"numpy", "matplotlib", "torch", "pydantic", "ray", "threadpoolctl"}),
    "deploy": (DEPLOY, {"numpy", "torch", "safetensors", "pydantic", "grpc", "xxhash"}),
    "cli": (DEPLOY | {"deploy"}, {"click"}),
}


def room_of(path: Path) -> str:
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


def trespasses(path: Path) -> list[str]:
    room = room_of(path)
    rooms, guests = PLAN[room]
    return [name for name in imports(path) if not allowed(name, room, rooms | CELLAR, guests)]


def allowed(name: str, room: str, rooms: set[str], guests: set[str]) -> bool:
    top, _, inner = name.partition(".")
    if top != "splitrelay":
        return top in sys.stdlib_module_names or top in guests
    if inner == "__version__":
        return True
    return any(inner == door or inner.startswith(f"{door}.") for door in rooms | {room})


MODULES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_doors(path: Path) -> None:
    assert trespasses(path) == []


def test_a_trespass_is_seen() -> None:
    assert not allowed("splitrelay.algorithms.base", "theory", CELLAR, {"numpy"})
    assert not allowed("torch", "theory", CELLAR, {"numpy"})
    assert not allowed("splitrelay.algorithms.fedavg", "clients", {"algorithms.base"}, set())


def test_no_module_carries_a_forbidden_name() -> None:
    assert not {path.stem for path in MODULES} & {"ssl", "random", "typing", "utils", "helpers"}
