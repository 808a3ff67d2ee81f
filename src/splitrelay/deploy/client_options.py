"""Define the options of a client program, and the identity under which it joins."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from splitrelay.deploy.handshake import AgreedSpec
from splitrelay.deploy.lease_limits import Approval
from splitrelay.errors import InputError
from splitrelay.network.limits import Limits, Timeouts
from splitrelay.network.server_connection import EVALUATOR_NUMBER, FED_SERVER_NUMBER
from splitrelay.security import certificates
from splitrelay.security.certificates import EVALUATOR
from splitrelay.security.identity import Identity


@dataclass(frozen=True)
class ClientOptions:
    """The options of a client: its server, its identity, its data, and the spec that it has agreed to."""

    address: str
    client: int | None  # the number of the client if there are no keys, which contain it
    data: Path | None  # None for an evaluator that is not a client
    keys: Path | None = None
    agreed: AgreedSpec | None = None  # the client's own copy of the spec; that of the server must be the same
    check: bool = False
    patience: float = 0.0  # seconds without a connection after which it exits; 0: never
    test: Path | None = None  # the evaluator's images
    keep: Path = Path("model.safetensors")  # where the evaluator writes the model
    listen: str = ""  # address at which other clients deliver the half, peer to peer
    fed: bool = False  # it is the fed server
    sealed: bool = False  # take part only if the server cannot read the clients' half
    accept_spec: str = ""  # the digest of the accepted terms, without a copy of the spec
    approval: Approval = field(default_factory=Approval)  # asks the operator if there is neither
    repeats: int = 1  # how often the whole run may be repeated
    state: Path | None = None  # folder for the count of visits; None: the folder of the keys
    timeouts: Timeouts = field(default_factory=Timeouts)
    limits: Limits = field(default_factory=Limits)
    code: tuple[Path, ...] = ()  # own copies of the modules that the spec names
    device: str = "cpu"  # the torch device of the client half


def get_client_number(options: ClientOptions, identity: Identity | None) -> int:
    """Return the number of the client from its certificate, or that of the evaluator if it has only a test set."""
    m = options.client if identity is None else identity.m
    if options.fed:
        if identity is None or certificates.FED not in identity.roles:
            raise InputError("these are not the keys of a fed server", hint="Use keys issued with --fed-server.")
        return FED_SERVER_NUMBER
    if options.data is None and identity is not None and EVALUATOR in identity.roles:
        if options.test is None:
            raise InputError("an evaluator brings a test set", hint="Give --test.")
        return EVALUATOR_NUMBER
    name = "this client" if identity is None else identity.name
    if m is None:
        raise InputError(f"{name} has no client's number", hint="Use keys issued with --client, or --client m.")
    if options.data is None:
        raise InputError(f"{name} has nothing to train on", hint="Give --data.")
    return m


def get_client_name(m: int) -> str:
    """Return the name of a client for messages."""
    return {EVALUATOR_NUMBER: "the evaluator", FED_SERVER_NUMBER: "the fed server"}.get(m, f"client {m}")
