"""The public interface: its names, and what importing it costs."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import splitrelay as sr

NAMES = [name for name in sr.__all__ if name not in ("__version__", "runs", "theory")]


def test_importing_the_package_imports_no_large_library() -> None:
    code = (
        "import sys, splitrelay; print(*sorted({'torch', 'numpy', 'sklearn', 'pandas', 'pydantic'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_completion_offers_the_public_names_only() -> None:
    assert set(dir(sr)) - {"__version__"} == {*NAMES, "runs", "theory"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(sr, "no_such_name")


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_exists_and_is_documented(name: str) -> None:
    assert inspect.getdoc(getattr(sr, name))


def test_the_page_lists_every_public_name() -> None:
    page = (Path(__file__).parents[3] / "docs" / "python.md").read_text()
    listed = set(re.findall(r"`(\w+)`", page.partition("## All names")[2]))
    assert listed == {name for name in sr.__all__ if name != "__version__"}
