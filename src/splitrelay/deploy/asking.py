"""What an onlooker can ask a server: how it goes, and for the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from splitrelay.deploy.admission import identity_in
from splitrelay.errors import WorkError
from splitrelay.files import replacing
from splitrelay.wire.asking import collected, status_of
from splitrelay.wire.client import channel
from splitrelay.wire.identity import channel_credentials


def ask_status(address: str, keys: Path | None, insecure: bool) -> dict[str, Any]:
    """Who is here, whose turn it is, how far the run is."""
    with _channel(address, keys, insecure) as line:
        try:
            report: dict[str, Any] = json.loads(status_of(line))
        except ValueError:
            raise WorkError("the server's report cannot be read") from None
    return report


def collect_model(address: str, keys: Path | None, insecure: bool, out: Path) -> int:
    """The final model, written to a file; how many bytes it has."""
    with _channel(address, keys, insecure) as line:
        model = collected(line)
    with replacing(out) as temporary:
        temporary.write_bytes(model)
    return len(model)


def _channel(address: str, keys: Path | None, insecure: bool) -> Any:
    identity = identity_in(keys, insecure)
    return channel(address, None if identity is None else channel_credentials(identity))
