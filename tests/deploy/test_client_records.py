"""What a deployed run records of its clients, and what show, report, verify and compare make of it."""

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from splitrelay.cli.main import app
from splitrelay.deploy import client_program
from splitrelay.deploy.server_visit import Policy
from splitrelay.errors import InputError
from splitrelay.reports.html_report import write_report
from splitrelay.runs.client_records import (
    DISTINCT,
    ClientRecord,
    RunClients,
    find_skips,
    format_clients,
    make_printable,
    read_clients,
)
from tests.support.clock import Clock
from tests.support.deployment import LocalDeployment, simulate_run, small_spec

CHANGES: dict[str, dict[str, Any]] = {
    "count": {"samples": 3},
    "digest": {"digest": "00" * 32},
}
SKIP = Policy("skip", lease=0.2)


def asked(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def played(folder: Path, *words: str, absent: int | None = 3, keys: bool = False) -> LocalDeployment:
    """A deployed run of four clients, one of which may never come."""
    stage = LocalDeployment(small_spec(folder, "R=3", *words), folder, policy=SKIP, quorum=3, keys=keys)
    for m in stage.partition.clients:
        if m != absent:
            stage.join(m)
    stage.play()
    return stage


def stop_after(stage: LocalDeployment, visits: int) -> None:
    """Stop the server once so many visits are committed."""

    def watch(port: int) -> None:
        stage.listening.set()
        note, seen = stage.serving.journal.note, Counter[str]()

        def count(event: str, **facts: Any) -> None:
            note(event, **facts)
            seen[event] += 1
            if seen["committed"] == visits:
                stage.stop.set()

        stage.serving.journal.note = count  # type: ignore[method-assign]

    stage.serving.on_listening = watch


def edit_rows(run: Path, change: Any) -> None:
    rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    for row in rows:
        change(row)
    (run / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


# Rows and clients.json


@pytest.mark.parametrize("words", [(), ("algorithm=fedavg",), ("every=2",)])
def test_rows_and_clients_tell_which_visits_were_skipped(words: tuple[str, ...], tmp_path: Path) -> None:
    stage = played(tmp_path, *words)
    events = {(event["round"], event["client"], event["occurrence"]) for event in stage.events("skipped")}
    rows = stage.serving.directory.read_rows()
    assert find_skips(rows) == events and len(events) == 3
    for row in rows:
        visits = row.get("skipped_visits", [])
        assert row["skipped"] == len(visits) and all(visit[0] < row["round"] for visit in visits)
    found = read_clients(tmp_path / "run")
    assert found is not None and found.round == 3 and found.skipped == 3
    committed = Counter(event["client"] for event in stage.events("committed"))
    assert {one.client: one.visits for one in found.clients} == {m: committed[m] for m in range(4)}
    absent = found.clients[3]
    assert (absent.skipped, sum(absent.reasons.values()), absent.arrivals, absent.digest) == (3, 3, 0, "")
    assert all(one.software and one.cpu and one.digest and one.samples for one in found.clients[:3])
    assert found.server["software"] in found.clients[0].software


def test_after_a_restart_everything_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is stopped in the middle, and goes on from its journal. It does not wait for its clients then."""
    clock, policy = Clock(monkeypatch), Policy("skip", lease=1000.0)
    first = LocalDeployment(small_spec(tmp_path, "R=4"), tmp_path, policy=policy, quorum=3)
    clock.expire_lease(first, 3)
    stop_after(first, 5)
    for m in (0, 1, 2):
        first.join(m)
    with pytest.raises(KeyboardInterrupt):
        first.play()
    assert len(first.serving.directory.read_rows()) < 5
    second = LocalDeployment(first.spec, tmp_path, policy=policy, quorum=3)
    clock.expire_lease(second, 3)
    for m in (0, 1, 2):
        second.join(m)
    second.play()
    skipped = [(r, m) for r, m, _ in sorted(find_skips(second.serving.directory.read_rows()))]
    assert skipped == [(r, 3) for r in range(4)]
    found = read_clients(tmp_path / "run")
    assert found is not None and [(one.visits, one.skipped) for one in found.clients] == [(4, 0)] * 3 + [(0, 4)]
    assert all(one.arrivals >= 2 for one in found.clients[:3])


def test_what_clients_say_of_themselves_is_printable_and_bounded() -> None:
    record = ClientRecord(0)
    for number in range(3 * DISTINCT):
        record = record.add_arrival(5, "", f"\x1b[2J{number}" + "x" * 1000, "cpu\n", "now")
    assert len(record.software) == DISTINCT and record.cpu == ("cpu?",)
    assert all(text.isprintable() and len(text) <= 120 for text in record.software)
    assert make_printable("a\u202eb") == "a?b"  # letters that would turn the line around


def test_the_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    one = ClientRecord(0, 5, "ab", ("splitrelay 1",), ("avx2",), 2, "then", "now", 7, 1, {"away": 1})
    found = RunClients(8, {"software": "splitrelay 1", "cpu": "avx2"}, (one,), (ClientRecord(10000),))
    (tmp_path / "clients.json").write_text(format_clients(found))
    assert read_clients(tmp_path) == found and found.unlike() == {}
    other = replace(found, clients=(replace(one, cpu=("avx2", "avx512")),))
    assert other.unlike() == {"cpu of client 0": ("avx512", "avx2")}


# verify and compare


@pytest.mark.parametrize("words", [(), ("algorithm=fedavg",)])
def test_verify_leaves_the_same_visits_out(words: tuple[str, ...], tmp_path: Path) -> None:
    played(tmp_path, *words)
    result = asked("verify", str(tmp_path / "run"), "--format", "json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["holds"] and found["difference"] is None and found["models"] is True and found["skipped"] == 3


def run_without(folder: Path, *words: str) -> None:
    """Run with three of four clients: the last one is left out from the start."""
    stage = LocalDeployment(small_spec(folder, "R=3", *words), folder, without=(3,))
    for m in (0, 1, 2):
        stage.join(m)
    stage.play()


@pytest.mark.parametrize("words", [(), ("algorithm=fedavg", "weighted=true"), ("S=2",)])
def test_verify_does_without_clients_that_were_left_out(words: tuple[str, ...], tmp_path: Path) -> None:
    run_without(tmp_path, *words)
    result = asked("verify", str(tmp_path / "run"), "--format", "json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["holds"] and found["difference"] is None and found["models"] is True


def test_verify_does_without_clients_that_were_excluded_during_the_run(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "R=4")
    first = LocalDeployment(spec, tmp_path)
    stop_after(first, 5)
    for m in first.partition.clients:
        first.join(m)
    with pytest.raises(KeyboardInterrupt):
        first.play()
    second = LocalDeployment(spec, tmp_path, without=(3,))
    for m in (0, 1, 2):
        second.join(m)
    second.play()
    result = asked("verify", str(tmp_path / "run"), "--format", "json")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("target", ["out", "out.tar.xz"])
def test_a_deployed_run_that_is_published_can_be_verified(target: str, tmp_path: Path) -> None:
    run_without(tmp_path)
    (tmp_path / "all").mkdir()
    (tmp_path / "run").rename(tmp_path / "all" / "run")
    result = asked("publish", str(tmp_path / "all"), "--to", str(tmp_path / target))
    assert result.exit_code == 0, result.output
    result = asked("verify", str(tmp_path / "out" / "run"), "--format", "json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["models"] is True


def test_verify_finds_a_skipped_visit_that_is_not_recorded(tmp_path: Path) -> None:
    played(tmp_path)
    edit_rows(tmp_path / "run", lambda row: row.pop("skipped_visits", None))
    result = asked("verify", str(tmp_path / "run"), "--format", "json")
    assert result.exit_code == 1 and not json.loads(result.stdout)["holds"]


def test_of_an_earlier_version_skipped_visits_are_read_from_the_events(tmp_path: Path) -> None:
    played(tmp_path)
    edit_rows(tmp_path / "run", lambda row: [row.pop(name, None) for name in ("skipped_visits", "skipped")])
    result = asked("verify", str(tmp_path / "run"), "--format", "json")
    assert result.exit_code == 0 and json.loads(result.stdout)["skipped"] == 3, result.output


def test_verify_checks_the_data_where_it_can(tmp_path: Path) -> None:
    played(tmp_path, keys=True, absent=None)
    plain = json.loads(asked("verify", str(tmp_path / "run"), "--format", "json").stdout)
    assert plain["data"] == {"same": 0, "unknown": 4}
    keys = str(tmp_path / "client-1")
    checked = json.loads(asked("verify", str(tmp_path / "run"), "--keys", keys, "--format", "json").stdout)
    assert checked["data"] == {"same": 4, "unknown": 0}


def test_verify_without_keys_of_an_insecure_run_checks_the_data(tmp_path: Path) -> None:
    played(tmp_path)
    found = json.loads(asked("verify", str(tmp_path / "run"), "--format", "json").stdout)
    assert found["data"] == {"same": 3, "unknown": 0}


@pytest.mark.parametrize("how", CHANGES)
def test_verify_says_why_it_cannot_run_data_of_the_clients_own(how: str, tmp_path: Path) -> None:
    played(tmp_path, keys=True, absent=None)
    file = tmp_path / "run" / "clients.json"
    content = json.loads(file.read_text())
    content["clients"][1] |= CHANGES[how]
    file.write_text(json.dumps(content))
    keys = ("--keys", str(tmp_path / "client-1")) if how == "digest" else ()
    error = asked("verify", str(tmp_path / "run"), *keys).exception
    assert isinstance(error, InputError) and error.exit_code == 2 and "client 1" in str(error.value) and error.hint


def test_other_processors_and_versions_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accept = client_program.Accept

    def elsewhere(spec_hash: str, engine: str, cpu: str, n: int, **more: Any) -> Any:
        return accept(spec_hash, engine, "another", n, **more)

    monkeypatch.setattr(client_program, "Accept", elsewhere)
    played(tmp_path, absent=None)
    result = asked("verify", str(tmp_path / "run"), "--format", "json")
    found = json.loads(result.stdout)
    assert result.exit_code == 0 and found["environments"]["cpu of client 2"][0] == "another"
    edit_rows(tmp_path / "run", lambda row: row.update(test_loss=row["test_loss"] + 1e-9))
    result = asked("verify", str(tmp_path / "run"), "--format", "json")
    assert result.exit_code == 0 and "cpu of client 2" in json.loads(result.stdout)["verdict"]  # near, not equal


def test_compare_tells_how_many_visits_were_skipped(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    played(tmp_path / "one")
    played(tmp_path / "two", absent=None)
    result = asked("compare", str(tmp_path / "one" / "run"), str(tmp_path / "two" / "run"), "--format", "csv")
    assert "skipped visits,3,0" in result.stdout.splitlines()


# show and report


def test_show_has_a_table_of_the_clients(tmp_path: Path) -> None:
    played(tmp_path)
    found = json.loads(asked("show", str(tmp_path / "run"), "--format", "json").stdout)
    assert found["skipped"] == 3 and [one["visits"] for one in found["clients"]] == [3, 3, 3, 0]
    text = asked("show", str(tmp_path / "run")).stdout
    digest = found["clients"][0]["digest"]
    assert digest[:12] in text and digest not in text
    table = re.search(r"^client +samples +visits +skipped.*(\n.*){4}", text, re.MULTILINE)
    assert table is not None and max(map(len, table[0].splitlines())) <= 80


def test_show_of_a_simulated_run_has_no_clients(tmp_path: Path) -> None:
    simulate_run(small_spec(tmp_path), tmp_path / "run")
    found = json.loads(asked("show", str(tmp_path / "run"), "--format", "json").stdout)
    assert "clients" not in found and "skipped" not in found


def test_the_report_has_a_section_of_the_clients(tmp_path: Path) -> None:
    played(tmp_path)
    file = tmp_path / "run" / "clients.json"
    content = json.loads(file.read_text())
    content["clients"][0]["software"] = ["<script>alert(1)</script>"]
    file.write_text(json.dumps(content))
    page = write_report(tmp_path / "run").read_text()
    assert "<h2>Clients</h2>" in page and "<script>" not in page
    file.write_text("{")
    assert "<h2>Clients</h2>" in write_report(tmp_path / "run").read_text()
