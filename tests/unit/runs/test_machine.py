"""The commit of the code in the record of a run."""

import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from splitrelay.cli.main import app
from splitrelay.runs.machine import COMMIT_FILE, UNKNOWN_COMMIT, describe_commit, describe_environment


def git(folder: Path, *words: str) -> str:
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    return subprocess.run(["git", "-C", folder, *author, *words], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a package folder that is committed in a repository."""
    folder = tmp_path / "src" / "package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("a = 1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "first")
    return folder


def test_the_commit_of_a_checkout(package: Path) -> None:
    commit = git(package, "rev-parse", "HEAD").strip()
    assert describe_commit(package) == {"commit": commit, "modified": False}


def test_a_changed_file_and_a_new_file_count_as_changes(package: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not part of the package\n")
    (package / "new.py").write_text("b = 2\n")
    assert describe_commit(package)["modified"] is True


def test_files_beside_the_package_are_no_changes(package: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not part of the package\n")
    assert describe_commit(package)["modified"] is False


def test_the_repository_around_an_installed_package_is_not_its_own(package: Path, tmp_path: Path) -> None:
    installed = tmp_path / "venv" / "package"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("a = 1\n")
    assert describe_commit(installed) == {"commit": UNKNOWN_COMMIT, "modified": False}
    (installed / COMMIT_FILE).write_text("abc123 modified\n")
    describe_commit.cache_clear()
    assert describe_commit(installed) == {"commit": "abc123", "modified": True}


def test_a_run_records_the_commit_and_show_prints_it(tmp_path: Path) -> None:
    path = tmp_path / "run"
    words = ["run", "M=2", "C=5", "K=1", "R=1", "model=logistic", "--out", str(path)]
    assert CliRunner().invoke(app, words).exit_code == 0
    expected = describe_environment()
    recorded = json.loads((path / "environment.json").read_text())
    assert (recorded["commit"], recorded["modified"]) == (expected["commit"], expected["modified"])
    assert expected["commit"] in CliRunner().invoke(app, ["show", str(path)]).output
    shown = json.loads(CliRunner().invoke(app, ["show", str(path), "--format", "json"]).stdout)
    assert shown["environment"]["commit"] == expected["commit"]
    (path / "environment.json").write_text("{")  # rows can be shown without it
    assert CliRunner().invoke(app, ["show", str(path)]).exit_code == 0
