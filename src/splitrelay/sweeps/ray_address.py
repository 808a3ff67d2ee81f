"""The address of a Ray: how it is written, whether somebody answers there, and whether a token is asked for."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from importlib import import_module
from typing import Any

from splitrelay.errors import InputError

STARTED_HERE, ON_THIS_MACHINE, CLIENT = "ray", "auto", "ray://"
CLIENT_PORT = 10001  # where Ray listens for clients, unless said
PATIENCE = 5.0  # seconds in which somebody must answer
FORMS = "local, ray, auto, host:port or ray://host:port"
TOKEN = "Set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to what ray get-auth-token says there."
SLOW = "Starting Ray client server failed"  # what Ray says after half a minute
CALLS = {
    True: "/ray.rpc.RayletDriver/ClusterInfo",
    False: "/ray.rpc.NodeInfoGcsService/CheckAlive",
}  # by whether ray://


def address_of(word: str) -> str | None:
    """What a user named, once somebody has answered there; None is a Ray that is still to be started here."""
    if word in (STARTED_HERE, ON_THIS_MACHINE):
        return None if word == STARTED_HERE else word
    host, port = _parts(word)
    try:
        socket.create_connection((host, port), PATIENCE).close()
    except OSError as error:
        why = error.strerror or str(error)
        raise InputError(f"nobody answers at {word}", value=why, hint="Start one there: ray start --head.") from None
    if not _has_token() and _asks_for_token(f"{host}:{port}", CALLS[word.startswith(CLIENT)]):
        raise InputError(f"the Ray at {word} asks for a token", hint=TOKEN)
    return word


def refused(address: str | None, error: Exception) -> InputError:
    """Ray's own answer in one line."""
    if address is None:
        return InputError("no Ray could be started here", value=_line(error), hint="Without it: --on local.")
    hint = "Is it the same token?" if _has_token() else "Is it of the same version, and of the same Python?"
    if SLOW in str(error):
        hint = "Its host did not start a process for us in time: try again, or give it more room."
    return InputError(f"the Ray at {address} does not let us in", value=_line(error), hint=hint)


def _parts(word: str) -> tuple[str, int]:
    client = word.startswith(CLIENT)
    host, colon, port = word.removeprefix(CLIENT).rpartition(":")
    if client and not colon:
        host, port = port, str(CLIENT_PORT)
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise InputError("this is no address of a Ray", value=repr(word), limit=FORMS)
    return host.strip("[]"), int(port)


def _has_token() -> bool:
    return os.environ.get("RAY_AUTH_MODE", "").lower() == "token"


def _asks_for_token(target: str, call: str) -> bool:
    """Ray itself would ask for half a minute, and then say nothing about it. False where it cannot be found out."""
    with suppress(ModuleNotFoundError):  # ray works without it, but for ray://
        grpc: Any = import_module("grpc")
        try:
            with grpc.insecure_channel(target) as channel:
                channel.unary_unary(call)(b"", timeout=PATIENCE)
        except grpc.RpcError as error:
            return bool(error.code() == grpc.StatusCode.UNAUTHENTICATED)
    return False


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
