"""`splitrelay keys authority|issue|show|renew|revoke|rotate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.click_extensions import Group
from splitrelay.cli.console import emit, format_option, note
from splitrelay.table import Table

if TYPE_CHECKING:
    from splitrelay.security.authority import KeyDelivery, KeyStatus

WARNING_DAYS = 30  # before a certificate expires


def folder_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --folder, the folder of the authority."""
    return click.option(
        "--folder",
        type=click.Path(path_type=Path),
        default=Path("authority"),
        show_default=True,
        help="The authority's folder; keys are written next to it.",
    )(command)


def days_option(default: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add --days."""
    return click.option("--days", type=int, help=f"Days until it expires (default {default}).")


@click.group(cls=Group, name="keys", epilog="Example: splitrelay keys authority")
def keys() -> None:
    """Create and manage the keys of a consortium's server and clients.

    Start with `keys authority`, then use `keys issue` for the server and each client. Each holder gets one folder.
    Bring it to the holder's host and give it to serve or join as --keys.
    """


@keys.command("authority", example="splitrelay keys authority --name clinics")
@folder_option
@click.option("--name", default="consortium", show_default=True, help="Name of the consortium in all certificates.")
@days_option(3650)
def authority(folder: Path, name: str, days: int | None) -> None:
    """Create the authority of a consortium, and the clients' sealing secret. This is done once."""
    from splitrelay.security.authority import AUTHORITY_DAYS, create_authority

    new = create_authority(folder, name, AUTHORITY_DAYS if days is None else days)
    rows = [(name, folder, f"{new.not_after:%Y-%m-%d}", new.get_epoch())]
    emit(Table(("consortium", "folder", "expires", "epoch"), rows), None, "table")
    note(
        f"Anyone with access to {folder} can impersonate any participant. Keep it away from the server, and keep a "
        "backup in a safe place."
    )


@keys.command("issue", example="splitrelay keys issue hospital-3 --client 3")
@click.argument("name")
@click.option("--host", "hosts", multiple=True,
              help="DNS name or IP address at which others reach it. Repeatable.")  # fmt: skip
@click.option("--client", "m", type=int, help="The number of the client in the spec, counted from 0.")
@click.option("--evaluator", is_flag=True, help="It has the test set and evaluates the model (peer to peer).")
@click.option("--fed-server", "fed", is_flag=True, help="It averages the client halves (serve --fed-server).")
@click.option("--observer", is_flag=True, help="It may ask for the status and download the model.")
@days_option(365)
@folder_option
@format_option
def issue(
    name: str,
    hosts: tuple[str, ...],
    m: int | None,
    evaluator: bool,
    observer: bool,
    fed: bool,
    days: int | None,
    folder: Path,
    shape: str,
) -> None:
    """Create the keys of a server (--host) or of a client (--client m), in a folder with this name.

    Other clients can connect to a client that has --host, too.
    """
    from splitrelay.security.authority import open_authority

    authority = open_authority(folder)
    if hosts and m is None and not (evaluator or observer or fed):
        delivery = authority.issue_server(name, hosts, days)
    else:
        delivery = authority.issue_client(
            name, m, evaluator=evaluator, observer=observer, fed=fed, hosts=hosts, days=days
        )
    _print_deliveries([delivery], shape)


@keys.command("show", example="splitrelay keys show")
@click.argument("folder", type=click.Path(path_type=Path), default=Path("authority"))
@format_option
def show(folder: Path, shape: str) -> None:
    """Show the holders of keys, when the keys expire, and whether they are revoked.

    FOLDER is the folder of an authority, to show all keys that it has issued, or the folder of one holder.
    """
    from splitrelay.security.authority import list_keys

    keys = list_keys(folder)
    rows = [
        (one.peer.name, one.roles, one.peer.m, one.days_left, one.state, ", ".join(one.peer.hosts), one.serial)
        for one in keys
    ]
    columns = ("name", "role", "client", "days left", "state", "hosts", "serial")
    emit(Table(columns, rows), [_describe_status(one) for one in keys], shape)
    for one in keys:
        if one.state == "valid" and one.days_left < WARNING_DAYS:
            name = one.peer.name
            note(f"{name} expires in {one.days_left} days. Renew it: splitrelay keys renew {name}")


@keys.command("renew", example="splitrelay keys renew hospital-3")
@click.argument("name")
@days_option(365)
@folder_option
@format_option
def renew(name: str, days: int | None, folder: Path, shape: str) -> None:
    """Create a new key and certificate for the same holder. The old ones stay valid until they expire."""
    from splitrelay.security.authority import open_authority

    _print_deliveries([open_authority(folder).renew(name, days)], shape)


@keys.command("revoke", example="splitrelay keys revoke hospital-3")
@click.argument("name")
@folder_option
@format_option
def revoke(name: str, folder: Path, shape: str) -> None:
    """Exclude a holder: create a new revocation list for all, and for clients a new epoch of the sealing secret.

    A running server uses the new crl.pem as soon as it is in the server's folder.
    """
    from splitrelay.security.authority import open_authority

    _print_deliveries(open_authority(folder).revoke(name), shape)


@keys.command("rotate", example="splitrelay keys rotate")
@folder_option
@format_option
def rotate(folder: Path, shape: str) -> None:
    """Start a new epoch of the sealing secret for all clients that are not revoked."""
    from splitrelay.security.authority import open_authority

    _print_deliveries(open_authority(folder).rotate(), shape)


def _print_deliveries(deliveries: Sequence[KeyDelivery], shape: str) -> None:
    """Print which folders were written, and which files must be brought to their holders."""
    from splitrelay.security.certificates import format_serial

    rows, payload = [], []
    for one in deliveries:
        peer = one.peer
        expires = f"{peer.not_after:%Y-%m-%d}"
        rows.append((peer.name, ", ".join(peer.roles), expires, one.folder, " ".join(one.files)))
        payload.append(
            {
                "name": peer.name,
                "roles": peer.roles,
                "client": peer.m,
                "serial": format_serial(peer.serial),
                "not_after": peer.not_after.isoformat(),
                "folder": str(one.folder),
                "files": one.files,
            }
        )
    emit(Table(("name", "role", "expires", "folder", "bring to its host"), rows), payload, shape)


def _describe_status(one: KeyStatus) -> dict[str, Any]:
    return {
        "name": one.peer.name,
        "roles": one.peer.roles,
        "client": one.peer.m,
        "hosts": one.peer.hosts,
        "consortium": one.peer.consortium,
        "serial": one.serial,
        "not_after": one.peer.not_after.isoformat(),
        "days_left": one.days_left,
        "state": one.state,
        "revoked": one.revoked,
        "epochs": one.epochs,
    }
