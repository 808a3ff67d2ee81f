"""The page in Chromium: every view without findings, numbers of the command line, hostile names, live rows."""

import json
import random  # noqa: TID251 - positions of sliders, not of a run
import subprocess
from pathlib import Path
from typing import Any

import pytest

from splitrelay.web import server as web_server
from splitrelay.web.server import StreamLimits
from splitrelay.web.source import PageSource
from splitrelay.web.static_page import build_static_page
from tests.browser.conftest import Opener, fetch_npm
from tests.browser.sample_runs import make_sample_runs
from tests.support.command_line import invoke
from tests.support.run_directories import row, write_run
from tests.unit.web.test_server import HOSTILE

AXE, TYPESCRIPT = ("axe-core@4.11.0", "axe.min.js"), ("typescript@5.9.3", "lib/tsc.js")
STATIC = Path(web_server.__file__).parent / "static"
SETTINGS = 200  # random positions of the sliders


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("runs")
    make_sample_runs(made)
    return made


def find_id(source: PageSource, name: str) -> str:
    return next(number for number, known in source.read().names.items() if known == name)


def wait_for(page: Any, script: str, arg: Any = None) -> None:
    """Wait until a script is true. Playwright's own way evaluates texts in the page, which its policy forbids."""
    for _ in range(600):
        if page.evaluate(script, arg):
            return
        page.wait_for_timeout(20)
    raise AssertionError(script)


def wait_quiet(page: Any) -> None:
    page.wait_for_load_state("load")
    wait_for(page, "document.querySelectorAll('[aria-busy=true]').length === 0")
    page.wait_for_timeout(700)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("view", ["runs", "run/ssl-22", "run/ssl-one-class", "bounds", "partition", "federation"])
def test_a_view_has_no_findings_of_axe_and_fits_its_window(
    view: str, width: int, theme: str, folder: Path, serve: Any, open_page: Opener
) -> None:
    source = PageSource(folder)
    name, _, run = view.partition("/")
    page = open_page(
        serve(source).address, f"#/{name}" + (f"/{find_id(source, run)}" if run else ""), theme=theme, width=width
    )
    if run:
        page.wait_for_selector("#visits figure", timeout=60_000)
    wait_quiet(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate(fetch_npm(*AXE).read_text() + "; undefined")
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    assert [(one["id"], [node["html"][:120] for node in one["nodes"]][:3]) for one in found["violations"]] == []


def read_numbers(page: Any, place: str) -> dict[str, float | None]:
    """Return the full values of the numbers that are shown."""
    script = f"Object.fromEntries([...document.querySelectorAll('{place} data')].map(d => [d.dataset.name, d.value]))"
    return {name: None if text == "null" else float(text) for name, text in page.evaluate(script).items()}


def set_fields(page: Any, values: dict[str, Any], case: str | None = None) -> None:
    """Move all sliders at once, and wait for the answer to the last movement."""
    page.evaluate(
        """([values, name]) => {
            const select = document.querySelector('form select');
            if (name && select.value !== name) { select.value = name; select.dispatchEvent(new Event('change')); }
            for (const [key, value] of Object.entries(values)) document.getElementById(`field-${key}`).value = value;
            document.getElementById(`field-${Object.keys(values)[0]}`).dispatchEvent(new Event('input'));
        }""",
        [{key: str(value) for key, value in values.items()}, case],
    )
    wait_for(page, "document.querySelectorAll('[aria-busy=true]').length === 0")


def ask(line: str) -> dict[str, Any] | None:
    answer = invoke(f"{line} --format json")
    return json.loads(answer.output) if answer.code == 0 else None


def choose_problem(draw: random.Random) -> tuple[str, dict[str, Any]]:
    case = draw.choice(["strongly-convex", "general-convex", "non-convex"])
    L = float(f"{10 ** draw.uniform(-1, 2):.3g}")
    M = draw.randint(2, 500)
    values: dict[str, Any] = {"L": L, "M": M, "S": draw.choice([M, draw.randint(1, M)]), "K": draw.randint(1, 100)}
    values["R"] = int(10 ** draw.uniform(0.5, 5))
    for name in ("sigma2", "zeta2", *(("A", "B2") if case == "non-convex" else ("D2",))):
        values[name] = float(f"{10 ** draw.uniform(-3, 2):.3g}")
    if case == "strongly-convex":
        values["mu"] = float(f"{L * 10 ** draw.uniform(-3, 0):.3g}")
    return case, values


def test_bounds_in_the_page_are_those_of_the_command_line(tmp_path: Path, serve: Any, open_page: Opener) -> None:
    page, draw = open_page(serve(PageSource(tmp_path)).address, "#/bounds"), random.Random(1)
    wait_quiet(page)
    compared, slowest = 0, []
    for _ in range(SETTINGS):
        case, values = choose_problem(draw)
        has_eta = draw.random() < 0.5
        page.evaluate(
            "(best) => { const box = document.querySelector('form input[type=checkbox]');"
            "if (box.checked !== best) box.click(); }",
            not has_eta,
        )
        eta = {"eta": float(f"{10 ** draw.uniform(-6, -1):.3g}")} if has_eta else {}
        set_fields(page, {**values, **eta}, case)
        shown = read_numbers(page, "#bounds")
        slowest.append(page.evaluate("Number(document.getElementById('bounds').dataset.milliseconds)"))
        is_partial = values["S"] < values["M"]
        words = " ".join(f"{key}={value}" for key, value in values.items() if key != "S" or is_partial)
        for name in ("ssl", "fedavg"):
            algorithm = f"{name}-swor" if is_partial else name
            steps = ask(f"splitrelay theory stepsize {algorithm} {case} {words}")
            if steps is None:
                assert f"{name}.total" not in shown
                continue
            best = steps["rules"]["best"]
            assert (shown[f"{name}.best.eta"], shown[f"{name}.best.total"]) == (best["eta"], best["total"])
            if has_eta:
                found = ask(f"splitrelay theory bound {algorithm} {case} {words} eta={eta['eta']}")
                if found is None:  # outside the range; the page says so
                    assert shown[f"{name}.total"] is None
                    continue
            else:
                found = best
            assert shown[f"{name}.total"] == found["total"]
            assert {key: shown[f"{name}.terms.{key}"] for key in found["terms"]} == found["terms"]
            compared += 1
    print(f"{compared} bounds compared; median {sorted(slowest)[SETTINGS // 2]:.0f} ms, with drawing")
    assert compared > SETTINGS


def test_partitions_in_the_page_are_those_of_the_command_line(tmp_path: Path, serve: Any, open_page: Opener) -> None:
    page, draw = open_page(serve(PageSource(tmp_path)).address, "#/partition"), random.Random(2)
    wait_quiet(page)
    for _ in range(SETTINGS):
        values = {"C": draw.randint(1, 10), "alpha": float(f"{10 ** draw.uniform(-2, 3):.3g}")}
        values |= {"M": draw.randint(10, 100), "seed": draw.randint(1, 1000)}
        set_fields(page, values)
        words = " ".join(f"{key}={value}" for key, value in values.items())
        found = ask(f"splitrelay partition exdir data=digits {words}")
        shown = read_numbers(page, "#partition")
        if found is None:
            assert shown == {}
            continue
        measures = found["measures"]
        flat = {f"{name}.{key}": value for name, five in measures.items() if isinstance(five, dict)
                for key, value in five.items()}  # fmt: skip
        assert shown == {**flat, "one_class_clients": measures["one_class_clients"]}


def test_hostile_names_are_shown_as_text(tmp_path: Path, serve: Any, open_page: Opener) -> None:
    for j, name in enumerate(HOSTILE):
        run = write_run(tmp_path / name, [0.1, 0.2], f"seed={j}", "C=1", "R=9")
        (run.path / "diverged.txt").write_text(f"{name} <img src=x onerror=alert(2)>")
        (run.path / "environment.json").write_text(json.dumps({name: "<b>bold</b>"}))
    server = serve(PageSource(tmp_path))
    page = open_page(server.address, width=900)
    wait_quiet(page)
    assert set(page.eval_on_selector_all("tbody th bdi", "nodes => nodes.map(n => n.textContent)")) >= set(HOSTILE)
    for name in HOSTILE:
        page.goto(f"{server.address}#/run/{find_id(server.source, name)}")
        wait_for(page, "name => document.querySelector('h1')?.textContent === name", arg=name)
        wait_quiet(page)
    assert page.eval_on_selector_all("main script, main img, main b", "nodes => nodes.length") == 0
    static = tmp_path / "page.html"
    static.write_text(build_static_page(PageSource(tmp_path)))
    page = open_page(static.as_uri())
    wait_quiet(page)
    assert page.eval_on_selector_all("main script, main img, main b", "nodes => nodes.length") == 0


def test_rows_appear_while_a_run_goes_on(tmp_path: Path, serve: Any, open_page: Opener) -> None:
    run = write_run(tmp_path / "going", [0.1, 0.2], "R=9", "C=1")
    page = open_page(serve(PageSource(tmp_path), limits=StreamLimits(pause=0.1)).address)
    page.wait_for_selector("text=1 of 9")
    with (run.path / "rounds.jsonl").open("a") as file:
        file.write(json.dumps(row(2, 0.5)) + "\n")
    page.wait_for_selector("text=2 of 9")
    page.click("details summary")
    wait_for(page, "document.querySelector('figure td')?.textContent === '2'")
    write_run(tmp_path / "later", [0.1], "R=5", "C=2")
    page.wait_for_selector("text=0 of 5")


def test_a_page_without_its_server_says_so_and_continues_later(tmp_path: Path, serve: Any, open_page: Opener) -> None:
    run = write_run(tmp_path / "going", [0.1, 0.2], "R=9", "C=1")
    first = serve(PageSource(tmp_path), token="same")
    page = open_page(first.address)
    page.wait_for_selector("text=1 of 9")
    first.shutdown()
    first.server_close()
    page.wait_for_selector("text=not connected")
    with (run.path / "rounds.jsonl").open("a") as file:
        file.write(json.dumps(row(2, 0.5)) + "\n")
    serve(PageSource(tmp_path), token="same", port=first.server_port)
    page.wait_for_selector("text=2 of 9", timeout=30_000)  # the browser has sent the row number that it had


def test_everything_can_be_reached_with_the_keyboard(folder: Path, serve: Any, open_page: Opener) -> None:
    page = open_page(serve(PageSource(folder)).address)
    wait_quiet(page)
    seen = []
    for _ in range(20):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.getAttribute('role') || document.activeElement.tagName"))
        if seen[-1] == "slider":
            break
    assert seen[0] == "A" and seen.count("A") >= 5 and "SELECT" in seen and seen[-1] == "slider"
    page.keyboard.press("End")
    text = page.evaluate("document.activeElement.getAttribute('aria-valuetext')")
    assert "training rounds 40" in text and "SSL" in text and text == page.inner_text("#curves .readout")


def test_the_static_file_shows_runs_and_says_what_needs_the_server(
    folder: Path, tmp_path: Path, open_page: Opener
) -> None:
    static = tmp_path / "page.html"
    static.write_text(build_static_page(PageSource(folder)))
    page = open_page(static.as_uri())
    page.wait_for_selector("#curves canvas")
    wait_quiet(page)
    assert page.inner_text("#comparison").count("\n") > 3
    page.select_option("label:has-text('Horizontal axis') select", "flops")
    page.wait_for_selector("text=client GFLOP")
    page.click("text=ssl-22")
    page.wait_for_selector("#visits figure")
    page.click("nav >> text=Bounds")
    page.wait_for_selector(f"pre:has-text('splitrelay page {folder}')")


def test_javascript_has_no_type_errors(tmp_path: Path) -> None:
    tsc = fetch_npm(*TYPESCRIPT)
    (tmp_path / "uplot.d.ts").write_text("declare const uPlot: any;\n")
    own = sorted(str(file) for file in STATIC.glob("*.js"))
    options = [
        "--allowJs",
        "--checkJs",
        "--noEmit",
        "--strict",
        "--target",
        "es2022",
        "--lib",
        "es2022,dom,dom.iterable",
    ]
    done = subprocess.run(["node", tsc, *options, *own, tmp_path / "uplot.d.ts"], capture_output=True, text=True)
    assert done.stdout == "" and done.returncode == 0
