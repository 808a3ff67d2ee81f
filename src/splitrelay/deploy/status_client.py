"""Fetch the status or the model from a server, as an observer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from splitrelay.atomic_files import replace_atomically
from splitrelay.deploy.authorization import load_identity_with_role
from splitrelay.errors import WorkError, escape_unprintable
from splitrelay.network.grpc_channel import open_channel
from splitrelay.network.status_rpc import fetch_model, fetch_status
from splitrelay.security.identity import build_channel_credentials
from splitrelay.structured_text import parse_json


def ask_status(address: str, keys: Path | None, insecure: bool) -> dict[str, Any]:
    """Return the status of a run."""
    with _open_channel(address, keys, insecure) as channel:
        try:
            report = _escape_texts(parse_json(fetch_status(channel, address=address)))
        except (ValueError, RecursionError):
            raise build_report_error() from None
    if not isinstance(report, dict):
        raise build_report_error()
    return report


def build_report_error() -> WorkError:
    """Return the error for a report that is not one of this version."""
    return WorkError("the server's report cannot be read", hint="Has it the same version of Splitrelay?")


def collect_model(address: str, keys: Path | None, insecure: bool, out: Path) -> int:
    """Write the final model to a file, and return its length in bytes."""
    with _open_channel(address, keys, insecure) as channel:
        model = fetch_model(channel, address)
    with replace_atomically(out) as temporary:
        temporary.write_bytes(model)
    return len(model)


def _escape_texts(report: Any) -> Any:
    """Return the report with all texts escaped for the terminal, because the server may send anything."""
    if isinstance(report, dict):
        return {escape_unprintable(name): _escape_texts(value) for name, value in report.items()}
    if isinstance(report, list):
        return [_escape_texts(value) for value in report]
    return escape_unprintable(report) if isinstance(report, str) else report


def _open_channel(address: str, keys: Path | None, insecure: bool) -> Any:
    identity = load_identity_with_role(keys, insecure)
    return open_channel(address, None if identity is None else build_channel_credentials(identity))
