"""Measure the page in Chromium: python -m tests.browser.measure [UPDATES]

Draws 200 runs of 1000 rounds, then updates the curves of a run UPDATES times (3600: an hour of one update a second)
and prints how the memory of the page grows.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from splitrelay.web.source import PageSource
from tests.browser.conftest import find_chromium
from tests.browser.pictures import serve
from tests.support.run_directories import row, write_run

RUNS, ROUNDS = 200, 1000
UPDATE = """async (count) => {
    for (let j = 0; j < count; j++) {
        const runs = (await fetchView("runs")).runs.filter((run) => run.name === "going");
        view.change({ runs, reload: false });
        view.stale.add(runs[0].line);
        await view.loadCurves(new AbortController().signal);
    }
}"""


def main(updates: int) -> None:
    """Print the measurements."""
    with tempfile.TemporaryDirectory() as place, sync_playwright() as tool:
        flags = ["--no-sandbox", "--enable-precise-memory-info", "--js-flags=--expose-gc"]
        browser = tool.chromium.launch(executable_path=find_chromium(), args=flags)
        measure_drawing(browser, Path(place) / "many")
        measure_memory(browser, Path(place) / "live", updates)
        browser.close()


def measure_drawing(browser: Any, folder: Path) -> None:
    for j in range(RUNS):
        values = [0.1 + 0.8 * r / ROUNDS + 0.02 * ((r * (j + 3)) % 7) / 7 for r in range(ROUNDS + 1)]
        write_run(folder / f"run-{j:03}", values, f"seed={j % 2}", f"eta={0.001 * (1 + j // 2)}")
    with serve(PageSource(folder)) as server:
        page = browser.new_page()
        page.goto(server.address)
        page.wait_for_selector("canvas", timeout=60_000)
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        for seeds in ("1", ""):
            page.select_option("label:has-text('Seeds') select", seeds)
            page.wait_for_timeout(1500)
            cpu = measure_cpu(session)
            timed = page.evaluate(
                """async () => {
                    choices.selected = new Set(view.list.runs.map((run) => run.id));
                    view.destroyChart();
                    const began = performance.now();
                    await view.loadCurves(new AbortController().signal);
                    const loaded = performance.now() - began;
                    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
                    return [view.chart.lines.length, loaded, performance.now() - began];
                }"""
            )
            lines, loaded, painted = timed
            print(f"{lines} lines of {ROUNDS + 1} points: painted after {painted:.0f} ms, loaded after {loaded:.0f} ms")
            spent = [after - before for before, after in zip(cpu, measure_cpu(session), strict=True)]
            print(f"  CPU time: server {1000 * spent[0]:.0f} ms, page {1000 * spent[1]:.0f} ms")
        page.close()


def measure_cpu(session: Any) -> tuple[float, float]:
    """Return the CPU seconds of this process, which is the server, and of the page's main thread."""
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    return time.process_time(), metrics["TaskDuration"]


def measure_memory(browser: Any, folder: Path, updates: int) -> None:
    run = write_run(folder / "going", [0.1] * 500, "R=100000", "C=1")
    write_run(folder / "other", [0.1] * 500, "C=2")
    with serve(PageSource(folder)) as server:
        page = browser.new_page()
        page.goto(server.address)
        page.wait_for_selector("canvas")
        for part in range(7):
            if part:
                page.evaluate(UPDATE, updates // 6)
            with (run.path / "rounds.jsonl").open("a") as file:
                file.write(json.dumps(row(500 + part, 0.5)) + "\n")
            page.evaluate("() => { gc(); gc(); }")
            used = page.evaluate("performance.memory.usedJSHeapSize")
            nodes = page.evaluate("document.querySelectorAll('*').length")
            print(f"after {part * (updates // 6)} updates: {used / 1e6:.2f} MB of heap, {nodes} elements")
        page.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3600)
