"""The checks of tools/release.py that need no network."""

from __future__ import annotations

import importlib.util
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


release = load(ROOT / "tools" / "release.py")


@pytest.mark.parametrize(
    ("found", "is_accepted"),
    [
        ("manylinux_2_17_x86_64", True),
        ("manylinux_2_5_x86_64", True),
        ("manylinux_2_28_x86_64", False),
        ("manylinux_2_17_aarch64", False),
        ("linux_x86_64", False),
    ],
)
def test_a_tag_is_accepted_only_for_this_or_an_older_c_library(found: str, is_accepted: bool) -> None:
    assert release.is_accepted(found, "manylinux_2_17_x86_64") is is_accepted


def test_a_folder_with_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old.whl").write_text("")
    assert release.main(["--out", str(tmp_path), "--allow-changes"]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["old.whl"]


def write_wheel(folder: Path, names: set[str]) -> Path:
    """Write a wheel with empty files of these names."""
    wheel = folder / "splitrelay-0.1.0-py3-none-manylinux_2_17_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in names:
            archive.writestr(name, "")
    return wheel


def test_a_wheel_without_its_kernels_is_refused(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, release.list_page_files())
    with pytest.raises(release.ReleaseError):
        release.check_wheel(sys.executable, "x86_64", wheel)
    release.check_wheel(sys.executable, "any", wheel)  # the wheel for other systems has none


def test_a_wheel_without_a_file_of_the_page_is_refused(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path, release.list_page_files() - {"splitrelay/web/static/index.html"})
    with pytest.raises(release.ReleaseError):
        release.check_wheel(sys.executable, "any", wheel)


def test_checksums_are_those_of_sha256sum(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    release.write_checksums(tmp_path)
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert (tmp_path / "SHA256SUMS").read_text() == f"{digest}  a\n"


def test_every_family_of_machines_has_builds() -> None:
    build = load(ROOT / "src" / "splitrelay" / "kernels" / "build.py")
    for target, count in release.KERNELS.items():
        assert len(build.get_kinds(target)) == count
