"""Who takes part in a run, and with how much: what is known from when on, and is nobody surprised?"""

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splitrelay.deploy import client_program, remote_evaluator, status_report
from splitrelay.deploy.client_program import ClientOptions, join_all
from splitrelay.deploy.deployed_run import ClientSizesFile, check_deployable
from splitrelay.deploy.handshake import AgreedSpec
from splitrelay.deploy.server_visit import Policy
from splitrelay.deploy.status_report import Pace
from splitrelay.errors import InputError, OutputError
from splitrelay.network.grpc_channel import ServerRefused
from tests.support.bare_server import wait_until
from tests.support.deployment import LocalDeployment, simulate_run, small_spec
from tests.support.error_fields import expect_error

TWO = ("M=2", "C=9", "R=1")


def half_of(source: Path, to: Path) -> Path:
    with np.load(source) as file:
        np.savez(to, x=file["x"][::2], y=file["y"][::2])
    return to


# n_m


def test_until_the_run_begins_a_client_may_come_with_other_data(tmp_path: Path) -> None:
    stage = LocalDeployment(small_spec(tmp_path, *TWO), tmp_path)
    expected = simulate_run(stage.spec, tmp_path / "simulated")
    own = tmp_path / "data" / "client-0000" / "data.npz"
    leave = threading.Event()

    def heard(text: str) -> None:
        if "1 clients to come" in text:
            leave.set()

    def first() -> None:
        stage.join(0, data=half_of(own, tmp_path / "wrong.npz"))
        leave.wait(300)
        stage.clients[0].stop.set()
        wait_until(lambda: 0 in stage.words)
        stage.join(1)
        wait_until(lambda: 1 in stage.serving.network.connections.get_clients())
        stage.join(0)

    stage.serving.say = heard
    threading.Thread(target=first, daemon=True).start()
    stage.play()
    assert stage.serving.directory.model.read_bytes() == expected.model.read_bytes()
    counted = ClientSizesFile(tmp_path / "run" / "relay" / "clients.json").read()
    assert counted == {m: len(positions) for m, positions in enumerate(stage.partition.indices)}


def test_once_it_has_begun_the_data_stay_the_same(tmp_path: Path) -> None:
    stage = LocalDeployment(small_spec(tmp_path, *TWO, "R=2"), tmp_path)
    wrong = half_of(tmp_path / "data" / "client-0000" / "data.npz", tmp_path / "wrong.npz")
    refused: list[Any] = []

    def late(row: dict[str, Any]) -> None:
        if row["round"] == 1:
            try:
                list(
                    _joined(
                        stage, ClientOptions(f"127.0.0.1:{stage.serving.port}", 0, wrong, agreed=AgreedSpec(stage.spec))
                    )
                )
            except ServerRefused as error:
                refused.append(error)

    stage.serving.pace.record_row = lambda r, afresh: late({"round": r})  # type: ignore[method-assign]
    for m in (0, 1):
        stage.join(m)
    stage.play()
    (error,) = refused
    assert error.final and error.exit_code == 2
    assert "samples now and had" in str(error) and "bring the same data" in str(error)


def _joined(stage: LocalDeployment, *wishes: ClientOptions) -> Any:
    def quiet(m: int) -> Any:
        return lambda text: stage.said.append(f"{m}: {text}")

    return join_all(wishes, quiet, quiet, threading.Event())


# Who is left out


def test_who_is_left_out_is_not_let_in(tmp_path: Path) -> None:
    stage = LocalDeployment(small_spec(tmp_path, "M=3", "C=9", "R=1"), tmp_path)
    stage.offer = stage.serving.config = _without(stage, 2)
    for m in range(3):
        stage.join(m)
    stage.play()
    assert "left out of this run" in str(stage.words[2])
    assert {event["client"] for event in stage.events("committed")} == {0, 1}


def _without(stage: LocalDeployment, *left: int) -> Any:
    return replace(stage.offer, without=left)


def test_a_run_goes_on_with_those_that_it_began_with(tmp_path: Path) -> None:
    words = ("M=3", "C=9", "R=1")
    first = LocalDeployment(small_spec(tmp_path, *words), tmp_path)
    first.serving.config = _without(first, 2)
    for m in range(2):
        first.join(m)
    first.play()
    second = LocalDeployment(small_spec(tmp_path, *words), tmp_path)
    with expect_error(InputError, hint="--without 2"):
        second.play()


def test_who_is_left_out_twice_is_left_out(tmp_path: Path) -> None:
    census = ClientSizesFile(tmp_path / "clients.json")
    census.write({0: 5, 1: 7, 3: 0})
    census.check_absent((3, 3))
    with expect_error(InputError, hint="--without 3"):
        census.check_absent(())


def test_who_has_not_been_seen_has_no_samples_in_the_status(tmp_path: Path) -> None:
    stage = LocalDeployment(small_spec(tmp_path, *TWO), tmp_path, policy=Policy("skip", lease=0.1), quorum=1)
    stage.join(0)
    stage.play()
    assert [one["samples"] is None for one in status_report.status(stage.serving)["clients"]] == [False, True]


# What cannot be


@pytest.mark.parametrize("words", ["route=peer-to-peer", "algorithm=fedavg"])
def test_a_model_to_begin_from_is_refused_where_clients_draw_their_half(words: str, tmp_path: Path) -> None:
    spec = small_spec(tmp_path, *TWO, words, "init=begun.safetensors")
    with expect_error(InputError, value="init=begun.safetensors", hint=("route=centralized", "init")):
        check_deployable(spec, fed="fedavg" in words)


def peers(tmp_path: Path) -> LocalDeployment:
    return LocalDeployment(small_spec(tmp_path, *TWO, "route=peer-to-peer"), tmp_path, keys=True)


@pytest.mark.parametrize("check", [False, True])
def test_an_evaluator_without_a_test_set_is_told_before_anything_begins(check: bool, tmp_path: Path) -> None:
    stage = peers(tmp_path)
    stage.join(0, check=check)
    threading.Thread(target=lambda: (wait_until(lambda: 0 in stage.words), stage.stop.set()), daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        stage.play()
    assert isinstance(stage.words[0], InputError)
    assert "client 0 is this run's evaluator and brings no test set. Give --test" in str(stage.words[0])


def test_an_evaluator_that_cannot_keep_the_model_is_told_so_too(tmp_path: Path) -> None:
    stage = peers(tmp_path)
    stage.join(0, test=tmp_path / "data" / "test.npz", keep=tmp_path / "nowhere" / "model.safetensors")
    threading.Thread(target=lambda: (wait_until(lambda: 0 in stage.words), stage.stop.set()), daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        stage.play()
    assert isinstance(stage.words[0], OutputError) and "nowhere" in str(stage.words[0])


def test_a_model_that_finds_no_disk_space_is_handed_over_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk of the evaluator is full when all rounds are done; somebody frees disk space."""
    stage, tries, save = peers(tmp_path), list[int](), remote_evaluator.save_weights

    def full(*given: Any) -> None:
        tries.append(1)
        if len(tries) < 3:
            raise OutputError("cannot write model", value=os.strerror(28))
        save(*given)

    monkeypatch.setattr(remote_evaluator, "save_weights", full)
    expected = simulate_run(stage.spec, tmp_path / "simulated")
    for m in (0, 1):
        keep = {"test": tmp_path / "data" / "test.npz", "keep": tmp_path / "model"} if m == 0 else {}
        stage.join(m, **keep)
    stage.play()
    assert (tmp_path / "model").read_bytes() == expected.model.read_bytes() and len(tries) == 3
    assert [event["why"].startswith("OutputError: cannot write model") for event in stage.events("unable")] == [True]


def test_what_is_wrong_with_one_of_several_clients_is_said_before_any_calls(tmp_path: Path) -> None:
    stage = LocalDeployment(small_spec(tmp_path, *TWO), tmp_path)
    right = tmp_path / "data" / "client-0001" / "data.npz"
    wishes = [ClientOptions("127.0.0.1:1", 0, tmp_path / "missing.npz"), ClientOptions("127.0.0.1:1", 1, right)]
    with expect_error(InputError, what=str(tmp_path / "missing.npz"), limit=(".npz", ".csv", ".parquet")):
        list(_joined(stage, *wishes))


def test_of_several_clients_one_that_is_refused_says_so_and_the_others_go_on(tmp_path: Path) -> None:
    stage = LocalDeployment(small_spec(tmp_path, *TWO), tmp_path)
    stage.serving.config = _without(stage, 1)
    found: list[Any] = []

    def both() -> None:
        assert stage.listening.wait(300)
        data = [tmp_path / "data" / f"client-000{m}" / "data.npz" for m in (0, 1)]
        address, agreed = f"127.0.0.1:{stage.serving.port}", AgreedSpec(stage.spec)
        wishes = [ClientOptions(address, m, data[m], agreed=agreed) for m in (0, 1)]
        try:
            found.extend(_joined(stage, *wishes))
        except ServerRefused as error:
            found.append(error)

    thread = threading.Thread(target=both, daemon=True)
    thread.start()
    stage.play()
    thread.join(300)
    assert found[0] == "all rounds are done" and isinstance(found[1], ServerRefused)
    assert [line for line in stage.said if line.startswith("1: the server refused")]


# Another processor


def test_another_processor_is_allowed_and_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = LocalDeployment(small_spec(tmp_path, *TWO, "engine=reference"), tmp_path)
    accept = client_program.Accept

    def elsewhere(spec_hash: str, engine: str, cpu: str, n: int, **more: Any) -> Any:
        return accept(spec_hash, engine, "another", n, **more)

    monkeypatch.setattr(client_program, "Accept", elsewhere)
    for m in (0, 1):
        stage.join(m)
    stage.play()
    assert [event["client"] for event in stage.events("other-cpu")] in ([0, 1], [1, 0])
    assert len([line for line in stage.said if "equal bits are not promised" in line]) == 2


# How long it takes


def test_the_time_left_counts_from_where_this_program_took_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(status_report.time, "monotonic", lambda: now[0])
    pace = Pace()
    now[0] += 500.0  # for the clients to come
    for r in (0, 899, 900):
        pace.record_row(r, afresh=True)
    assert pace.left(1000) is None
    now[0] += 20.0
    pace.record_row(902, afresh=False)
    assert pace.left(1000) == pytest.approx(98 * 10.0)
    now[0] += 4.0
    assert pace.left(1000) == pytest.approx(98 * 10.0 - 4.0)
    pace.record_row(1000, afresh=False)
    assert pace.left(1000) == 0.0
