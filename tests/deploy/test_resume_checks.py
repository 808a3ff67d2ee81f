"""Runs that cannot go on where they stopped, or must not: nothing begins again by itself, and nothing is lost."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from splitrelay.algorithms.base import Cost, Done, Skipped, Step, Visit
from splitrelay.cli.main import app
from splitrelay.deploy import deposit_bound
from splitrelay.deploy.events import find_last_writers, list_skipped_visits, list_valid_events, read_events
from splitrelay.deploy.journal import Journal
from splitrelay.deploy.quarantine import Exclusions
from splitrelay.deploy.rehearsal import simulate
from splitrelay.deploy.server_visit import Policy
from splitrelay.errors import Diverged, InputError, OutOfRange
from splitrelay.runs.checkpoint import Checkpoints
from splitrelay.runs.execute import execute
from splitrelay.runs.run_directory import RunDirectory, format_resume_command, make_damage_error
from splitrelay.runs.spec import Spec
from tests.deploy.test_deposit_bound import EVIL, corrupt, huge
from tests.support.deployment import LocalDeployment, remove_times, simulate_run, small_spec, stop_after_commits
from tests.support.sealed_deployments import join_directly, make_direct_deployment

Harm = Callable[[RunDirectory], None]


def play(stage: LocalDeployment, *absent: int, **wish: Any) -> list[dict[str, Any]]:
    for m in stage.partition.clients:
        if m not in absent:
            join_directly(stage, m, listen="", **wish) if stage.keys else stage.join(m, **wish)
    return stage.play()


def stopped(spec: Spec, folder: Path, commits: int, **offer: Any) -> RunDirectory:
    """A deployed run that was stopped after so many visits."""
    stage = LocalDeployment(spec, folder, **offer)
    stop_after_commits(stage, commits)
    with pytest.raises(KeyboardInterrupt):
        play(stage)
    return stage.serving.directory


def content(folder: Path) -> dict[str, bytes]:
    """All that a refused start must leave as it is."""
    changing = (".lock", "events.jsonl", "fence")
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in changing]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


# A simulation never takes the place of a deployed run


def test_a_simulation_refuses_the_directory_of_a_deployed_run(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "R=1")
    stage = LocalDeployment(spec, tmp_path)
    play(stage)
    before = content(tmp_path / "run")
    with pytest.raises(InputError) as found:
        list(execute(spec, RunDirectory(tmp_path / "run")))
    assert "splitrelay serve" in str(found.value.hint)
    answer = CliRunner().invoke(app, ["run", str(tmp_path / "run" / "spec.toml"), "--out", str(tmp_path / "run")])
    assert isinstance(answer.exception, InputError)
    assert content(tmp_path / "run") == before


def test_a_server_refuses_the_directory_of_a_simulated_run(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "R=1")
    simulate_run(spec, tmp_path / "run")
    before = content(tmp_path / "run")
    with pytest.raises(InputError):
        LocalDeployment(spec, tmp_path).play()
    assert content(tmp_path / "run") == before and not (tmp_path / "run" / "relay").exists()


def test_the_advice_for_a_damaged_record_names_the_program_that_wrote_it(tmp_path: Path) -> None:
    (tmp_path / "rounds.jsonl").write_text("{\n")
    assert format_resume_command(tmp_path).startswith("splitrelay run ")
    assert "splitrelay run " in str(make_damage_error(tmp_path, "").hint)
    (tmp_path / "relay").mkdir()
    assert format_resume_command(tmp_path).startswith("splitrelay serve ")
    hint = str(make_damage_error(tmp_path, "").hint)
    assert "splitrelay serve " in hint and "splitrelay run" not in hint and "--from-scratch" in hint
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "000007.json").write_text("{}")
    assert "--back-to" in str(make_damage_error(tmp_path, "").hint) and "7" in str(make_damage_error(tmp_path, "").hint)


# What is damaged or gone is not begun again by itself


def without_rows(directory: RunDirectory) -> None:
    directory.rounds.unlink()


def without_the_last_row(directory: RunDirectory) -> None:
    directory.rounds.write_text("".join(directory.rounds.read_text().splitlines(keepends=True)[:-1]))


def without_checkpoints(directory: RunDirectory) -> None:
    for file in directory.checkpoints.folder.iterdir():
        file.unlink()


def with_damaged_checkpoints(directory: RunDirectory) -> None:
    for file in directory.checkpoints.folder.glob("*.safetensors"):
        flipped(file)


def with_damaged_manifests(directory: RunDirectory) -> None:
    for file in directory.checkpoints.folder.glob("*.json"):
        file.write_text("{")


def flipped(file: Path, position: int = -3) -> None:
    """One bit of it is another."""
    harmed = bytearray(file.read_bytes())
    harmed[position] ^= 4
    file.write_bytes(bytes(harmed))


HARMS = [without_rows, without_the_last_row, without_checkpoints, with_damaged_checkpoints, with_damaged_manifests]


@pytest.mark.parametrize("harm", HARMS)
def test_a_server_refuses_to_begin_again_and_does_so_when_told(harm: Harm, tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "R=4")
    expected = simulate_run(spec, tmp_path / "simulated")
    directory = stopped(spec, tmp_path, 10)
    harm(directory)
    before = content(directory.path)
    with pytest.raises(InputError) as found:
        LocalDeployment(spec, tmp_path).play()
    assert "--from-scratch" in str(found.value.hint)
    assert content(directory.path) == before
    last = LocalDeployment(spec, tmp_path, from_scratch=True)
    rows = play(last)
    assert remove_times(rows) == remove_times(expected.read_rows())
    assert last.serving.directory.model.read_bytes() == expected.model.read_bytes()
    (event,) = last.events("from-scratch")
    aside = content(directory.path / "set-aside" / event["set_aside"])
    assert {name for name in before if name.startswith(("checkpoints", "relay/visits"))} <= set(aside)
    fences = [event["fence"] for event in last.events("leased")]
    assert fences == sorted(set(fences))


@pytest.mark.parametrize("harm", [without_rows, without_the_last_row, with_damaged_checkpoints, with_damaged_manifests])
def test_a_simulation_refuses_to_begin_again_too(harm: Harm, tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "R=4")
    expected = simulate_run(spec, tmp_path / "expected")
    directory = RunDirectory(tmp_path / "run")
    going = execute(spec, directory, checkpoint=1)
    while next(going).row["round"] < 2:
        pass
    going.close()
    harm(directory)
    before = content(directory.path)
    with pytest.raises(InputError) as found:
        list(execute(spec, directory))
    assert "--from-scratch" in str(found.value.hint)
    assert content(directory.path) == before
    command = ["run", str(directory.spec), "--out", str(directory.path), "--from-scratch"]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert directory.model.read_bytes() == expected.model.read_bytes()
    assert content(directory.path / "set-aside")


def test_a_run_that_has_nothing_to_lose_begins_again(tmp_path: Path) -> None:
    """Killed before its first checkpoint, a simulation has rows and no state: they are made again."""
    spec = small_spec(tmp_path, "R=4")
    expected = simulate_run(spec, tmp_path / "expected")
    directory = RunDirectory(tmp_path / "run")
    going = execute(spec, directory, checkpoint=10)
    while next(going).row["round"] < 2:
        pass
    going.close()
    without_checkpoints(directory)
    list(execute(spec, directory))
    assert directory.model.read_bytes() == expected.model.read_bytes()


def test_of_two_checkpoints_the_older_one_will_do_and_that_is_recorded(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "R=4")
    expected = simulate_run(spec, tmp_path / "simulated")
    directory = stopped(spec, tmp_path, 10)
    older, newest = directory.checkpoints.list_rounds()
    flipped(directory.checkpoints.folder / f"{newest:06d}.safetensors")
    stage = LocalDeployment(spec, tmp_path)
    play(stage)
    assert stage.serving.directory.model.read_bytes() == expected.model.read_bytes()
    assert [(event["checkpoints"], event["used"]) for event in stage.events("unreadable")] == [([newest], older)]


# Set back on purpose


@pytest.mark.parametrize("harm", [None, without_rows, without_the_last_row])
@pytest.mark.parametrize("words", ["", "algorithm=scaffold"])
def test_a_run_that_is_set_back_ends_as_if_it_had_not_been(harm: Harm | None, words: str, tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "R=5", *words.split())
    expected = simulate_run(spec, tmp_path / "simulated")
    directory = stopped(spec, tmp_path, 14, keep_checkpoints=10)
    if harm is not None:
        harm(directory)
    before = content(directory.path)
    stage = LocalDeployment(spec, tmp_path, keep_checkpoints=10, back_to=1)
    rows = play(stage)
    assert remove_times(rows) == remove_times(expected.read_rows())[2 if harm is without_rows else 0 :]
    assert stage.serving.directory.model.read_bytes() == expected.model.read_bytes()
    (event,) = stage.events("back-to")
    assert event["round"] == 1
    aside = content(directory.path / "set-aside" / event["set_aside"])
    assert {"checkpoints/000002.json", "checkpoints/000003.json"} <= set(aside)
    assert aside.get("rounds.jsonl") == before.get("rounds.jsonl")
    made = [(e["round"], e["client"]) for e in list_valid_events(read_events(directory.path / "relay" / "events.jsonl"))
            if e["event"] == "committed"]  # fmt: skip
    assert len(made) == len(set(made)) == spec.R * len(stage.partition.clients)
    fences = [event["fence"] for event in stage.events("leased")]
    assert fences == sorted(set(fences))


def test_a_round_without_a_checkpoint_is_no_place_to_go_back_to(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "R=4")
    directory = stopped(spec, tmp_path, 10)
    rounds = directory.checkpoints.list_rounds()
    flipped(directory.checkpoints.folder / f"{rounds[-1]:06d}.safetensors")
    for r in (0, rounds[-1], 99):
        with pytest.raises(InputError) as found:
            LocalDeployment(spec, tmp_path, back_to=r).play()
        assert (found.value.value, found.value.limit) == (r, f"one of {rounds[0]}")


def test_a_finished_run_can_be_set_back(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "R=3")
    first = LocalDeployment(spec, tmp_path)
    play(first)
    model = first.serving.directory.model.read_bytes()
    second = LocalDeployment(spec, tmp_path, back_to=2)
    play(second)
    assert second.serving.directory.model.read_bytes() == model
    (event,) = second.events("back-to")
    assert (tmp_path / "run" / "set-aside" / event["set_aside"] / "model.safetensors").read_bytes() == model


def test_peer_to_peer_clients_that_were_started_again_go_on_from_where_the_server_was_set_back(tmp_path: Path) -> None:
    first = make_direct_deployment(tmp_path, "R=3", "M=2", "C=9")
    expected = simulate_run(first.spec, tmp_path / "simulated")
    play(first)
    second = make_direct_deployment(tmp_path, "R=3", "M=2", "C=9", back_to=2)
    rows = play(second)
    assert (tmp_path / "model").read_bytes() == expected.model.read_bytes()
    assert remove_times(rows) == remove_times(expected.read_rows())


def test_so_many_checkpoints_are_kept_as_are_asked_for(tmp_path: Path) -> None:
    stage = LocalDeployment(small_spec(tmp_path, "R=5"), tmp_path, keep_checkpoints=4)
    play(stage)
    assert stage.serving.directory.checkpoints.list_rounds() == [2, 3, 4, 5]
    with pytest.raises(OutOfRange):
        Checkpoints(tmp_path, keep=1)


def test_back_to_and_from_scratch_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        LocalDeployment(small_spec(tmp_path), tmp_path, back_to=1, from_scratch=True)


# Who wrote last


def test_weights_that_no_client_can_use_are_laid_to_the_client_that_wrote_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As before the bound: the deposit counts. Set back without its writer, the run ends."""
    words = ("R=3", "order=fixed")
    spec = small_spec(tmp_path, *words)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(deposit_bound, "find_excess", lambda *_: None)
        corrupt(meanwhile, huge)
        first = LocalDeployment(spec, tmp_path, policy=Policy("wait", retries=1))
        with pytest.raises(Exception) as found:
            play(first)
    error: Any = found.value
    assert isinstance(error, Diverged) and f"lient {EVIL} wrote the weights last" in str(error.hint)
    assert f"--back-to 0 --without {EVIL}" in str(error.hint)
    second = LocalDeployment(spec, tmp_path, back_to=0)
    second.offer = second.serving.config = _without(second, EVIL)
    play(second, EVIL)
    skips = list_skipped_visits(read_events(tmp_path / "run" / "relay" / "events.jsonl"))
    assert skips == {(r, EVIL, 0) for r in range(3)}
    expected = simulate(second.serving.spec, RunDirectory(tmp_path / "replayed"), skips)
    assert second.serving.directory.model.read_bytes() == expected.model.read_bytes()


def test_the_last_writer_is_the_last_in_a_sequence_or_all_of_the_round_before() -> None:
    def event(kind: str, r: int, m: int) -> dict[str, Any]:
        return {"event": kind, "round": r, "client": m, "occurrence": 0}

    events = [event("committed", r, m) for r in (0, 1) for m in (2, 0, 1)] + [event("committed", 2, 0)]
    assert find_last_writers(events, in_sequence=True) == (2, [0])
    assert find_last_writers(events, in_sequence=False) == (1, [0, 1, 2])
    assert find_last_writers(events[:2], in_sequence=False) is None and find_last_writers([], in_sequence=True) is None
    assert find_last_writers([*events, {"event": "back-to", "round": 1}], in_sequence=True) == (0, [1])


# A client that is excluded during the run


def _without(stage: LocalDeployment, *left: int) -> Any:
    return replace(stage.offer, without=left)


@pytest.mark.parametrize("words", ["", "algorithm=fedavg weighted=true", "placement=whole algorithm=scaffold"])
def test_a_client_is_excluded_during_the_run_and_let_in_again(words: str, tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "R=6", "order=fixed", *words.split())
    stopped(spec, tmp_path, 6)
    second = LocalDeployment(spec, tmp_path)
    second.offer = second.serving.config = _without(second, 2)
    stop_after_commits(second, 12)
    with pytest.raises(KeyboardInterrupt):
        play(second)
    third = LocalDeployment(spec, tmp_path)  # without a word it stays so
    assert [event["client"] for event in third.events("excluded")] == [2]
    stop_after_commits(third, 15)
    with pytest.raises(KeyboardInterrupt):
        play(third)
    last = LocalDeployment(spec, tmp_path, readmit=(2,))
    play(last)
    assert [event["client"] for event in last.events("readmitted")] == [2]
    skips = list_skipped_visits(last.events("skipped"))
    assert skips and {m for _, m, _ in skips} == {2} and len(skips) < spec.R
    assert 2 in {event["client"] for event in last.events("committed") if event["round"] == spec.R - 1}
    expected = simulate(last.serving.spec, RunDirectory(tmp_path / "replayed"), skips)
    assert last.serving.directory.model.read_bytes() == expected.model.read_bytes()


@pytest.mark.parametrize("listen", ["", "127.0.0.1:0"], ids=["relayed", "direct"])
def test_a_client_is_excluded_from_a_peer_to_peer_run(listen: str, tmp_path: Path) -> None:
    words = ("R=4", "M=3", "C=9")
    first = make_direct_deployment(tmp_path, *words)
    stop_after_commits(first, 5)
    for m in first.partition.clients:
        join_directly(first, m, listen=listen)
    with pytest.raises(KeyboardInterrupt):
        first.play()
    second = make_direct_deployment(tmp_path, *words)
    second.offer = second.serving.config = _without(second, 1)
    for m in (0, 2):
        join_directly(second, m, listen=listen)
    second.play()
    skips = list_skipped_visits(second.events("skipped"))
    assert skips and {m for _, m, _ in skips} == {1} and bool(second.events("handed")) == bool(listen)
    expected = simulate(second.serving.spec, RunDirectory(tmp_path / "replayed"), skips)
    assert (tmp_path / "model").read_bytes() == expected.model.read_bytes()


def test_an_excluded_client_is_not_let_in(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "R=3")
    stopped(spec, tmp_path, 4)
    second = LocalDeployment(spec, tmp_path)
    second.offer = second.serving.config = _without(second, 2)
    play(second)
    assert "excluded from this run" in str(second.words[2])


def test_who_was_left_out_at_the_beginning_cannot_be_let_in(tmp_path: Path) -> None:
    journal, file = Journal(tmp_path / "relay"), Exclusions(tmp_path / "excluded.json")
    with pytest.raises(InputError):
        file.update(journal, 3, {2}, [2], [2])
    with pytest.raises(InputError):
        file.update(journal, 3, {2}, [], [2])
    with pytest.raises(OutOfRange):
        file.update(journal, 3, {2}, [0, 1], [])
    assert file.update(journal, 3, {2}, [2, 0], []) == {0} == file.read()
    assert file.update(journal, 3, {2}, [2], [0, 1]) == set()


@pytest.mark.parametrize("harmed", ["", "{}", '["1"]', "[1", "[true]"])
def test_a_damaged_list_of_excluded_clients_is_one_line(harmed: str, tmp_path: Path) -> None:
    (tmp_path / "excluded.json").write_text(harmed)
    with pytest.raises(InputError) as found:
        Exclusions(tmp_path / "excluded.json").read()
    assert "excluded.json" in found.value.what and found.value.hint


def test_the_evaluator_of_a_sealed_run_cannot_be_excluded(tmp_path: Path) -> None:
    first = make_direct_deployment(tmp_path, "R=3", "M=2", "C=9")
    play(first)
    second = make_direct_deployment(tmp_path, "R=3", "M=2", "C=9")
    second.offer = second.serving.config = _without(second, first.spec.evaluator)
    with pytest.raises(InputError) as found:
        second.play()
    assert found.value.value == first.spec.evaluator


# Visits in the journal


def visit_of(x: torch.Tensor) -> Visit[Any]:
    return Visit(3, 0, 1, x, Step(0.1), 4)


def test_every_flipped_bit_of_a_committed_visit_is_noticed(tmp_path: Path) -> None:
    """Of the spaces that fill up the header nothing depends."""
    journal, x = Journal(tmp_path), torch.arange(5.0)
    journal.commit(visit_of(x), 7, Done(x + 1, Cost(1, 2, 0.5)))
    (file,) = (tmp_path / "visits").iterdir()
    whole = file.read_bytes()
    for position in range(len(whole)):
        harmed = bytearray(whole)
        harmed[position] ^= 4
        file.write_bytes(bytes(harmed))
        if whole[position] == ord(" "):
            continue
        with pytest.raises(InputError) as found:
            journal.find(visit_of(x))
        assert str(file) in found.value.what and "--back-to 3" in str(found.value.hint)
    file.write_bytes(whole[:-1])
    with pytest.raises(InputError):
        journal.find(visit_of(x))
    file.write_bytes(whole)
    again = journal.find(visit_of(x))
    assert isinstance(again, Done) and np.array_equal(again.x, x + 1)


def test_a_damaged_skip_is_noticed(tmp_path: Path) -> None:
    journal, x = Journal(tmp_path), torch.arange(5.0)
    journal.skip(visit_of(x), "client 1 was away")
    assert journal.find(visit_of(x)) == Skipped("client 1 was away")
    (file,) = (tmp_path / "visits").iterdir()
    said = json.loads(file.read_text())
    for harmed in ("", "{", '"away"', json.dumps({**said, "why": "client 2 was away"})):
        file.write_text(harmed)
        with pytest.raises(InputError):
            journal.find(visit_of(x))


def test_a_damaged_mean_of_the_fed_server_is_noticed(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.save_made(3, "name", b"sealed")
    assert journal.load_made(3, "name") == b"sealed" and journal.load_made(3, "other") is None
    (file,) = (tmp_path / "visits").iterdir()
    for position in (0, -1):
        flipped(file, position)
        with pytest.raises(InputError):
            journal.load_made(3, "name")
        flipped(file, position)
    file.write_bytes(b"short")
    with pytest.raises(InputError):
        journal.load_made(3, "name")


def test_a_server_with_a_damaged_visit_stops_and_goes_on_from_the_checkpoint(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "R=4", "order=fixed")
    expected = simulate_run(spec, tmp_path / "simulated")
    directory = stopped(spec, tmp_path, 6)
    flipped(sorted((directory.path / "relay" / "visits").iterdir())[0])
    with pytest.raises(InputError) as found:
        play(LocalDeployment(spec, tmp_path))
    assert "relay/visits" in found.value.what
    last = LocalDeployment(spec, tmp_path, back_to=directory.checkpoints.list_rounds()[-1])
    play(last)
    assert last.serving.directory.model.read_bytes() == expected.model.read_bytes()


# On the command line


@pytest.mark.parametrize(
    ("words", "value"),
    [("--with 99", 99), ("--with 1 --without 1", None), ("--back-to 3", 3), ("--back-to 3 --from-scratch", None)],
)
def test_what_cannot_be_is_refused_before_anybody_listens(words: str, value: object, tmp_path: Path) -> None:
    spec = small_spec(tmp_path)
    (tmp_path / "spec.toml").write_text(spec.to_toml())
    command = ["serve", str(tmp_path / "spec.toml"), "--insecure", "--listen", "127.0.0.1:0", *words.split()]
    if words == "--with 1 --without 1":  # of a run that has begun
        stopped(spec, tmp_path, 1)
        value = 1
    found = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "run")]).exception
    assert isinstance(found, InputError) and found.value == value


def test_fewer_than_two_checkpoints_are_a_wrong_option(tmp_path: Path) -> None:
    words = ["serve", "--insecure", "--keep-checkpoints", "1", "--out", str(tmp_path / "run")]
    assert CliRunner().invoke(app, words).exit_code == 2
