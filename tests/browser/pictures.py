"""Make the pictures of docs/page.md: python -m tests.browser.pictures [FOLDER] [light|dark] [WIDTH]

Every view is a picture of real runs on digits, of the calculator, or of a small deployed run with keys.
"""

import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from splitrelay.deploy import client_visit
from splitrelay.security.authority import open_authority
from splitrelay.web.server import PageServer
from splitrelay.web.source import PageSource
from tests.browser.conftest import find_chromium
from tests.browser.sample_runs import make_sample_runs
from tests.support.deployment import LocalDeployment, small_spec

ROOT = Path(__file__).parents[2]
COLOURS = 96  # of a picture; few colours make small files
HEIGHT = 1500  # pixels of the longest picture in docs


def main(folder: Path, theme: str = "light", width: int = 1000, most: int = HEIGHT) -> list[Path]:
    """Write a picture of every view, and return their paths."""
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, chdir(place), sync_playwright() as tool:
        results = Path("results")  # as a reader would type it
        make_sample_runs(results)
        browser = tool.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        context = browser.new_context(color_scheme=theme, viewport={"width": width, "height": 800})
        context.set_default_timeout(180_000)
        page = context.new_page()
        written = []
        with deploy(Path(place)) as source, serve(PageSource(results, *source)) as server:
            ids = {name: number for number, name in server.source.read().names.items()}
            views = {"runs": "runs", "run": f"run/{ids['ssl-one-class']}", "bounds": "bounds"}
            views |= {"partition": "partition", "federation": "federation"}
            for name, view in views.items():
                page.goto("about:blank")
                page.goto(f"{server.address}#/{view}")
                page.wait_for_selector({"run": "#visits figure", "federation": "#clients table"}.get(name, "canvas"))
                page.wait_for_timeout(1500)
                written.append(save_picture(page, folder / f"page-{name}.png", width, most))
        browser.close()
    return written


def save_picture(page: Any, path: Path, width: int, most: int) -> Path:
    """Write a picture of the page with few colours."""
    page.screenshot(path=path, full_page=True)
    with Image.open(path) as picture:
        cut = picture.crop((0, 0, width, min(most, picture.height))).convert("RGB")
    cut.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    return path


@contextmanager
def serve(source: PageSource) -> Iterator[PageServer]:
    with PageServer(source) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@contextmanager
def deploy(place: Path) -> Iterator[tuple[str, Path]]:
    """Deploy a run with keys that waits in its fourth round, and yield its address and the keys of an observer."""
    stage = LocalDeployment(small_spec(place, "M=6", "C=3", "R=9", "order=fixed"), place, keys=True)
    open_authority(place / "authority").issue_client("observer", observer=True)
    reached, going_on = threading.Event(), threading.Event()
    step = client_visit.RemoteServerHalf.step

    def wait(calls: Any, k: int, *given: Any, **more: Any) -> Any:
        if (calls.lease.r, calls.lease.m, k) == (3, 2, 1):
            reached.set()
            going_on.wait()
        return step(calls, k, *given, **more)

    client_visit.RemoteServerHalf.step = wait  # type: ignore[method-assign]
    try:
        for m in stage.partition.clients:
            stage.join(m)
        thread = threading.Thread(target=stage.play, daemon=True)
        thread.start()
        reached.wait(60)
        stage.serving.journal.note("lost", client=4, round=2, why="the connection was closed")
        stage.serving.journal.note("refused", client=5, why="the certificate was revoked")
        yield f"127.0.0.1:{stage.serving.port}", place / "observer"
        going_on.set()
        thread.join(60)
    finally:
        going_on.set()
        client_visit.RemoteServerHalf.step = step  # type: ignore[method-assign]


if __name__ == "__main__":
    given = sys.argv[1:]
    options = [Path(given[0]) if given else ROOT / "docs", *given[1:2], *(int(word) for word in given[2:4])]
    for one in main(*options):  # type: ignore[arg-type]
        print(one, f"{one.stat().st_size / 1000:.0f} kB")
