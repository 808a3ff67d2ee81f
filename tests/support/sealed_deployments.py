"""Deployments whose client half is sealed: peer to peer, and with a fed server."""

from pathlib import Path
from typing import Any

from splitrelay.network.server_connection import FED_SERVER_NUMBER
from splitrelay.security.authority import create_authority, open_authority
from tests.support.deployment import LocalDeployment, simulate_run, small_spec


def issue_peer_keys(folder: Path, M: int, hosts: list[str]) -> None:
    authority = create_authority(folder / "authority", "tests")
    authority.issue_server("server", ["127.0.0.1"])
    for m in range(M):
        authority.issue_client(f"client-{m}", m, hosts=hosts)


def make_direct_deployment(
    folder: Path, *words: str, hosts: tuple[str, ...] = ("127.0.0.1",), **how: Any
) -> LocalDeployment:
    spec = small_spec(folder, "route=peer-to-peer", "order=fixed", *words)
    if not (folder / "authority").exists():
        issue_peer_keys(folder, spec.partition.M, list(hosts))
    return LocalDeployment(spec, folder, keys=True, **how)


def join_directly(stage: LocalDeployment, m: int, listen: str = "127.0.0.1:0", **wish: Any) -> None:
    if m == stage.spec.evaluator:
        wish = {"test": stage.folder / "data" / "test.npz", "keep": stage.folder / "model", **wish}
    stage.join(m, listen=listen, **wish)


def simulate_deployment(stage: LocalDeployment) -> Any:
    return simulate_run(stage.spec, stage.folder / "simulated")


def make_peer_deployment(tmp_path: Path, *words: str, **offer: Any) -> LocalDeployment:
    spec = small_spec(tmp_path, "route=peer-to-peer", *words)
    stage = LocalDeployment(spec, tmp_path, keys=True, **offer)
    for m in stage.partition.clients:
        more: dict[str, Any] = (
            {"test": tmp_path / "data" / "test.npz", "keep": tmp_path / "model"} if m == spec.evaluator else {}
        )
        stage.join(m, **more)
    return stage


def make_fed_deployment(folder: Path, *words: str, **offer: Any) -> LocalDeployment:
    stage = LocalDeployment(small_spec(folder, *words), folder, keys=True, fed=True, **offer)
    if not (folder / "fed").exists():
        open_authority(folder / "authority").issue_client("fed", fed=True)
    return stage


def join_all(stage: LocalDeployment) -> None:
    stage.join(FED_SERVER_NUMBER, keys=stage.folder / "fed", data=None, fed=True)
    for m in stage.partition.clients:
        keep: dict[str, Any] = {"test": stage.folder / "data" / "test.npz", "keep": stage.folder / "model"}
        stage.join(m, **(keep if m == stage.spec.evaluator else {}))
