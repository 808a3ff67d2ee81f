"""The demo leaves nobody behind, however it ends. Real processes: all of them hold its stderr until they are gone."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from splitrelay.paper.demo import Point, run_point
from splitrelay.runs.records import runs_under
from splitrelay.runs.run_directory import remove_measurements

PATIENCE = 300  # seconds, on a machine where much else runs


def ctrl_c(demo: subprocess.Popen[str]) -> None:
    os.killpg(demo.pid, signal.SIGINT)  # a terminal tells everybody


def kill_9(demo: subprocess.Popen[str]) -> None:
    os.kill(demo.pid, signal.SIGKILL)  # the others are not told


@pytest.mark.parametrize(("end", "code"), [(ctrl_c, 130), (kill_9, -signal.SIGKILL)])
def test_no_process_outlives_a_demo_that_was_stopped_as_it_began(
    end: Callable[[subprocess.Popen[str]], None], code: int, tmp_path: Path
) -> None:
    # Ctrl-C is heard, also where these tests were started in the background, which ignores it and hands that on.
    program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    program += "from splitrelay.cli.main import run; run()"
    words = [sys.executable, "-c", program, "demo", "--workers", "2", "--out", str(tmp_path)]
    with subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as demo:
        try:
            assert demo.stderr is not None
            assert "algorithm" in demo.stderr.readline()  # the head of its table: the processes are starting now
            end(demo)
            _, said = demo.communicate(timeout=PATIENCE)  # until nobody holds stderr any more
            assert demo.returncode == code
            assert end is kill_9 or "Traceback" not in said  # who was killed cannot choose its last words
        except BaseException:
            os.killpg(demo.pid, signal.SIGKILL)
            raise


def test_a_run_that_is_kept_has_the_numbers_of_one_that_is_not(tmp_path: Path) -> None:
    point = Point(2, "ssl", 0.1, 22)
    kept, other = run_point(point, tmp_path), run_point(point)
    assert [remove_measurements(row) for row in kept.rows] == [remove_measurements(row) for row in other.rows]
    (run,) = runs_under(tmp_path)
    assert run.finished and run.rows == kept.rows == run_point(point, tmp_path).rows  # it is not repeated
