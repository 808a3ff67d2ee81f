"""One download over the web, to a file, telling how far it is."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from splitrelay import __version__
from splitrelay.errors import WorkError

CHUNK = 1 << 18
DEADLINE = 20.0  # seconds without an answer, at any point
SERVED_NAMES = {"User-Agent": f"splitrelay/{__version__}"}  # some hosts turn nameless programs away


@dataclass(frozen=True)
class Progress:
    """How far a way to a data set is: what it is busy with, and bytes of bytes where they are known."""

    way: str
    what: str
    done: int = 0
    total: int | None = None


def download(address: str, target: Path, deadline: float = DEADLINE) -> Generator[Progress, None, None]:
    """Bring what is at the address into the target; a download that stops early is an error."""
    try:
        request = urllib.request.Request(address, headers=SERVED_NAMES)
        with urllib.request.urlopen(request, timeout=deadline) as answer, target.open("wb") as file:
            yield from _copied(answer, file, target.name)
    except urllib.error.HTTPError as error:
        error.close()
        raise WorkError(f"{host(address)} answers HTTP {error.code}") from None
    except urllib.error.URLError as error:
        raise WorkError(f"{host(address)} cannot be reached ({_short(error.reason)})") from None
    except http.client.HTTPException as error:  # no proper answer
        raise WorkError(f"{host(address)} answers nonsense ({_short(error)})") from None
    except TimeoutError:
        raise WorkError(f"{host(address)} does not answer within {deadline:g} s") from None


def host(address: str) -> str:
    """The part of an address that a message needs."""
    return urlsplit(address).netloc or "the local disk"


def _copied(answer: http.client.HTTPResponse, file: IO[bytes], what: str) -> Generator[Progress, None, None]:
    announced = answer.headers.get("Content-Length")
    total = int(announced) if announced and announced.isdigit() else None
    done = 0
    while chunk := _chunk(answer, what, done):
        file.write(chunk)  # a full disk is not the address's fault: its error goes on as it is
        done += len(chunk)
        yield Progress("web", what, done, total)
    if total is not None and done != total:
        raise WorkError(f"the download of {what} was cut after {done} of {total} bytes")


def _chunk(answer: http.client.HTTPResponse, what: str, done: int) -> bytes:
    try:
        return answer.read(CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise WorkError(f"the download of {what} was cut after {done} bytes ({_short(error)})") from None


def _short(reason: object) -> str:
    words = getattr(reason, "strerror", None) or reason  # without the number of the error
    return " ".join(str(words).split())[:120] or type(reason).__name__
