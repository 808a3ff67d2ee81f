"""Who gets in: the certificate says who calls, and that must be who it says it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from splitrelay.errors import InputError
from splitrelay.wire.identity import Identity, NotAdmitted, admitted, load_identity
from splitrelay.wire.messages import Hello
from splitrelay.wire.revocation import Revocations

Admit = Callable[[Any, Hello | None], str | None]


def anyone(context: Any, hello: Hello | None) -> str | None:
    """Without keys nobody can be told from anybody else."""
    return None


def by_certificate(revocations: Revocations) -> Admit:
    """Only whom the authority has named, and only under its own number; the list is read again when it changes."""

    def admit(context: Any, hello: Hello | None) -> str | None:
        try:
            who = admitted(context.auth_context(), revocations)
        except NotAdmitted as error:
            return str(error)
        if hello is not None and who.m != hello.client:
            return f"the certificate of {who.name} is not that of client {hello.client}"
        return None

    return admit


def identity_in(folder: Path | None, insecure: bool) -> Identity | None:
    """Whose keys these are; None only where --insecure was said."""
    if folder is None and not insecure:
        way_out = "Make some: splitrelay keys authority --help. --insecure does without, for tests on one machine."
        raise InputError("keys are missing: --keys FOLDER", way_out=way_out)
    if folder is not None and insecure:
        raise InputError("--keys and --insecure exclude each other", way_out="Leave --insecure out.")
    return None if folder is None else load_identity(folder)
