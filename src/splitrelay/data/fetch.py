"""Bring a data set to this machine: every way in order, checked, and there whole or not at all."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from splitrelay.data import cache
from splitrelay.data.datasets import KnownSet
from splitrelay.data.download import Progress
from splitrelay.data.download_sources import Way
from splitrelay.data.saved import save
from splitrelay.errors import InputError, OutputError, StorageError, UnknownName, WorkError

CACHE = "cache"


@dataclass(frozen=True)
class Served:
    """Which way brought the set, where it is, and why the ways before did not."""

    name: str
    kind: str
    way: str
    folder: Path
    tried: tuple[str, ...] = ()


def fetch(
    known: KnownSet,
    root: Path | None = None,
    *,
    only: str | None = None,
    given: Path | None = None,
    watch: Callable[[Progress], object] = lambda progress: None,
) -> Served:
    """Fetch a set into the folder; `watch` hears how far it is."""
    steps = fetching(known, root, only=only, given=given)
    while True:
        try:
            watch(next(steps))
        except StopIteration as end:
            served: Served = end.value
            return served


def fetching(
    known: KnownSet, root: Path | None = None, *, only: str | None = None, given: Path | None = None
) -> Generator[Progress, None, Served]:
    """The same, step by step: the cache first, then the ways in order, or a given folder, or one way only."""
    root = cache.data_folder() if root is None else root
    ways = chosen(known, only, given)
    tried: list[str] = []
    looks_in_cache = only in (None, CACHE) and given is None
    if looks_in_cache and (found := _cached(known, root, tried)):
        return found
    with cache.writing(root), cache.turn(known, root) as turn:
        lock = turn.take()
        if lock is cache.Lock.BUSY:
            yield Progress(CACHE, f"waiting for another process that is fetching {known.name}")
            turn.wait()
            if looks_in_cache and (found := _cached(known, root, [])):
                return found
        if lock is not cache.Lock.NONE:
            cache.sweep(known, root)
        return (yield from _through(known, ways, root, tried))


def chosen(known: KnownSet, only: str | None, given: Path | None) -> tuple[Way, ...]:
    """The ways that may be tried."""
    if given is not None and only is not None:
        raise InputError("a folder and a way are given", hint="Give one of the two.")
    if given is not None:
        return (known.folder(given),)
    if only is None:
        return known.ways
    kinds = [CACHE, *(way.kind for way in known.ways)]
    if only not in kinds:
        raise UnknownName(f"way to {known.name}", only, kinds)
    return tuple(way for way in known.ways if way.kind == only)


def _cached(known: KnownSet, root: Path, tried: list[str]) -> Served | None:
    folder = cache.place(known, root)
    if not folder.exists():
        tried.append("cache: empty")
        return None
    wrong = [verdict.wrong for verdict in cache.verdicts(known, root) if verdict.wrong]
    if wrong:
        tried.append(f"cache: damaged ({wrong[0]})")
        return None
    return Served(known.name, CACHE, "the cache", folder)


def _through(known: KnownSet, ways: Sequence[Way], root: Path, tried: list[str]) -> Generator[Progress, None, Served]:
    for way in ways:
        yield Progress(way.kind, f"trying {way.label}")
        try:
            with tempfile.TemporaryDirectory(dir=root, prefix=f".{known.name}-") as work:
                files = yield from way.files(known.files, Path(work))
            arrays = known.format.decode({file.name: file.checked(files[file.name]) for file in known.files})
            folder = save(cache.data_set(known, arrays), cache.place(known, root), served_by=way.label)
            return Served(known.name, way.kind, way.label, folder, tuple(tried))
        except (OutputError, StorageError) as error:
            raise _nowhere(known, root, [*tried, f"{way.kind}: {error.what}"], type(error)) from None
        except WorkError as error:
            tried.append(f"{way.kind}: {error.what}")
        except OSError as error:
            tried.append(f"{way.kind}: {error.strerror or error}")
            if error.errno in cache.NO_ROOM:
                raise _nowhere(known, root, tried) from None
    raise WorkError(f"no way to {known.name}. Tried {'; '.join(tried)}", hint=hint(known))


def _nowhere(
    known: KnownSet, root: Path, tried: Sequence[str], kind: type[OutputError | StorageError] = StorageError
) -> OutputError | StorageError:
    """A full disk: no other way can help."""
    return kind(f"no room for {known.name} in {root}. Tried {'; '.join(tried)}", hint=cache.ELSEWHERE)


def hint(known: KnownSet) -> str:
    """What helps when nothing did."""
    names = known.archive.addresses[0].rpartition("/")[2] if known.archive else ", ".join(f.name for f in known.files)
    return (
        "Connect this machine or install one of the clients named, or bring the original files "
        f"({names}; .gz will do): splitrelay data get {known.name} --from FOLDER"
    )
