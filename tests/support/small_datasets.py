"""Small data sets, servers and clients for the tests of the data package. Run as a program, it fetches a small set."""

from __future__ import annotations

import csv
import gzip
import hashlib
import http.server
import re
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from splitrelay.data.cache import get_cache_folder
from splitrelay.data.dataset_formats import IDX_FILES, Idx, OfficialFile, encode_idx
from splitrelay.data.datasets import SETS, KnownSet
from splitrelay.data.downloads import Source, WebFiles
from splitrelay.data.fetch import fetch
from splitrelay.data.images import ImageSet
from splitrelay.errors import SplitrelayError
from splitrelay.randomness import Purpose, rng

TRAIN, TEST, H, W = 12, 6, 20, 30
Answer = Callable[[http.server.BaseHTTPRequestHandler, bytes], None]


def tiny_files(flat: bool = False) -> dict[str, bytes]:
    """Four idx files: 12 and 6 images of 20 x 30 in 3 classes; noise, or flat grey that packs well."""
    generator = rng(7, Purpose.INSTANCES)
    files = []
    for count in (TRAIN, TEST):
        x = np.full((count, H, W), 9) if flat else generator.integers(0, 256, (count, H, W))
        files += [encode_idx(x.astype(np.uint8)), encode_idx(np.arange(count, dtype=np.uint8) % 3)]
    return dict(zip(IDX_FILES, files, strict=True))


def tiny_set(*sources: Source, flat: bool = False) -> KnownSet:
    """A known set made of these files, with the given ways to them."""
    files = tuple(OfficialFile(name, len(p), hashlib.md5(p).hexdigest()) for name, p in tiny_files(flat).items())
    return KnownSet(
        name="tiny",
        about="for tests",
        shape=(1, H, W),
        train=TRAIN,
        test=TEST,
        classes=("a", "b", "c"),
        mean=(0.5,),
        std=(0.25,),
        format=Idx(),
        files=files,
        sources=sources,
        inside=("Tiny/raw",),
    )


def write_files(folder: Path, packed: bool = False, flat: bool = False) -> Path:
    """The official files in a folder, plain or each in a .gz."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, payload in tiny_files(flat).items():
        (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(payload) if packed else payload)
    return folder


def whole(handler: http.server.BaseHTTPRequestHandler, payload: bytes) -> None:
    """The file, as it should be."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(payload)))
    handler.end_headers()
    handler.wfile.write(payload)


def cut(handler: http.server.BaseHTTPRequestHandler, payload: bytes) -> None:
    """Half of what was announced."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(payload)))
    handler.end_headers()
    handler.wfile.write(payload[: len(payload) // 2])


def cut_without_length(handler: http.server.BaseHTTPRequestHandler, payload: bytes) -> None:
    """Half of the file, and nobody said how long it is."""
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(payload[: len(payload) // 2])


def other(handler: http.server.BaseHTTPRequestHandler, payload: bytes) -> None:
    """A file of the right size with one wrong byte."""
    plain = bytearray(gzip.decompress(payload))
    plain[-1] ^= 1
    whole(handler, gzip.compress(bytes(plain)))


def page(handler: http.server.BaseHTTPRequestHandler, payload: bytes) -> None:
    """What a hotel's network shows instead."""
    whole(handler, b"<html>Please log in</html>")


def missing(handler: http.server.BaseHTTPRequestHandler, payload: bytes) -> None:
    """Not found."""
    handler.send_error(404)


def moved(handler: http.server.BaseHTTPRequestHandler, payload: bytes) -> None:
    """Found elsewhere on the same host."""
    if handler.path.startswith("/elsewhere/"):
        return whole(handler, payload)
    handler.send_response(302)
    handler.send_header("Location", "/elsewhere" + handler.path)
    handler.send_header("Content-Length", "0")
    handler.end_headers()
    return None


@contextmanager
def server(answer: Answer = whole, flat: bool = False) -> Iterator[tuple[str, list[str]]]:
    """A web server on this machine with the packed files, and the list of what it was asked for."""
    packed = {f"{name}.gz": gzip.compress(payload) for name, payload in tiny_files(flat).items()}
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2]
            asked.append(name)
            answer(self, packed[name])

        def log_message(self, format: str, *args: object) -> None:
            """Be silent."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{running.server_port}/", asked
        finally:
            running.shutdown()
            thread.join()


def client(folder: Path, name: str, script: str) -> Path:
    """A program of this name, to be found on a PATH that holds the folder."""
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    return program


def same(arrays: Mapping[str, np.ndarray], files: Mapping[str, bytes]) -> bool:
    """Whether arrays hold exactly these official files."""
    return dict(Idx().encode(arrays)) == dict(files)


def main(root: str, base: str, limit: str = "0", flat: str = "") -> None:
    """Fetch the small set into the root, under a limit on the size of files if one is given; tell all on stdout."""
    import resource  # noqa: PLC0415 (not on every system)

    if int(limit):
        sys.dont_write_bytecode = True  # else Python caches a part of a module
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    known = tiny_set(WebFiles((base,)), flat=bool(flat))
    try:
        served = fetch(known, Path(root), watch=lambda progress: print(progress.what, flush=True))
        print(f"served by {served.kind}")
    except SplitrelayError as error:
        print(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])


FETCHED = ("mnist", "fashion-mnist", "cifar10")


def write_placeholders(line: str, root: Path) -> None:
    """Write the data sets that a command line uses; `reproduce` may use any."""
    for name in FETCHED:
        asked = re.search(rf"(?<!fashion-)\b{name}\b|\breproduce\b", line)
        if asked and not get_cache_folder(SETS[name], root).exists():
            _write(SETS[name], get_cache_folder(SETS[name], root))


def _write(known: KnownSet, folder: Path) -> None:
    """Write ten classes of grey images; colour images are zeros, which take no space on disk."""
    folder.mkdir(parents=True)
    for part in ("train", "test"):
        shape = known.compute_shape(f"{part}-x")
        y = np.arange(shape[0]) % 10
        np.save(folder / f"{part}-y.npy", y)
        x = np.lib.format.open_memmap(folder / f"{part}-x.npy", "w+", np.uint8, shape)
        if shape[1] == 1:
            x[:] = (20 * y + np.arange(shape[0]) % 17).astype(np.uint8)[:, None, None, None]
            x[:, :, ::3, ::5] //= 2
        x.flush()


WARDS = ("north", "south", "east")


def build_columns(N: int = 120) -> dict[str, list[Any]]:
    """Return the columns age, pressure, sex, ward, died and days."""
    generator = rng(3, Purpose.INSTANCES)
    age, pressure = generator.normal(60, 15, N), generator.normal(120, 20, N)
    risk = (age - 60) / 15 + (pressure - 120) / 40 + 0.3 * generator.normal(size=N)
    return {
        "age": [round(value, 3) for value in age.tolist()],
        "pressure": [round(value, 3) for value in pressure.tolist()],
        "sex": ["f" if value < 0.5 else "m" for value in generator.random(N).tolist()],
        "ward": [WARDS[k] for k in generator.integers(0, len(WARDS), N).tolist()],
        "died": ["yes" if value > 0 else "no" for value in risk.tolist()],
        "days": [round(3 + 2 * value, 3) for value in risk.tolist()],
    }


def write_table(path: Path, columns: dict[str, list[Any]] | None = None) -> Path:
    """Write columns as a CSV file."""
    columns = build_columns() if columns is None else columns
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def build_arrays(N: int = 60, d: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Return features (N, d) and classes (N,)."""
    generator = rng(4, Purpose.INSTANCES)
    x = generator.normal(size=(N, d))
    return x, (x[:, 0] > 0).astype(np.int64)


# Pieces of images as they would appear in the bytes of a message.


def cut_into_pieces(images: ImageSet) -> dict[str, np.ndarray]:
    """Cut each image into pieces of eight bytes: eight pixels, two float32 or one float64. By form, (N, pieces)."""
    first = images.x.reshape(len(images), -1)
    last = images.x.transpose(0, 2, 3, 1).reshape(len(images), -1)
    levels = images.normalize(images.x)
    precise = np.stack([level[images.x[:, c]] for c, level in enumerate(images.precise_levels)], axis=1)
    forms: dict[str, tuple[Any, ...]] = {
        "pixels": (np.uint8, first, last),
        "greys": ("<f4", first / 255, last / 255),
        "levels": ("<f4", levels.reshape(first.shape), levels.transpose(0, 2, 3, 1).reshape(first.shape)),
        "long levels": ("<f8", precise.reshape(first.shape), levels.reshape(first.shape)),
    }
    return {
        name: np.hstack([np.ascontiguousarray(rows, dtype).view("<u8") for rows in both])
        for name, (dtype, *both) in forms.items()
    }
