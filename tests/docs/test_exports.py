"""What the packages promise by name is there, typed, and carries the version that the changelog announces."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import splitrelay
from splitrelay.network import limits

ROOT = Path(__file__).parents[2]
SOURCE = Path(str(splitrelay.__file__)).parent
PACKAGES = [".".join(path.parent.relative_to(SOURCE.parent).parts) for path in sorted(SOURCE.rglob("__init__.py"))]
MODULES = [
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
    for path in sorted(SOURCE.rglob("*.py"))
    if path.stem not in ("__init__", "__main__")
]
HEADING = re.compile(r"^## \[(\S+)\]", re.MULTILINE)


@pytest.fixture(autouse=True)
def _unhurried() -> Iterator[None]:
    """One module makes everything happen sooner, for the programs that import it: not for the tests after this one."""
    before = dict(vars(limits))
    yield
    vars(limits).update(before)


def imported(name: str) -> ModuleType:
    """The module; skipped where it needs a third party that is not installed, as in a core without torch."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if str(error.name).startswith("splitrelay"):
            raise
        pytest.skip(f"needs {error.name}")


@pytest.mark.parametrize("name", PACKAGES + MODULES)
def test_every_promised_name_is_there(name: str) -> None:
    module = imported(name)
    promised = getattr(module, "__all__", [])
    assert len(set(promised)) == len(promised)
    assert [missing for missing in promised if not hasattr(module, missing)] == []


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_that_gathers_names_promises_them(name: str) -> None:
    package = imported(name)
    source = Path(str(package.__file__)).read_text(encoding="utf-8")
    gathers = re.search(rf"^from {re.escape(name)}\.", source, re.MULTILINE)
    assert gathers is None or package.__all__


def test_the_package_is_typed() -> None:
    assert (SOURCE / "py.typed").exists()


def test_the_changelog_begins_with_this_version() -> None:
    headings = HEADING.findall((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    assert headings[0] == splitrelay.__version__
