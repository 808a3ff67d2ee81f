"""The page as one file: nothing outside, data that cannot become markup, and all answers that it asks for."""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from splitrelay.cli.page import build_source
from splitrelay.errors import InputError
from splitrelay.web.source import PageSource
from splitrelay.web.static_page import build_static_page
from tests.support.command_line import invoke
from tests.support.run_directories import write_run
from tests.unit.web.test_server import HOSTILE


def read_data(text: str) -> dict[str, Any]:
    (found,) = re.findall(r'<script type="application/json" id="static-data">(.*?)</script>', text, re.DOTALL)
    content: dict[str, Any] = json.loads(found)
    return content


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, seed in (("a", 1234), ("b", 666)):
        write_run(tmp_path / name, [0.1, 0.4], f"seed={seed}")
        write_run(tmp_path / f"f{name}", [0.1, 0.2], f"seed={seed}", "algorithm=fedavg")
    return tmp_path


def test_the_file_has_no_address_and_allows_only_its_own_scripts(folder: Path) -> None:
    text = build_static_page(PageSource(folder))
    assert not re.search(r'(src|href)="(?!#|data:)', text)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy and "unsafe" not in policy[1] and "connect-src" not in policy[1]
    for script in re.findall(r"<script>(.*?)</script>", text, re.DOTALL):
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy[1]


def test_hostile_names_stay_data(folder: Path) -> None:
    before = build_static_page(PageSource(folder)).count("<")
    for j, name in enumerate(HOSTILE):
        write_run(folder / name, [0.1, 0.2], f"seed={j}", "C=1")
    text = build_static_page(PageSource(folder))
    assert text.count("<") == before
    assert {run["name"] for run in read_data(text)["views"]["runs"]["runs"]} >= set(HOSTILE)


def test_the_file_answers_what_the_page_asks_at_first(folder: Path) -> None:
    views = read_data(build_static_page(PageSource(folder)))["views"]
    runs = views["runs"]
    assert [len(views[f"curves&metric=test_accuracy&x={x}"]["lines"]) for x in ("round", "bytes", "seconds")] == [2] * 3
    assert len(views["curves&each=1&metric=test_loss&x=round"]["lines"]) == 4
    assert views[f"compare&lines={','.join(runs['first'])}"]["rows"][0]["n"] == 2
    assert all(f"run&id={run['id']}" in views and f"visits&id={run['id']}" in views for run in runs["runs"])


def test_the_command_writes_the_file(folder: Path, tmp_path: Path) -> None:
    answer = invoke(f"splitrelay page {folder} --out {tmp_path / 'page.html'}")
    assert answer.code == 0 and read_data((tmp_path / "page.html").read_text())["command"].endswith(str(folder))


def test_places_are_a_folder_an_address_or_both(folder: Path) -> None:
    both = build_source([str(folder), "s.example.org:7443"], Path("observer"), False)
    assert (both.folder, both.address, both.keys) == (folder, "s.example.org:7443", Path("observer"))
    assert build_source(["[::1]:7443"], None, True).folder is None
    for wrong in (["a:1", "b:2"], [str(folder), str(folder)], [str(folder / "nothing")]):
        with pytest.raises(InputError):
            build_source(wrong, None, False)
    with pytest.raises(InputError):
        build_source([str(folder)], Path("observer"), False)
