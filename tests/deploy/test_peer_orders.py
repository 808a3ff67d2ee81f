"""Peer to peer in every order: some clients a round, one twice running, steps by size. Is it the simulated run?"""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from splitrelay.data import load
from splitrelay.deploy.rehearsal import read_untimed_rows
from splitrelay.runs.build import build_order, build_partition, compute_local_steps
from splitrelay.runs.spec import Spec
from tests.support.deployment import LocalDeployment, simulate_run, small_spec
from tests.support.sealed_deployments import issue_peer_keys, join_directly

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
