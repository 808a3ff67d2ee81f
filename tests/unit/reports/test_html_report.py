"""report.html: whole, offline, small, and true to the records."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from splitrelay.cli.main import app
from splitrelay.data import save_partition
from splitrelay.data.partition_schemes import draw_partition
from splitrelay.errors import InputError
from splitrelay.randomness import Purpose, rng
from splitrelay.reports.html_page import (
    Series,
    choose_ticks,
    draw_bar_chart,
    draw_heat_map,
    draw_line_chart,
    thin_points,
)
from splitrelay.reports.html_report import get_key_descriptions, write_report
from splitrelay.runs.execute import execute
from splitrelay.runs.run_directory import RunDirectory, format_resume_command
from splitrelay.runs.spec import Spec, load_spec
from tests.support.error_fields import expect_error
from tests.support.run_directories import write_run

VOID = {"meta", "br", "hr", "img", "link"}


class Reader(HTMLParser):
    """Sees that every element is closed in its turn; keeps the words and the addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [str(value) for name, value in attrs if name in ("href", "src", "xlink:href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def read(path: Path) -> Reader:
    found = Reader()
    found.feed(path.read_text(encoding="utf-8"))
    found.close()
    assert found.open == []
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run of four rounds, with samples kept for validation."""
    folder = tmp_path_factory.mktemp("run")
    x = rng(4, Purpose.INSTANCES).integers(0, 256, (90, 8, 8), dtype=np.uint8)
    np.savez(folder / "own.npz", x=x, y=np.arange(90) % 3)
    spec = load_spec(None, [f"data={folder / 'own.npz'}", "M=5", "K=2", "C=1", "R=4", "validation=0.2"])
    list(execute(spec, RunDirectory(folder / "run")))
    return folder / "run"


def test_a_real_run_has_a_page_with_everything_on_it(run: Path) -> None:
    found = read(write_report(run))
    text = " ".join(found.words)
    headings = re.findall(r"<h2>(.*?)</h2>", (run / "report.html").read_text())
    assert headings == [
        "Curves", "Each class at the end", "Partition", "Settings", "Bytes and times", "Environment",
        "Commands",
    ]  # fmt: skip
    assert found.tags.count("svg") == 4
    assert "finished after 4 rounds" in text and "SSL on own, ExDir(1, 10), cross-silo, M=5" in text
    assert f"splitrelay verify {run}" in text and json.loads((run / "environment.json").read_text())["cpu"] in text


def test_the_page_needs_nothing_from_elsewhere(run: Path) -> None:
    text = write_report(run).read_text()
    assert not re.search(r"<script|<link|@import|url\(|https?://|\son\w+=", text)
    assert read(run / "report.html").links == []
    assert "prefers-color-scheme: dark" in text


def test_keys_that_are_not_the_usual_ones_are_marked(run: Path) -> None:
    rows = re.findall(r"<tr( class=\"own\")?><td>(●?)</td><td><code>(.*?)</code></td>", write_report(run).read_text())
    assert all(bool(own) is bool(mark) for own, mark, _ in rows)
    marked = {name for own, _, name in rows if own}
    assert {"K", "R", "C", "M", "validation", "data"} <= marked
    assert not marked & {"algorithm", "eta", "momentum", "alpha"}
    assert len(rows) == len(Spec().flatten())


def test_every_key_has_its_meaning() -> None:
    assert list(get_key_descriptions()) == list(Spec().flatten())
    assert all(get_key_descriptions().values())


def test_making_it_again_gives_the_same_bytes(run: Path) -> None:
    first = write_report(run).read_bytes()
    assert write_report(run).read_bytes() == first


def test_four_thousand_rounds_and_five_hundred_clients_are_a_small_page(tmp_path: Path) -> None:
    values = rng(1, Purpose.INSTANCES).uniform(0, 1, 4001)
    write_run(tmp_path / "run", values.tolist(), test_per_class=[0.5] * 10)
    partition = draw_partition("exdir", np.arange(60000) % 10, M=500, C=2, alpha=10.0, seed=1)
    save_partition(partition, tmp_path / "run" / "partition.npz")
    assert write_report(tmp_path / "run").stat().st_size < 100_000


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_an_unfinished_run_has_a_page_too(tmp_path: Path, rows: int) -> None:
    write_run(tmp_path / "run", [0.1, 0.5, 0.6][:rows], "R=9")
    text = " ".join(read(write_report(tmp_path / "run")).words)
    assert ("no rows yet" if rows == 0 else f"not finished: round {rows - 1} of 9") in text
    resume = format_resume_command(tmp_path / "run")
    assert resume in text and "There is no partition.npz here." in text


def test_damaged_neighbours_are_said_not_fatal(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [0.1, 0.5])
    (tmp_path / "run" / "partition.npz").write_bytes(b"junk")
    (tmp_path / "run" / "environment.json").write_text("{")
    text = " ".join(read(write_report(tmp_path / "run")).words)
    assert "partition.npz" in text and "environment.json cannot be read." in text


def test_losses_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [0.1, 0.5], test_loss=float("nan"), train_loss=float("inf"))
    assert "Nothing to draw" in " ".join(read(write_report(tmp_path / "run")).words)


def test_names_cannot_break_the_page(tmp_path: Path) -> None:
    write_run(tmp_path / "<b>&", [0.1, 0.5], "data=a<script>b.npz")
    assert "script" not in read(write_report(tmp_path / "<b>&")).tags
    assert read(write_report(tmp_path)).links == ["<b>&/report.html"]


# a folder


def test_a_folder_has_all_curves_and_links_that_lead_somewhere(tmp_path: Path) -> None:
    for C in (1, 2):
        for algorithm in ("ssl", "fedavg"):
            write_run(tmp_path / f"C{C}" / algorithm, [0.1, 0.5, 0.6], f"C={C}", f"algorithm={algorithm}")
    found = read(write_report(tmp_path))
    assert sorted(found.links) == [f"C{C}/{name}/report.html" for C in (1, 2) for name in ("fedavg", "ssl")]
    assert all((tmp_path / link).exists() for link in found.links)
    text = (tmp_path / "report.html").read_text()
    assert found.tags.count("svg") == 2 and text.count('class="line blue" transform') == 2
    assert "One seed instead of 3" in text


def test_a_run_page_is_made_again_only_when_its_rows_are_newer(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.1, 0.5])
    write_report(tmp_path)
    before = (tmp_path / "a" / "report.html").stat().st_mtime_ns
    write_report(tmp_path)
    assert (tmp_path / "a" / "report.html").stat().st_mtime_ns == before


def test_the_command_says_where_the_page_is(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.1, 0.5])
    answer = CliRunner().invoke(app, ["report", str(tmp_path / "a")])
    assert answer.output == f"report: {tmp_path / 'a' / 'report.html'}\n"


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with expect_error(InputError, what=str(tmp_path), hint=("splitrelay run", "sweep")):
        write_report(tmp_path)


# charts


def test_thinning_keeps_both_ends_and_every_extreme() -> None:
    points = [(float(j), float(y)) for j, y in enumerate(rng(2, Purpose.INSTANCES).uniform(0, 1, 5000))]
    kept = thin_points(points, 400)
    assert 200 < len(kept) <= 400 and kept == sorted(kept)
    assert kept[0] == points[0] and kept[-1] == points[-1]
    assert {min(y for _, y in points), max(y for _, y in points)} <= {y for _, y in kept}


def test_a_short_line_is_not_thinned() -> None:
    points = [(float(j), 0.5) for j in range(400)]
    assert thin_points(points, 400) == points


def test_a_line_goes_through_its_points() -> None:
    svg = draw_line_chart([Series("a", "blue", [(0.0, 0.0), (10.0, 100.0)])], "x", "y", 100)
    x0, y0, dx, dy = map(int, re.findall(r"-?\d+", re.search(r'd="(M\d+ \d+l[^"]*)"', svg)[1]))  # type: ignore[index]
    assert (x0, y0, x0 + dx, y0 + dy) == (520, 2120, 5380, 300)  # tenths of a pixel: corner to corner of the axes


@pytest.mark.parametrize(
    ("high", "ticks"), [(100, [0, 20, 40, 60, 80, 100]), (2.6, [0, 1, 2]), (0.05, [0, 0.01, 0.02, 0.03, 0.04, 0.05])]
)
def test_ticks_are_round_numbers(high: float, ticks: list[float]) -> None:
    assert choose_ticks(high) == pytest.approx(ticks)


def test_bars_say_their_values() -> None:
    svg = draw_bar_chart(["class 0", "class 1"], [0.25, float("nan")], "accuracy")
    assert "25.0 %" in svg and "no images" in svg
    assert re.findall(r'<rect[^>]* width="([\d.]+)"', svg) == ["90.0", "0.0"]  # of 360


def test_the_heat_map_has_a_square_for_every_count() -> None:
    counts = np.array([[5, 0, 1], [0, 700, 0]])
    svg = draw_heat_map(counts, ["a", "b", "c"])
    assert sorted(re.findall(r"M(\d) (\d)h1v1h-1z", svg)) == [("0", "0"), ("0", "2"), ("1", "1")]
    assert all(f">{count}</text>" in svg for count in (5, 1, 700))


def test_very_many_clients_share_columns() -> None:
    counts = np.ones((10_000, 2), dtype=np.int64)
    assert len(re.findall("h1v1h-1z", draw_heat_map(counts, ["a", "b"]))) <= 800
