"""Targets of the malicious server: clients of `splitrelay join` in every role and with both engines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from splitrelay.data import load
from splitrelay.deploy.client_options import ClientOptions
from splitrelay.deploy.handshake import FIXED, AgreedSpec, build_terms
from splitrelay.deploy.lease_limits import derive_allowed_visits
from splitrelay.network import tensor_transfer
from splitrelay.network.limits import Timeouts
from splitrelay.network.server_connection import EVALUATOR_NUMBER, FED_SERVER_NUMBER
from splitrelay.runs.spec import load_spec
from splitrelay.security.authority import create_authority
from tests.fuzz.client_oracle import Expected, get_shape

SMALL = ("M=2", "C=9", "K=2", "R=2", "batch=5", "eta=0.01")
ROLES: dict[str, tuple[str, ...]] = {
    "cut": ("model=lenet-small",),
    "clipped": ("model=mlp", "clip=1", "momentum=0.5"),
    "scaffold": ("model=mlp", "algorithm=scaffold"),
    "whole": ("model=mlp", "algorithm=fedavg", "placement=whole"),
    "peer-to-peer": ("model=mlp", "route=peer-to-peer"),
    "evaluator": ("model=mlp", "route=peer-to-peer"),
    "fed server": ("model=mlp", "algorithm=fedavg", "placement=cut"),
}
NUMBERS = {"evaluator": EVALUATOR_NUMBER, "fed server": FED_SERVER_NUMBER}
WITH_KEYS = {"peer-to-peer": "client-0", "evaluator": "judge", "fed server": "fed"}
# Clients try again and give up within seconds.
SHORT = Timeouts(
    heartbeat=0.5, silence=3.0, first_retry=0.005, longest_retry=0.05, step=3.0, handshake=3.0, tick=0.02, peer=0.3
)
ENGINES = ("fast", "reference")


@dataclass(frozen=True)
class Target:
    """One kind of client: its spec, its data, its keys."""

    role: str
    engine: str
    folder: Path
    expected: Expected
    half: bytes  # an honest one
    keys: Path | None

    def make_wish(self, port: int, keys: Path | None) -> ClientOptions:
        """Return what the client is started with."""
        expected, m = self.expected, self.expected.m
        agreed = AgreedSpec(expected.spec)
        if expected.is_pinned:
            agreed = replace(agreed, terms={name: getattr(expected.terms, name) for name in FIXED})
        return ClientOptions(
            f"127.0.0.1:{port}",
            m if m < EVALUATOR_NUMBER else None,
            None if m >= EVALUATOR_NUMBER else self.folder / "data.npz",
            keys=keys,
            agreed=agreed,
            test=self.folder / "test.npz" if m == EVALUATOR_NUMBER else None,
            keep=(keys or self.folder) / "model.safetensors",
            fed=m == FED_SERVER_NUMBER,
            repeats=expected.repeats,
            timeouts=SHORT,
        )


def make_targets(folder: Path, draw: np.random.Generator) -> list[Target]:
    """Return every role with both engines, with and without pinned terms."""
    authority = create_authority(folder / "authority", "fuzzing")
    authority.issue_server("server", ["127.0.0.1"])
    authority.issue_client("client-0", 0, hosts=["127.0.0.1"])
    authority.issue_client("judge", evaluator=True)
    authority.issue_client("fed", fed=True)
    x = draw.integers(1, 256, (60, 8, 8)).astype(np.uint8)
    np.savez(folder / "own.npz", x=x, y=np.arange(60) % 10)
    np.savez(folder / "data.npz", x=x[:20], y=np.arange(20) % 10)
    np.savez(folder / "test.npz", x=x[20:50], y=np.arange(30) % 10)
    return [
        _make_target(folder, role, engine, is_pinned, draw)
        for role in ROLES
        for engine in ENGINES
        for is_pinned in (False, True)
    ]


def _make_target(folder: Path, role: str, engine: str, is_pinned: bool, draw: np.random.Generator) -> Target:
    spec = load_spec(None, [f"data={folder / 'own.npz'}", *SMALL, *ROLES[role], f"engine={engine}"])
    data, m = load(spec.data.name), NUMBERS.get(role, 0)
    terms = build_terms(spec, data, heartbeat=0.5, sealed=role in WITH_KEYS, judged=role in WITH_KEYS)
    images = load(str(folder / "own.npz")).train.part(np.arange(50))
    keys = folder / WITH_KEYS[role] if role in WITH_KEYS else None
    allowed = derive_allowed_visits(spec, m)
    expected = Expected(m, spec, terms, is_pinned, images, allowed, int(draw.integers(2)))
    shape = get_shape(spec, terms)
    numbers = shape.size if spec.placement == "whole" else shape.boundary
    x = (0.05 * draw.standard_normal(numbers)).astype(np.float32)
    half = (
        tensor_transfer.pack_vectors(x=x, shift=0.01 * x) if role == "scaffold" else tensor_transfer.pack_vectors(x=x)
    )
    return Target(role, engine, folder, expected, b"" if keys else half, keys)
