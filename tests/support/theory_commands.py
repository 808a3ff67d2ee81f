"""Run `splitrelay theory` with one line, and return its output as text, JSON, CSV or an error."""

import csv
import io
import json
import subprocess
import sys
from typing import Any

from click.testing import CliRunner, Result

from splitrelay import theory
from splitrelay.cli.main import app
from splitrelay.errors import SplitrelayError

BASE = "L=2 mu=1 sigma2=1 zeta2=4 M=10 K=5 D2=1"
GOOD = f"{BASE} R=100 eta_tilde=1/12"
PROBLEM = theory.Problem(L=2, mu=1, sigma2=1, zeta2=4, M=10, K=5, D2=1, R=100, S=2, A=1, B2=0.5)


def run_theory(line: str) -> Result:
    return CliRunner().invoke(app, ["theory", *line.split()])


def get_output(line: str) -> str:
    answer = run_theory(line)
    assert answer.exit_code == 0, answer.exception
    return answer.output


def get_json(line: str) -> Any:
    return json.loads(get_output(f"{line} --format json"))


def get_rows(line: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(get_output(f"{line} --format csv"))))


def get_error(line: str) -> SplitrelayError:
    """Return the error of a command that exits with code 2 and one line of text."""
    error = run_theory(line).exception
    assert isinstance(error, SplitrelayError), error
    assert error.exit_code == 2
    assert "\n" not in str(error)
    return error


def run_process(line: str) -> subprocess.CompletedProcess[str]:
    script = "from splitrelay.cli.main import run; run()"
    return subprocess.run([sys.executable, "-c", script, *line.split()], capture_output=True, text=True, check=False)
