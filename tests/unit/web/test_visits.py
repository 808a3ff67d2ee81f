"""The timeline of visits and the cost of clients, from records that may come from somebody else."""

import json
from pathlib import Path
from typing import Any

import pytest

from splitrelay.deploy.visit_cost import compute_costs
from splitrelay.deploy.visit_history import compute_visit_cost
from splitrelay.errors import InputError
from splitrelay.runs.execute import execute
from splitrelay.runs.run_directory import RunDirectory
from splitrelay.runs.spec import load_spec, make_spec
from splitrelay.web.run_details import get_visits
from splitrelay.web.run_list import get_curves
from splitrelay.web.source import PageSource
from tests.support.run_directories import row, write_run
from tests.unit.web.test_server import unpack_lines


@pytest.fixture
def trained(tmp_path: Path) -> PageSource:
    list(execute(make_spec(C=3, R=2, K=1, M=4), RunDirectory(tmp_path / "ssl")))
    return PageSource(tmp_path)


def ask(source: PageSource) -> dict[str, Any]:
    (number,) = source.read().runs
    return get_visits(source, {"id": number})


def test_every_client_is_visited_once_a_round(trained: PageSource) -> None:
    found = ask(trained)
    assert [sorted(visit["client"] for visit in one["visits"]) for one in found["rounds"]] == [[0, 1, 2, 3]] * 2
    assert [one["visits"] for one in found["clients"]] == [2] * 4 and found["skipped"] == found["retried"] == 0


def test_the_cost_of_a_client_is_its_visits_times_the_cost_of_a_visit(trained: PageSource) -> None:
    (run,) = trained.read().runs.values()
    cost = next(one for one in compute_costs(run.spec) if one.chosen)
    assert {one["up"] for one in ask(trained)["clients"]} == {2 * cost.up}
    (line,) = unpack_lines(get_curves(trained, {"x": "flops"}))
    assert line["x"] == pytest.approx([0, 4 * cost.flops / 1e9, 8 * cost.flops / 1e9])


def test_skipped_and_retried_visits_are_marked(trained: PageSource) -> None:
    (run,) = trained.read().runs.values()
    rows = [dict(one) for one in run.rows]
    rows[1] |= {"skipped": 1, "skipped_visits": [[0, 2, 0, "away"]]}
    RunDirectory(run.path).write_rows(rows)
    (run.path / "relay").mkdir()
    events = [{"event": "leased", "round": 1, "client": m, "occurrence": 0} for m in (1, 1, 3)]
    (run.path / "relay" / "events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in events))
    found = ask(PageSource(trained.folder))
    states = {(one["round"], v["client"]): v["state"] for one in found["rounds"] for v in one["visits"]}
    assert [key for key, state in states.items() if state == "skipped"] == [(0, 2)]
    assert [key for key, state in states.items() if state == "retried"] == [(1, 1)]
    assert [one["visits"] for one in found["clients"]] == [2, 2, 1, 2]


def test_code_that_a_spec_names_is_never_run(
    tmp_path: Path, trained: PageSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('ran').touch()\ndef make():\n    return 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for word in ("model=evil:make", "data=evil:make", "partition=evil:make", "loss=evil:make"):
        with pytest.raises(InputError):
            compute_visit_cost(load_spec(None, [word]))
    spec = tmp_path / "ssl" / "spec.toml"
    spec.write_text(spec.read_text().replace('"lenet-small"', '"evil:make"'))
    found = ask(PageSource(tmp_path))
    assert len(found["rounds"]) == 2 and "up" not in found["clients"][0] and "model" in found["clients_note"]
    spec.write_text(spec.read_text().replace('"permutation"', '"evil:make"'))
    with pytest.raises(InputError):
        ask(PageSource(tmp_path))
    assert not (tmp_path / "ran").exists()


def test_a_data_set_that_is_not_here_is_not_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPLITRELAY_DATA", str(tmp_path / "nothing"))
    write_run(tmp_path / "mnist", {r: row(r, 0.5)["test_accuracy"] for r in range(3)}, "seed=77")
    with pytest.raises(InputError) as caught:
        ask(PageSource(tmp_path))
    assert "splitrelay data get mnist" in str(caught.value.hint)
