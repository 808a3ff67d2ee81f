"""Addresses of a Ray: what is no address, or one where nobody is, is told before anything starts."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from splitrelay.cli.main import app
from splitrelay.errors import InputError
from splitrelay.sweeps.ray_backend import check_address, make_connection_error
from tests.support.error_fields import expect_error


def test_words_that_need_nobody_to_answer() -> None:
    assert check_address("ray") is None
    assert check_address("auto") == "auto"


@pytest.mark.parametrize("word", ["head", "head:", ":6379", "head:0", "head:65536", "head:x", "ray://", "", "slurm"])
def test_what_is_no_address_is_refused(word: str) -> None:
    with expect_error(InputError, value=repr(word), limit=("host:port", "ray://host:port")):
        check_address(word)


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}"])
def test_an_address_where_nobody_answers_is_refused(form: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    words = ["sweep", "data=digits", "R=1", "eta=0.1,0.3", "--on", form.format(port), "--out", str(tmp_path / "sweep")]
    answer = CliRunner().invoke(app, words)
    assert isinstance(answer.exception, InputError)
    assert str(port) in str(answer.exception) and "ray start --head" in str(answer.exception)
    assert not (tmp_path / "sweep").exists()


def test_a_host_that_is_too_slow_is_not_taken_for_a_wrong_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert "token" in str(make_connection_error("ray://head:1", ConnectionError("Unauthenticated")))
    slow = str(
        make_connection_error(
            "ray://head:1", ConnectionError("RuntimeError: Starting Ray client server failed. See x.err")
        )
    )
    assert "token" not in slow


def test_the_messengers_process_reads_no_torch() -> None:
    """It starts beside those that do: with torch in it too, a sweep on Ray would begin seconds later."""
    code = "import sys, splitrelay.sweeps.ray_backend; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
