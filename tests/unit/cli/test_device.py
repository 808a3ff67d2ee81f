"""--device: every command that trains or evaluates has it, and refuses a device that does not exist here."""

from pathlib import Path

import pytest

from tests.support.command_line import invoke


@pytest.mark.parametrize(
    "command",
    [
        "run R=1 K=1 M=5 --out {folder}/new",
        "sweep R=1 K=1 M=5 eta=0.1,0.2 --out {folder}/new",
        "grid R=1 K=1 M=5 eta=0.1,0.2 --out {folder}/new",
        "evaluate {folder}/run",
        "verify {folder}/run",
    ],
    ids=lambda command: command.split()[0],
)
def test_an_unknown_device_is_refused(command: str, tmp_path: Path) -> None:
    assert invoke(f"splitrelay run R=1 K=1 M=5 --out {tmp_path}/run").code == 0
    answer = invoke(f"splitrelay {command.format(folder=tmp_path)} --device abacus")
    assert answer.code == 2
    assert "abacus" in answer.output
    assert not (tmp_path / "new" / "spec.toml").exists()


@pytest.mark.parametrize("command", ["evaluate", "verify"])
def test_the_cpu_is_a_device(command: str, tmp_path: Path) -> None:
    assert invoke(f"splitrelay run R=1 K=1 M=5 engine=reference --out {tmp_path}/run").code == 0
    assert invoke(f"splitrelay {command} {tmp_path}/run --device cpu").code == 0
