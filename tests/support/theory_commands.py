"""`splitrelay theory` asked in one line, and its answer as text, JSON, CSV or refusal."""

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


def asked(line: str) -> Result:
    return CliRunner().invoke(app, ["theory", *line.split()])


def printed(line: str) -> str:
    answer = asked(line)
    assert answer.exit_code == 0, answer.exception
    return answer.output


def json_of(line: str) -> Any:
    return json.loads(printed(f"{line} --format json"))


def rows_of(line: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(printed(f"{line} --format csv"))))


def refusal(line: str) -> str:
    """The one line of an error that leaves with code 2."""
    error = asked(line).exception
    assert isinstance(error, SplitrelayError), error
    assert error.exit_code == 2
    assert "\n" not in str(error)
    return str(error)


def process(line: str) -> subprocess.CompletedProcess[str]:
    script = "from splitrelay.cli.main import run; run()"
    return subprocess.run([sys.executable, "-c", script, *line.split()], capture_output=True, text=True, check=False)
