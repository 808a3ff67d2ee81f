"""Authorize calls: the certificate of a caller decides which of the server's methods it may call.

There are three methods. Join is for the clients of the run, each under its own number, and for its evaluator. The
status is for them and for observers. The model is for the roles that the server was given; by default, observers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from splitrelay.errors import InputError
from splitrelay.network.messages import Hello
from splitrelay.network.server_connection import EVALUATOR_NUMBER, FED_SERVER_NUMBER
from splitrelay.security.certificates import CLIENT, EVALUATOR, FED, OBSERVER, Peer
from splitrelay.security.identity import AccessDenied, Identity, authenticate_peer, load_identity
from splitrelay.security.revocation import Revocations

AccessCheck = Callable[[Any], str | None]  # a reason to refuse, or None


@dataclass(frozen=True)
class Authorizer:
    """Checks who may join, ask for the status and collect the model. Each check returns a reason to refuse, or None."""

    join: Callable[[Any, Hello], str | None]
    status: AccessCheck
    collect: AccessCheck


anyone = Authorizer(lambda context, hello: None, lambda context: None, lambda context: None)  # without keys


def authorize_by_certificate(
    revocations: Revocations, M: int | None = None, model_for: Sequence[str] = (OBSERVER,)
) -> Authorizer:
    """Admit only holders of our certificates, and only in their roles. The revocation list is read when it changes."""

    def join(peer: Peer, hello: Hello) -> str | None:
        if hello.client == EVALUATOR_NUMBER:
            return None if EVALUATOR in peer.roles else f"the certificate of {peer.name} is not that of an evaluator"
        if hello.client == FED_SERVER_NUMBER:
            return None if FED in peer.roles else f"the certificate of {peer.name} is not that of a fed server"
        return (
            None if peer.m == hello.client else f"the certificate of {peer.name} is not that of client {hello.client}"
        )

    def status(peer: Peer) -> str | None:
        if {EVALUATOR, OBSERVER, FED} & set(peer.roles) or M is None or (peer.m is not None and peer.m < M):
            return None
        return f"{peer.name} is client {peer.m}, and this run has clients 0 to {M - 1}"

    def collect(peer: Peer) -> str | None:
        if set(model_for) & set(peer.roles) and status(peer) is None:
            return None
        whom = " and ".join(f"{role}s" for role in model_for) or "nobody"
        return f"this server gives the model to {whom}; {peer.name} is {' and '.join(peer.roles)}"

    def check_caller(context: Any, rule: Callable[[Peer], str | None]) -> str | None:
        try:
            return rule(authenticate_peer(context.auth_context(), revocations))
        except AccessDenied as error:
            return str(error)

    return Authorizer(
        lambda context, hello: check_caller(context, lambda peer: join(peer, hello)),
        lambda context: check_caller(context, status),
        lambda context: check_caller(context, collect),
    )


CALLERS = (CLIENT, EVALUATOR, OBSERVER, FED)


def load_identity_with_role(folder: Path | None, insecure: bool, roles: Sequence[str] = CALLERS) -> Identity | None:
    """Load the keys in a folder and check their role. Return None with --insecure."""
    if folder is None and not insecure:
        hint = "Make some: splitrelay keys authority --help. --insecure does without, for tests on one machine."
        raise InputError("keys are missing: --keys FOLDER", hint=hint)
    if folder is not None and insecure:
        raise InputError("--keys and --insecure exclude each other", hint="Leave --insecure out.")
    if folder is None:
        return None
    identity = load_identity(folder)
    if not set(roles) & set(identity.roles):
        value, limit = " and ".join(identity.roles), f"the keys of {_either(roles)}"
        raise InputError(f"{folder} is of {identity.name}", value=value, limit=limit, hint="Give its own --keys.")
    return identity


def _either(roles: Sequence[str]) -> str:
    return " or ".join(f"an {role}" if role[0] in "aeiou" else f"a {role}" for role in roles)
