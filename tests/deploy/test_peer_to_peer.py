"""Peer to peer, past a server that cannot read the clients' half: the same weights, and only the evaluator has them."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from splitrelay.algorithms.base import Visit
from splitrelay.data import load
from splitrelay.deploy.rehearsal import read_untimed_rows
from splitrelay.deploy.sealed_state import SealedState
from splitrelay.deploy.server_visit import ServerVisit, ServerVisits
from splitrelay.errors import InputError, VisitFailed, WorkError
from splitrelay.runs.build import build_order, build_partition, compute_local_steps
from splitrelay.runs.spec import Spec
from tests.support.deployment import LocalDeployment, simulate_run, small_spec
from tests.support.error_fields import check_error, expect_error
from tests.support.sealed_deployments import issue_peer_keys, join_directly, make_peer_deployment


@pytest.mark.parametrize("engine", ["engine=fast", "engine=reference"])
def test_the_evaluator_writes_the_simulated_model(engine: str, tmp_path: Path) -> None:
    stage = make_peer_deployment(tmp_path, engine, "clip=1", "evaluator=2")
    expected = simulate_run(stage.spec, tmp_path / "simulated")
    stage.play()
    assert (tmp_path / "model").read_bytes() == expected.model.read_bytes()
    assert read_untimed_rows(stage.serving.directory) == read_untimed_rows(expected)
    assert not stage.serving.directory.model.exists()


def test_nothing_at_the_server_holds_the_clients_half(tmp_path: Path) -> None:
    stage = make_peer_deployment(tmp_path, "R=1")
    stage.play()
    weights = load_file(tmp_path / "model")
    first = next(iter(weights.values())).tobytes()
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) > 3
    assert not [path for path in files if first[:64] in path.read_bytes()]


def test_without_keys_nobody_can_seal(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "route=peer-to-peer")
    stage = LocalDeployment(spec, tmp_path)
    stage.join(0)
    stage.threads[0].join(0)

    def disconnect(port: int) -> None:
        stage.listening.set()
        stage.threads[0].join(300)
        stage.stop.set()

    stage.serving.on_listening = disconnect
    with pytest.raises(KeyboardInterrupt):
        stage.play()
    check_error(stage.words[0], InputError, what="sealed")


class Forgetful(ServerVisits):
    """A server that hands out an older half, as if the last visits had never been."""

    before: dict[int, SealedState]
    by, since = 2, 0  # by how many visits, and from which one on

    def __call__(self, visit: Visit[Any]) -> ServerVisit:
        self.before = {**getattr(self, "before", {}), visit.x.visit: visit.x}
        past = visit.x.visit - self.by
        return super().__call__(replace(visit, x=self.before[past]) if past >= self.since else visit)


class Lying(Forgetful):
    """The same, and it says that it is the newest one."""

    def __call__(self, visit: Visit[Any]) -> ServerVisit:
        turn: Any = super().__call__(visit)
        turn.half.x = replace(turn.half.x, visit=visit.x.visit, fence=visit.x.fence)
        return turn  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("server", "since", "kind"),
    [
        (Forgetful, 0, "OldHalf"),
        (Forgetful, 1, "OldHalf"),
        (Lying, 1, "WrongVisit"),
    ],
)
def test_a_server_that_hands_out_the_past_is_refused_by_name(
    server: type[Forgetful], since: int, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two clients take turns, so that the one whose turn it is has seen what came after the older half."""
    monkeypatch.setattr(server, "since", since)
    monkeypatch.setattr("splitrelay.deploy.server_program.ServerVisits", server)
    stage = make_peer_deployment(tmp_path, "M=2", "C=9", "R=4", "order=fixed")
    with expect_error(VisitFailed, what="4 times", value=kind):
        stage.play()
    assert [event["why"].startswith(kind) for event in stage.events("failed")] == [True] * 4
    assert [words for words in stage.said if kind in words]


def test_the_evaluator_refuses_a_half_that_replaces_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other client, set back by one, makes the evaluator's visit once more: it is not the one that counted."""
    monkeypatch.setattr(Forgetful, "by", 1)
    monkeypatch.setattr(Forgetful, "since", 2)
    monkeypatch.setattr("splitrelay.deploy.server_program.ServerVisits", Forgetful)
    stage = make_peer_deployment(tmp_path, "M=2", "C=9", "R=4", "order=fixed")
    with expect_error(WorkError, what=("client 0", "visit 3"), value="OldHalf"):
        stage.play()


def test_a_server_that_drops_a_committed_visit_is_found_out_by_who_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third visit goes on from the first: the client of the second does not find its own in what it is handed."""

    class Forking(ServerVisits):
        def __call__(self, visit: Visit[Any]) -> ServerVisit:
            if visit.x.visit == 1:
                Forking.first = visit.x  # type: ignore[attr-defined]
            turn: Any = super().__call__(visit)
            if (visit.r, visit.x.visit) == (0, 2):
                turn.half.x = replace(Forking.first, top=visit.x.top)  # type: ignore[attr-defined]
            return turn  # type: ignore[no-any-return]

    monkeypatch.setattr("splitrelay.deploy.server_program.ServerVisits", Forking)
    stage = make_peer_deployment(tmp_path, "M=3", "C=9", "R=3", "order=fixed")
    with expect_error(VisitFailed, what=("client 1", "4 times"), value="MissingVisit"):
        stage.play()


# Peer to peer in every order: some clients a round, one twice running, steps by size. Is it the simulated run?
WAYS = {
    "sampled": "order=sampled S=2 R=3",
    "consumed": "order=consumed S=3 R=3 engine=reference model=lenet-small clip=1",
    "replacement": "order=replacement S=4 R=3",
    "proportional": "partition=dirichlet alpha=0.3 tau=proportional K=3 engine=reference",
    "replacement of some, proportional": "partition=dirichlet alpha=0.3 tau=proportional order=replacement S=3 R=3 K=3",
}


def spec_for(folder: Path, name: str) -> Spec:
    return small_spec(folder, "route=peer-to-peer", *WAYS[name].split())


def visits(spec: Spec) -> list[tuple[int, int]]:
    """(round, client), one visit after another."""
    order = build_order(spec, build_partition(spec, load(spec.data.name)))
    return [(r, m) for r in range(spec.R) for m in order(r)]


@pytest.mark.parametrize("listen", ["", "127.0.0.1:0"], ids=["relayed", "direct"])
@pytest.mark.parametrize("name", WAYS)
def test_peer_to_peer_is_the_simulated_run_in_every_order(name: str, listen: str, tmp_path: Path) -> None:
    spec = spec_for(tmp_path, name)
    issue_peer_keys(tmp_path, spec.partition.M, ["127.0.0.1"])
    stage = LocalDeployment(spec, tmp_path, keys=True)
    simulation = simulate_run(spec, tmp_path / "simulated")
    for m in stage.partition.clients:
        join_directly(stage, m, listen)
    stage.play()
    assert (tmp_path / "model").read_bytes() == simulation.model.read_bytes()
    assert read_untimed_rows(stage.serving.directory) == read_untimed_rows(simulation)
    made = [(event["round"], event["client"]) for event in stage.events("committed")]
    assert Counter(made) == Counter(visits(spec))
    handed = [event["to"] for event in stage.events("handed")]
    others = [m for (_, before), (_, m) in pairwise(visits(spec)) if m != before]
    assert handed == (others if listen else [])
    assert not stage.events("wanted") and not stage.events("unreached")


# The ways are what they are meant to be


def test_some_clients_sit_out_a_round(tmp_path: Path) -> None:
    for name in ("sampled", "consumed"):
        spec = spec_for(tmp_path, name)
        assert all(len({m for r, m in visits(spec) if r == s}) < spec.partition.M for s in range(spec.R))


def test_a_client_comes_twice_running(tmp_path: Path) -> None:
    for name in ("replacement", "replacement of some, proportional"):
        who = [m for _, m in visits(spec_for(tmp_path, name))]
        assert any(one == two for one, two in pairwise(who))


def test_clients_take_different_numbers_of_steps(tmp_path: Path) -> None:
    for name in ("proportional", "replacement of some, proportional"):
        spec = spec_for(tmp_path, name)
        K = compute_local_steps(spec, build_partition(spec, load(spec.data.name)).indices)
        assert len(set(K)) > 1
