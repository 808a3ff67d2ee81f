"""Wrong types in the Python API, and errors in the user's own code with their file and line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from splitrelay.cli.main import app, explain_error
from splitrelay.data.partition_schemes import draw_partition
from splitrelay.errors import InputError
from splitrelay.models import get_model_spec
from splitrelay.objectives.losses import get_loss
from splitrelay.runs.build import get_device
from splitrelay.runs.registry import algorithm

LABELS = np.arange(20) % 2
WRONG: dict[str, Callable[[Any], Any]] = {
    "partition": lambda value: draw_partition(value, LABELS, M=2),
    "algorithm": algorithm,
    "device": get_device,
    "model": lambda value: get_model_spec(value, (1, 8, 8), 2),
    "loss": get_loss,
    "M": lambda value: draw_partition("iid", LABELS, M=value),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("value", [None, 3.5, ["ssl"]])
def test_wrong_type_is_an_input_error(name: str, value: Any) -> None:
    with pytest.raises(InputError):
        WRONG[name](value)


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("build_fails", "def net():\n    return 1 / 0\n", 2),
        ("import_fails", "x = 1\nx.missing_name_of_an_int\n\n\ndef net():\n    pass\n", 2),
        ("syntax_fails", "def net(:\n", 1),
    ],
)
def test_error_in_own_model_names_file_and_line(
    name: str, text: str, line: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"{name}.py").write_text(text)
    error = CliRunner().invoke(app, ["run", "data=digits", f"model={name}:net", "R=1"]).exception
    assert isinstance(error, Exception)
    message, code = explain_error(error)
    assert f"{name}.py, line {line}" in message and "report it" not in message and code != 0
