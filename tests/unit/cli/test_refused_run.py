"""A run that is refused leaves no folder behind."""

from pathlib import Path

import pytest

from tests.support.command_line import invoke


@pytest.mark.parametrize("setting", ["cut=nonsense", "metrics=nonsense", "order=nonsense", "schedule=step", "G=3"])
def test_a_refused_run_leaves_nothing(setting: str, tmp_path: Path) -> None:
    answer = invoke(f"splitrelay run M=5 K=1 R=1 {setting} --out {tmp_path}/run")
    assert answer.code == 2
    assert not (tmp_path / "run").exists()


def test_an_existing_folder_stays(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert invoke(f"splitrelay run M=5 K=1 R=1 cut=nonsense --out {tmp_path}/run").code == 2
    assert (tmp_path / "run").is_dir()
