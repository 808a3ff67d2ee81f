"""What a record says about the machine: the commit of the code and the number of torch threads."""

import json
import subprocess
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from splitrelay.cli.main import app
from splitrelay.deploy.deployed_run import check_deployable
from splitrelay.engine.torch_threads import choose_faster, limit_torch_threads, measure_threads
from splitrelay.errors import InputError
from splitrelay.evaluation import Score
from splitrelay.objectives.network import Network
from splitrelay.runs.build import choose_threads, resolve_spec
from splitrelay.runs.execute import build_trainer, keep_threads
from splitrelay.runs.machine import COMMIT_FILE, UNKNOWN_COMMIT, describe_commit, describe_environment
from splitrelay.runs.spec import load_spec, make_spec
from splitrelay.runs.trainer import set_deterministic
from tests.support.deployment import simulate_run, small_spec
from tests.support.error_fields import expect_error


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


def test_threads_are_recorded_and_restored(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    directory = simulate_run(small_spec(tmp_path, "threads=2", "engine=reference"), tmp_path / "run")
    environment = json.loads((directory.path / "environment.json").read_text())
    assert (environment["threads"], environment["device"]) == (2, "cpu")
    assert torch.get_num_threads() == before
    with limit_torch_threads(2), set_deterministic(torch.device("cpu")):
        assert torch.get_num_threads() == 2


def test_one_thread_is_the_default_and_keeps_the_hash(tmp_path: Path) -> None:
    assert make_spec(threads=1).hash == make_spec().hash != make_spec(threads=2).hash
    small = resolve_spec(small_spec(tmp_path, "threads=0", "engine=reference"))[0]
    assert small.threads >= 1  # never 0, so that the number is part of the record


def test_threads_are_measured_only_where_they_can_help(tmp_path: Path) -> None:
    def refuse() -> Network:
        raise AssertionError("nothing is measured")

    for key, cores in ((("engine=fast", "algorithm=ssl"), 2), (("engine=reference", "algorithm=fedavg"), 2), ((), 1)):
        threads, reason = choose_threads(small_spec(tmp_path, *key), refuse, cores)
        assert threads == 1
        assert reason


def test_several_threads_must_gain() -> None:
    assert choose_faster(1.0, 0.95, 4)[0] == 1
    assert choose_faster(1.0, 0.5, 4)[0] == 4


def test_measured_threads_time_both_numbers() -> None:
    seen: list[int] = []
    assert measure_threads(lambda: seen.append(torch.get_num_threads()), 2)[0] in (1, 2)
    assert set(seen) == {1, 2}


def test_a_continued_run_keeps_its_threads(tmp_path: Path) -> None:
    directory = simulate_run(small_spec(tmp_path, "threads=2", "engine=reference"), tmp_path / "run")
    again = small_spec(tmp_path, "threads=0", "engine=reference")
    assert keep_threads(again, directory).hash == load_spec(directory.spec).hash


def test_evaluation_does_not_use_the_threads_of_training(tmp_path: Path) -> None:
    """Otherwise the bits of an evaluation would depend on the moment at which its threads started."""
    trainer = build_trainer(small_spec(tmp_path, "threads=2", "engine=reference"))[0]
    inner, seen = trainer.evaluator.score, []

    class Watched:
        def score(self, x: torch.Tensor) -> Score:
            seen.append(torch.get_num_threads())
            return inner(x)

    trainer.evaluator = Watched()
    list(trainer.run(1))
    assert seen == [1, 1]


def test_threads_are_refused_where_they_have_no_effect(tmp_path: Path) -> None:
    with expect_error(InputError, what="threads"):
        resolve_spec(small_spec(tmp_path, "threads=2", "engine=fast"))
    with expect_error(InputError, value="threads=2"):
        check_deployable(small_spec(tmp_path, "threads=2"))
