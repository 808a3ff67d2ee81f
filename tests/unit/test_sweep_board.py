"""What a sweep keeps of its points, what it says about them, and what of them one of several hosts runs."""

import re
import subprocess
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from click.testing import CliRunner

from splitrelay.cli import board as boards
from splitrelay.cli.main import app
from splitrelay.errors import InputError
from splitrelay.experiments.errands import carry_out
from splitrelay.experiments.places import Errand, News, Share
from splitrelay.experiments.points import Point, points_of
from splitrelay.experiments.sweep import Board, status, sweep
from splitrelay.randomness import Purpose, rng


class Here:
    """A place where points are run: this process, one after another."""

    def __init__(self) -> None:
        self.began: list[str] = []

    def run(self, errands: Sequence[Errand], stop: Event, /) -> Generator[News | None, None, None]:
        for errand in errands:
            self.began.append(errand.name)
            yield News(errand.name, "running")
            told: list[News] = []
            last = carry_out(errand, stop, told.append)
            yield from told
            yield last


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "own.npz"
    np.savez(path, x=rng(4, Purpose.INSTANCES).integers(0, 256, (90, 8, 8), dtype=np.uint8), y=np.arange(90) % 3)
    return path


def points(own: Path, *etas: str) -> list[Point]:
    words = {"data": [str(own)], "model": ["mlp"], "M": ["3"], "K": ["1"], "C": ["1"], "R": ["2"], "eta": list(etas)}
    return points_of(None, words).points


def swept(found: list[Point], folder: Path, **how: object) -> tuple[Board, list[str]]:
    here = Here()
    *_, (board, _) = sweep(found, folder, here, **how)  # type: ignore[arg-type]
    return board, here.began


def test_a_run_that_diverged_is_a_result_and_not_run_again(own: Path, tmp_path: Path) -> None:
    found = points(own, "0.1", "1e25")
    first, _ = swept(found, tmp_path)
    again, began = swept(found, tmp_path)
    assert began == []
    assert [(entry.state, entry.why) for entry in again.entries.values()] == [
        (entry.state, entry.why) for entry in first.entries.values()
    ]
    assert list(again.entries.values())[1].state == "diverged" and "Lower eta" in list(again.entries.values())[1].why
    assert "--retry" in " ".join(boards.results(again).notes)
    assert "diverged" in CliRunner().invoke(app, ["show", str(tmp_path)]).stdout


def test_retry_runs_again_what_diverged_and_nothing_else(own: Path, tmp_path: Path) -> None:
    found = points(own, "0.1", "1e25")
    swept(found, tmp_path)
    (tmp_path / found[1].name / "diverged.txt").write_text("an older reason\n")
    board, began = swept(found, tmp_path, retry=True)
    assert began == [found[1].name]
    assert "Lower eta" in board.entries[found[1].name].why


def test_shares_are_all_points_each_once_and_do_not_wait_for_each_other(own: Path, tmp_path: Path) -> None:
    found = points(own, "0.1", "0.2", "0.3")
    shares = [Share(i, 2) for i in (1, 2)]
    assert sorted(point.name for share in shares for point in share.of(found)) == sorted(point.name for point in found)
    first = sweep(found, tmp_path, Here(), share=shares[0])
    next(first)  # at work
    _, began = swept(found, tmp_path, share=shares[1])
    assert began == [found[1].name]
    with pytest.raises(InputError, match="another process is at work"):
        swept(found, tmp_path, share=shares[0])
    list(first)
    assert {entry.state for entry in status(tmp_path).entries.values()} == {"done"}
    assert len(status(tmp_path).entries) == 3
    assert swept(found, tmp_path)[1] == []


@pytest.mark.parametrize("text", ["3/2", "0/2", "1", "a/b", "1/2/3", "-1/2"])
def test_what_is_no_share_is_refused(text: str) -> None:
    answer = CliRunner().invoke(app, ["sweep", "R=1", "eta=0.1,0.2", f"--share={text}"])
    assert isinstance(answer.exception, InputError) and "I/N" in str(answer.exception)


def test_without_a_terminal_lines_have_the_time_and_now_and_then_how_far_points_are(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(boards, "PULSE", 0.0)
    display = boards.Display()
    for board, news in sweep(points(own, "0.1", "0.2"), tmp_path, Here()):
        display.show(board, news)
    lines = capsys.readouterr().err.splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d     [012]/2  (running|done) ", line) for line in lines)
    assert any(re.search(r"eta=0.2 round 1/2 \d+\.\d\d%  \(1 done, 1 running; \d+ s left\)", line) for line in lines)


def test_where_there_is_no_sweep_those_further_down_are_named(own: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="It would hold sweep"):
        status(tmp_path)
    swept(points(own, "0.1"), tmp_path / "cells")
    with pytest.raises(InputError, match=r"Those in it: .*cells\."):
        status(tmp_path)


def test_looking_at_a_sweep_needs_no_torch(own: Path, tmp_path: Path) -> None:
    swept(points(own, "0.1"), tmp_path)
    program = (
        "import sys; from splitrelay.cli.main import app; app(sys.argv[1:], standalone_mode=False);"
        "assert not {'torch', 'numpy', 'pydantic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program, "sweep", "--status", str(tmp_path)], check=True)
