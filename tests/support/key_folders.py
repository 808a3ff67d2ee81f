"""A consortium to test with: its authority, a server, clients 3 and 4, an evaluator and an observer."""

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

from splitrelay.security.authority import Authority, create_authority, open_authority
from splitrelay.security.encryption import format_secrets, load_secrets
from splitrelay.security.key_files import KEY

TODAY = datetime(2026, 11, 16, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def consortium(place: Path, now: datetime | None = None, name: str = "clinics") -> Authority:
    """All their folders, beside the authority's."""
    authority = create_authority(place / "authority", name, now=now)
    authority.issue_server("server", ["localhost", "127.0.0.1"], now=now)
    authority.issue_client("hospital-3", 3, now=now)
    authority.issue_client("hospital-4", 4, hosts=["127.0.0.1"], now=now)
    authority.issue_client("judge", evaluator=True, now=now)
    authority.issue_client("boss", observer=True, now=now)
    return authority


def copied(authority: Authority, place: Path) -> Authority:
    """The same consortium elsewhere, to be changed."""
    shutil.copytree(authority.folder.parent, place, dirs_exist_ok=True)
    return open_authority(place / "authority")


def secrets_of(folder: Path) -> list[bytes]:
    """Whatever nobody may ever see: each line of a private key, and each sealing secret in any spelling."""
    lines = [line for line in (folder / KEY).read_bytes().splitlines() if not line.startswith(b"-----")]
    if not (folder / "sealing.json").exists():
        return lines
    epochs = load_secrets(folder)
    texts = [line.split(b'"')[3] for line in format_secrets(epochs).splitlines() if line.endswith((b'="', b'=",'))]
    raw = list(epochs.secrets.values())
    return [
        *lines,
        *texts,
        *raw,
        *(secret.hex().encode() for secret in raw),
        *(repr(secret).encode() for secret in raw),
    ]
