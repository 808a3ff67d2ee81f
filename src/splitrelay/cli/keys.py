"""`splitrelay keys authority|issue|show|renew|revoke|rotate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.click_extensions import Group
from splitrelay.cli.console import note
from splitrelay.cli.table_output import Table, emit, format_option

if TYPE_CHECKING:
    from splitrelay.security.authority import Handed
    from splitrelay.security.key_listing import Holder

SOON = 30  # days


def folder_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """--folder: which authority."""
    return click.option(
        "--folder",
        type=click.Path(path_type=Path),
        default=Path("authority"),
        show_default=True,
        help="The authority's folder; keys are written beside it.",
    )(command)


def days_option(usual: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """--days: how long it shall hold."""
    return click.option("--days", type=int, help=f"How long it holds (default {usual}).")


@click.group(cls=Group, name="keys", epilog="Example: splitrelay keys authority")
def keys() -> None:
    """Who may take part: the consortium's authority, and the keys of its server and clients.

    Each holder gets one folder, to be brought to its host and given to serve or join as --keys.
    """


@keys.command("authority", example="splitrelay keys authority --name clinics")
@folder_option
@click.option("--name", default="consortium", show_default=True, help="The consortium, as certificates name it.")
@days_option("3650")
def authority(folder: Path, name: str, days: int | None) -> None:
    """Make the consortium's authority, once, and the clients' sealing secret."""
    from splitrelay.security.authority import AUTHORITY_DAYS, create_authority

    made = create_authority(folder, name, AUTHORITY_DAYS if days is None else days)
    rows = [(name, folder, f"{made.not_after:%Y-%m-%d}", made.epoch())]
    emit(Table(("consortium", "folder", "expires", "epoch"), rows), None, "table")
    note(f"Whoever has {folder} can be anyone here: keep it off the server, and a copy of it in a safe place.")


@keys.command("issue", example="splitrelay keys issue hospital-3 --client 3")
@click.argument("name")
@click.option("--host", "hosts", multiple=True, help="Where it is called: a DNS name or an IP address. Repeatable.")
@click.option("--client", "m", type=int, help="It is client m of the spec, counted from 0.")
@click.option("--evaluator", is_flag=True, help="It holds the test set and scores the model, peer to peer.")
@click.option("--fed-server", "fed", is_flag=True, help="It averages the clients' halves (serve --fed-server).")
@click.option("--observer", is_flag=True, help="It may ask for the status and collect the model.")
@days_option("365")
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
    """Make the keys of a server (--host) or of a client (--client m), in a folder of that name.

    A client with --host as well can be called by its peers.
    """
    from splitrelay.security.authority import open_authority

    authority = open_authority(folder)
    if hosts and m is None and not (evaluator or observer or fed):
        made = authority.issue_server(name, hosts, days)
    else:
        made = authority.issue_client(name, m, evaluator=evaluator, observer=observer, fed=fed, hosts=hosts, days=days)
    _handed([made], shape)


@keys.command("show", example="splitrelay keys show")
@click.argument("folder", type=click.Path(path_type=Path), default=Path("authority"))
@format_option
def show(folder: Path, shape: str) -> None:
    """Whose keys these are, until when, and whether they are revoked.

    FOLDER is an authority's, for all that it has issued, or a holder's, for that one.
    """
    from splitrelay.security.key_listing import holders

    found = holders(folder)
    rows = [
        (one.who.name, one.roles, one.who.m, one.days_left, one.state, ", ".join(one.who.hosts), one.serial)
        for one in found
    ]
    columns = ("name", "role", "client", "days left", "state", "hosts", "serial")
    emit(Table(columns, rows), [_described(one) for one in found], shape)
    for one in found:
        if one.state == "valid" and one.days_left < SOON:
            note(f"{one.who.name} expires in {one.days_left} days. Renew it: splitrelay keys renew {one.who.name}")


@keys.command("renew", example="splitrelay keys renew hospital-3")
@click.argument("name")
@days_option("365")
@folder_option
@format_option
def renew(name: str, days: int | None, folder: Path, shape: str) -> None:
    """Make a new key and certificate for the same holder; the old ones hold until they expire."""
    from splitrelay.security.authority import open_authority

    _handed([open_authority(folder).renew(name, days)], shape)


@keys.command("revoke", example="splitrelay keys revoke hospital-3")
@click.argument("name")
@folder_option
@format_option
def revoke(name: str, folder: Path, shape: str) -> None:
    """Shut a holder out: a new revocation list for all, and for clients a new epoch of the sealing secret.

    A running server takes the new crl.pem over as soon as it lies in its folder.
    """
    from splitrelay.security.authority import open_authority

    _handed(open_authority(folder).revoke(name), shape)


@keys.command("rotate", example="splitrelay keys rotate")
@folder_option
@format_option
def rotate(folder: Path, shape: str) -> None:
    """Begin a new epoch of the sealing secret, for every client that is not revoked."""
    from splitrelay.security.authority import open_authority

    _handed(open_authority(folder).rotate(), shape)


def _handed(changed: Sequence[Handed], shape: str) -> None:
    """Which folders were written, and what must now reach their holders."""
    from splitrelay.security.certificates import shown_serial

    rows = [(one.who.name, ", ".join(one.who.roles), f"{one.who.not_after:%Y-%m-%d}", one.folder) for one in changed]
    payload = [
        {
            "name": one.who.name,
            "roles": one.who.roles,
            "client": one.who.m,
            "serial": shown_serial(one.who.serial),
            "not_after": one.who.not_after.isoformat(),
            "folder": str(one.folder),
            "files": one.files,
        }
        for one in changed
    ]
    files = [" ".join(one.files) for one in changed]
    cells = [(*row, new) for row, new in zip(rows, files, strict=True)]
    emit(Table(("name", "role", "expires", "folder", "bring to its host"), cells), payload, shape)


def _described(one: Holder) -> dict[str, Any]:
    return {
        "name": one.who.name,
        "roles": one.who.roles,
        "client": one.who.m,
        "hosts": one.who.hosts,
        "consortium": one.who.consortium,
        "serial": one.serial,
        "not_after": one.who.not_after.isoformat(),
        "days_left": one.days_left,
        "state": one.state,
        "revoked": one.revoked,
        "epochs": one.epochs,
    }
