"""The documentation site builds without warnings: every link between pages, and every anchor, exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import splitrelay as sr

ROOT = Path(__file__).parents[2]


def build_site(out: Path, source: Path = ROOT) -> subprocess.CompletedProcess[str]:
    options = ["--conf-dir", str(source / "docs"), "--fail-on-warning", "--keep-going", "--quiet"]
    command = [sys.executable, "-m", "sphinx", *options, "--doctree-dir", str(out / "doctrees"), str(source), str(out)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    built = build_site(out)
    assert built.returncode == 0, built.stderr
    return out


def test_every_page_is_in_the_site(site: Path) -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    missing = [page for page in pages if not (site / page.relative_to(ROOT)).with_suffix(".html").exists()]
    assert missing == []


def test_the_site_loads_nothing_from_other_hosts(site: Path) -> None:
    loads = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=["'](?:https?:)?//[^"']*""")
    assert {found for page in site.rglob("*.html") for found in loads.findall(page.read_text())} == set()


def test_the_search_works_without_a_server(site: Path) -> None:
    index = (site / "searchindex.js").read_text()
    assert "docs/tutorial" in index and "handov" in index  # the stem of handover


def test_a_broken_link_fails(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "docs").mkdir(parents=True)
    (source / "docs" / "conf.py").write_text((ROOT / "docs" / "conf.py").read_text())
    (source / "docs" / "site").mkdir()
    (source / "docs" / "site" / "site.css").write_text("")
    (source / "CHANGELOG.md").write_text("# Changelog\n")
    (source / "docs" / "page.md").write_text("# Page\n\n[Missing](page.md#nothing)\n")
    (source / "docs" / "index.md").write_text("# Start\n\n**Pages**\n\n[Page](page.md)\n")
    broken = build_site(tmp_path / "out", source)
    assert broken.returncode != 0
    (source / "docs" / "page.md").write_text("# Page\n\n## Nothing\n\n[Found](page.md#nothing)\n")
    assert build_site(tmp_path / "out2", source).returncode == 0


def test_the_site_has_the_reference_of_every_public_name(site: Path) -> None:
    page = (site / "docs" / "python.html").read_text()
    names = [name for name in sr.__all__ if not isinstance(getattr(sr, name), str | ModuleType)]
    missing = [name for name in names if not re.search(rf'id="splitrelay[\w.]*\.{name}"', page)]
    assert missing == []
