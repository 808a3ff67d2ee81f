"""Does a visit whose numbers overflow fail like any other, and does a run that truly diverges still say so?"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from splitrelay.algorithms.base import Step, Visit
from splitrelay.deploy import client_visit
from splitrelay.deploy.backend_torch import build_model_spec, compute_shape, start
from splitrelay.deploy.handshake import AgreedSpec
from splitrelay.deploy.sealed_state import SealedHalf, make_first_state
from splitrelay.deploy.server_visit import Policy, ServerVisits
from splitrelay.engine.base import LOWER_ETA
from splitrelay.errors import Diverged
from splitrelay.network import messages
from splitrelay.randomness import Purpose, rng
from tests.support.deployment import LocalDeployment, list_skips, read_final_weights, simulate_with_skips, small_spec

THREE = ("M=3", "C=5", "R=3")
BAD = 1  # the client that misbehaves


def misbehave(monkeypatch: pytest.MonkeyPatch, how: str, times: float = float("inf")) -> list[int]:
    """In so many visits client BAD says that its numbers overflowed, or sends what overflows at the server."""
    step, said = client_visit.RemoteServerHalf.step, list[int]()

    def acting(calls: client_visit.RemoteServerHalf, k: int, h: Any, *words: Any, **more: Any) -> messages.Reply:
        if calls.lease.m == BAD and len({*said, calls.fence}) <= times:
            said.append(calls.fence)
            if how == "fail":
                raise client_visit.Diverged("my numbers overflowed")
            h = np.full_like(h, 3e38)
        return step(calls, k, h, *words, **more)

    monkeypatch.setattr(client_visit.RemoteServerHalf, "step", acting)
    return said


def play(stage: LocalDeployment) -> None:
    for m in stage.partition.clients:
        stage.join(m)
    stage.play()


HOW = [("fail", ""), ("h", ""), ("h", "engine=reference"), ("h", "algorithm=fedavg")]


@pytest.mark.parametrize(("how", "words"), HOW)
def test_one_client_that_overflows_does_not_end_a_run_that_may_skip(
    how: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = LocalDeployment(small_spec(tmp_path, *THREE, *words.split()), tmp_path, policy=Policy("skip"))
    misbehave(monkeypatch, how)
    play(stage)
    assert set(list_skips(stage)) == {(0, BAD), (1, BAD), (2, BAD)}
    assert {event["client"] for event in stage.events("failed")} == {BAD}
    assert read_final_weights(stage) == simulate_with_skips(stage.spec, stage, set(list_skips(stage)))


@pytest.mark.parametrize(("how", "words"), HOW)
def test_a_visit_that_overflowed_once_is_made_again(
    how: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both halves roll back: the weights are those of a run in which nothing happened."""
    stage = LocalDeployment(small_spec(tmp_path, *THREE, *words.split()), tmp_path, policy=Policy("wait"))
    misbehave(monkeypatch, how, times=2)
    play(stage)
    assert not stage.events("skipped") and len(stage.events("failed")) == 2
    assert read_final_weights(stage) == simulate_with_skips(stage.spec, stage, set())


def test_the_next_lease_of_a_client_comes_after_the_word_that_its_visit_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The visit fails where the step is read, on the loop; the next lease follows before the loop turns again."""
    policy = Policy("skip", lease=0.1, strikes=0)
    stage = LocalDeployment(small_spec(tmp_path, "M=2", "C=9", "R=12"), tmp_path, policy=policy, quorum=1)
    misbehave(monkeypatch, "h")
    stage.join(BAD)
    with pytest.raises(Diverged):  # its last round was lost, too
        stage.play()
    assert len(stage.events("skipped")) == 24 and len(stage.events("leased")) == 12
    assert not stage.events("misspoke") and not stage.events("restarted")


@pytest.mark.parametrize("away", ["wait", "retry"])
@pytest.mark.parametrize("how", ["fail", "h"])
def test_where_nothing_may_be_skipped_the_run_ends_after_some_retries(
    how: str, away: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = LocalDeployment(small_spec(tmp_path, *THREE), tmp_path, policy=Policy(away, retries=2))
    said = misbehave(monkeypatch, how)
    with pytest.raises(Diverged) as ended:
        play(stage)
    assert len(set(said)) == 3 == len(stage.events("failed"))
    assert ended.value.hint is not None and LOWER_ETA in ended.value.hint
    assert ended.value.exit_code == 1


@pytest.mark.parametrize("away", ["wait", "retry", "skip"])
def test_a_run_that_truly_diverges_ends_and_says_so(away: str, tmp_path: Path) -> None:
    """Every client overflows: with leave to skip, too, as nothing would be trained any more."""
    stage = LocalDeployment(small_spec(tmp_path, "eta=1e30", "R=5"), tmp_path, policy=Policy(away, retries=1))
    with pytest.raises(Diverged) as ended:
        play(stage)
    assert ended.value.hint is not None and LOWER_ETA in ended.value.hint
    assert not stage.events("committed") and len(stage.events("failed")) <= 8


@pytest.mark.parametrize("engine", ["fast", "reference"])
@pytest.mark.parametrize("name", ["mlp", "lenet-small"])
@pytest.mark.parametrize("step", [Step(0.1), Step(0.1, clip=1.0), Step(0.1, momentum=0.9, weight_decay=1e-3)])
def test_an_engine_that_overflowed_makes_the_same_bits_as_a_new_one(
    engine: str, name: str, step: Step[Any], tmp_path: Path
) -> None:
    spec = small_spec(tmp_path, f"model={name}", f"engine={engine}")
    shape = compute_shape(spec, (1, 8, 8), 10)
    draw = rng(0, Purpose.INSTANCES)
    x = 3 * torch.from_numpy(start(build_model_spec(spec, (1, 8, 8), 10), 7, torch.float32))
    batches = [draw.normal(size=(5, *shape.h)).astype(np.float32) for _ in range(3)]
    y = np.arange(5, dtype=np.int32)

    def made(tops: ServerVisits) -> bytes:
        turn: Any = tops(Visit(0, 0, 0, x, step, 3))
        for k, h in enumerate(batches):
            turn.step(messages.Step(1, k, h, y, 0.5))
            turn.apply_early()
        turn.finish(messages.Finish(1, 3, 0.5))
        return bytes(turn.engine.get_x().tobytes())

    used, new = (ServerVisits(spec, shape, (1, 8, 8), 10, 5) for _ in range(2))
    turn = used(Visit(0, 0, 1, x, step, 3))
    turn.step(messages.Step(1, 0, batches[0], y, 0.5))
    turn.apply_early()
    with pytest.raises(Diverged):
        for k, h in enumerate((3e38, 1e30), start=1):
            turn.step(messages.Step(1, k, np.full_like(batches[0], h), y, 0.5))
            turn.apply_early()
    used.release(turn)
    assert len(used.free) == 1
    assert made(used) == made(new)
    assert not used.free


def test_a_server_half_that_overflows_after_the_last_step_is_not_kept(tmp_path: Path) -> None:
    """Peer to peer nobody joins the halves: the loss and the gradient are numbers, the update is none."""
    spec = small_spec(tmp_path, "route=peer-to-peer", "engine=reference")
    shape = compute_shape(spec, (1, 8, 8), 10)
    tops = ServerVisits(spec, shape, (1, 8, 8), 10, 5, SealedHalf)
    x0 = make_first_state(torch.zeros(shape.size - shape.boundary))
    turn = tops(Visit(0, 0, 1, x0, Step(1e4), 1))
    turn.step(messages.Step(1, 0, np.full((5, *shape.h), 1e36, np.float32), np.zeros(5, np.int32), 0.0))
    with pytest.raises(Diverged):
        turn.finish(messages.Finish(1, 1, 0.0))
        turn.read_deposit(messages.Deposit(1, 0, b""), b"", 1)


NET = """
from torch import nn

def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Linear(6, 10))
"""


def test_a_batch_that_the_layers_refuse_fails_the_visit_and_not_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batch norm refuses a batch of one image."""
    (tmp_path / "batch_norm_net.py").write_text(NET)
    monkeypatch.syspath_prepend(tmp_path)
    words = ("model=batch_norm_net:net", "cut=2", "engine=reference")
    stage = LocalDeployment(small_spec(tmp_path, *THREE, *words), tmp_path, policy=Policy("skip"))
    step = client_visit.RemoteServerHalf.step

    def single(
        calls: client_visit.RemoteServerHalf, k: int, h: Any, labels: Any, *words: Any, **more: Any
    ) -> messages.Reply:
        n = 1 if calls.lease.m == BAD else len(h)
        return step(calls, k, h[:n], labels[:n], *words)

    monkeypatch.setattr(client_visit.RemoteServerHalf, "step", single)
    for m in stage.partition.clients:
        stage.join(m, agreed=AgreedSpec(stage.spec))
    stage.play()
    assert set(list_skips(stage)) == {(0, BAD), (1, BAD), (2, BAD)}


def test_a_deployed_run_that_diverged_can_be_published_and_a_restart_forgets_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = small_spec(tmp_path, *THREE)
    stage = LocalDeployment(spec, tmp_path, policy=Policy("wait", retries=1))
    with monkeypatch.context() as patched:
        misbehave(patched, "fail")
        with pytest.raises(Diverged) as found:
            play(stage)
    directory = stage.serving.directory
    assert found.value.what in directory.diverged.read_text(encoding="utf-8")
    assert directory.diverged.name in directory.read_published()
    play(LocalDeployment(spec, tmp_path, policy=Policy("wait")))
    assert directory.model.exists() and not directory.diverged.exists()
