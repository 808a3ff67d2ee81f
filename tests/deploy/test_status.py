"""What does who asks how it goes see, before, between and after?"""

import json
from pathlib import Path
from typing import Any

import pytest

from splitrelay.cli.status import build_table
from splitrelay.deploy.server_program import ServerConfig, ServerProgram
from splitrelay.errors import OutputError
from tests.support.deployment import LocalDeployment, small_spec


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Of one run: before anybody came, when the second of four was here, when all is done."""
    found: list[dict[str, Any]] = []
    stage = LocalDeployment(small_spec(tmp_path_factory.mktemp("run"), "R=1"), tmp_path_factory.mktemp("stage"))

    def look() -> None:
        found.append(json.loads(stage.serving.report()))

    def heard(text: str) -> None:
        if "2 clients to come" in text:
            look()
            for m in (2, 3):
                stage.join(m)

    stage.serving.say = heard
    stage.serving.on_listening = lambda port: (look(), stage.listening.set())  # type: ignore[func-returns-value, assignment]
    for m in (0, 1):
        stage.join(m)
    stage.play()
    look()
    return found


def test_before_anybody_came_it_says_how_many_are_awaited(reports: list[dict[str, Any]]) -> None:
    table = build_table(reports[0])
    assert table.title.endswith("waiting for 4 more clients")
    assert table.rows == [(m, "away", "", None) for m in range(4)]


def test_before_the_first_visit_it_tells_who_is_here_and_nothing_of_costs(reports: list[dict[str, Any]]) -> None:
    table = build_table(reports[1])
    assert table.title.endswith("waiting for 2 more clients") and not table.notes
    assert sorted(row[1] for row in table.rows) == ["away", "away", "here", "here"]


def test_after_a_visit_it_tells_what_was_paid(reports: list[dict[str, Any]]) -> None:
    table = build_table(reports[2])
    assert table.title.endswith("finished, round 1 of 1") and "MB up" in table.notes[0]
    assert [row[4] for row in table.rows] == [1] * 4


def test_a_server_that_cannot_keep_its_run_says_nothing_else(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "file").touch()
    with pytest.raises(OutputError):
        next(ServerProgram(ServerConfig(small_spec(tmp_path), tmp_path / "file" / "run"), said.append).rows())
    assert said == []
