"""Measure the memory of the page while runs go on: python -m tests.browser.live [MINUTES] [FOLDER]

Starts `splitrelay page` as its own process, opens the views Runs and Run in Chromium, and appends a row to a run every
second. Every minute it prints the JavaScript heap after garbage collection, the elements and listeners of both views,
and the resident memory of the browser's processes and of the page's server. Ctrl-C ends it earlier.
"""

import json
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from splitrelay.web.source import read_folder
from tests.browser.conftest import find_chromium
from tests.support.run_directories import row, write_run

FIRST = 2000  # rows of each run at the start; an hour adds 3600 to one of them
HEADER = ("minute", "row", "shown", "runs MB", "run MB", "elements", "listeners", "browser MB", "server MB")


def main(minutes: int, folder: Path) -> None:
    """Print a line of measurements for each minute."""
    values = [0.1 + 0.8 * r / FIRST for r in range(FIRST)]
    run = write_run(folder / "going", values, "R=100000", "C=1")
    for seed in range(3):
        write_run(folder / f"other-{seed}", values, "C=2", f"seed={seed}")
    command = [sys.executable, "-c", "from splitrelay.cli.main import run; run()", "page", str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().removeprefix("page: ").strip()
        number = next(number for number, name in read_folder(folder).names.items() if name == "going")
        with sync_playwright() as tool:
            browser = tool.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
            with closing(browser):
                pages = [browser.new_context().new_page() for _ in range(2)]
                for page, view in zip(pages, ("runs", f"run/{number}"), strict=True):
                    page.goto(f"{address}#/{view}")
                    page.wait_for_selector("canvas", timeout=60_000)
                watch(browser, pages, run.path / "rounds.jsonl", server.pid, minutes)
    finally:
        server.terminate()
        server.wait(30)


def watch(browser: Any, pages: list[Any], rows: Path, server: int, minutes: int) -> None:
    """Append a row every second, and measure every minute."""
    sessions = [page.context.new_cdp_session(page) for page in pages]
    browser_session = browser.new_browser_cdp_session()
    print("  ".join(HEADER), flush=True)
    began, r = time.monotonic(), FIRST
    for minute in range(minutes + 1):
        while time.monotonic() < began + 60 * minute:
            with rows.open("a") as file:
                file.write(json.dumps(row(r, 0.5 + 0.4 * (r % 7) / 7)) + "\n")
            r += 1
            pages[0].wait_for_timeout(max(0.0, 1000 * (began + r - FIRST - time.monotonic())))
        found = [measure_page(session) for session in sessions]
        kinds = browser_session.send("SystemInfo.getProcessInfo")["processInfo"]
        numbers = (
            [minute, r - 1, read_round(pages[0])]
            + [f"{used / 1e6:.2f}" for used, _, _ in found]
            + [sum(elements for _, elements, _ in found), sum(listeners for _, _, listeners in found)]
            + [f"{sum(measure_process(one['id']) for one in kinds):.0f}", f"{measure_process(server):.1f}"]
        )
        print("  ".join(f"{text!s:>{len(name)}}" for text, name in zip(numbers, HEADER, strict=True)), flush=True)


def read_round(page: Any) -> str:
    """Return the round of the growing run in the list of runs."""
    return str(page.evaluate("String(view.list.runs.find((run) => run.name === 'going').round)"))


def measure_page(session: Any) -> tuple[float, int, int]:
    """Return the bytes of the heap after garbage collection, the elements, and the listeners of a page."""
    session.send("Performance.enable")
    for _ in range(2):
        session.send("HeapProfiler.collectGarbage")
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    return metrics["JSHeapUsedSize"], int(metrics["Nodes"]), int(metrics["JSEventListeners"])


def measure_process(number: int) -> float:
    """Return the resident memory of a process in MB, or 0 if it has ended."""
    try:
        lines = Path(f"/proc/{number}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1e3 for line in lines if line.startswith("VmRSS")), 0.0)


if __name__ == "__main__":
    length = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    with tempfile.TemporaryDirectory() as place:
        main(length, Path(sys.argv[2]) if len(sys.argv) > 2 else Path(place) / "results")
