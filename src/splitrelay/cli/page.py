"""`splitrelay page`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from splitrelay.atomic_files import write_text
from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import note, say, stopping
from splitrelay.cli.deploy_options import keys_options, warn_insecure
from splitrelay.errors import InputError

if TYPE_CHECKING:
    from splitrelay.web.source import PageSource

ADDRESS = re.compile(r"(\[[0-9A-Fa-f:]+\]|[^\s/:]+):[0-9]{1,5}")


@click.command(cls=Command, example="splitrelay page results --out page.html")
@click.argument("places", metavar="[RESULTS] [HOST:PORT]", nargs=-1)
@keys_options
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of the page (default: a free one).")
@click.option("--open/--no-open", "is_opened", default=False, help="Open the page in the default browser.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write one static file and exit.")
def page(
    places: Sequence[str], keys: Path | None, insecure: bool, port: int, is_opened: bool, out: Path | None
) -> None:
    """Show runs and deployed runs in the browser: curves, comparisons, visits, partitions, bounds.

    RESULTS is a folder of runs, or one run (default: results). New rows appear while runs go on. HOST:PORT is the
    server of a deployed run, which is asked for its status as an observer, with the keys in --keys. The page is served
    on 127.0.0.1 only, under an address with a secret token, until Ctrl-C. It never contacts other hosts.
    """
    source = build_source(places, keys, insecure)
    if out is not None:
        from splitrelay.web.static_page import build_static_page

        write_text(out, build_static_page(source))
        say(f"page: {out}")
        return
    warn_insecure(insecure)
    serve_page(source, port, is_opened)


def build_source(places: Sequence[str], keys: Path | None, insecure: bool) -> PageSource:
    """Return what the arguments name: a folder, an address, or both."""
    from splitrelay.runs.records import check_folder
    from splitrelay.web.source import PageSource

    addresses = [place for place in places if ADDRESS.fullmatch(place) and not Path(place).exists()]
    folders = [place for place in places if place not in addresses] or ([] if addresses else ["results"])
    if len(addresses) > 1 or len(folders) > 1:
        raise InputError("a page shows one folder and one server", value=" ".join(places))
    folder = Path(folders[0]) if folders else None
    if folder is not None:
        check_folder(folder)
    if not addresses and keys is not None:
        raise InputError("--keys has no effect without the address of a server", hint="Give HOST:PORT.")
    return PageSource(folder, addresses[0] if addresses else None, keys, insecure)


def serve_page(source: PageSource, port: int, is_opened: bool) -> None:
    """Serve the page until a signal."""
    import threading
    import webbrowser

    from splitrelay.web.server import PageServer

    try:
        server = PageServer(source, port)
    except OSError as error:
        hint = "Choose another --port."
        raise InputError("the page cannot be served at this port", value=error.strerror, hint=hint) from None
    with server, stopping(None) as stop:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        say(f"page: {server.address}")
        note("Open this address in a browser. It is valid on this machine until Ctrl-C.")
        if is_opened:
            webbrowser.open(server.address)
        while not stop.wait(1.0):
            pass
        server.shutdown()
