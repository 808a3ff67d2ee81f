"""Write the page as one static file: everything inline, the answers of the views precomputed."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import product
from typing import Any

from splitrelay.web.run_list import AXES, list_runs
from splitrelay.web.server import INDEX, SCRIPTS, STYLES, answer_view, read_static, to_json
from splitrelay.web.source import PageSource

DETAILED = 200  # runs with a page of their own; a larger folder would make a file that no browser opens
POINTS = "300"  # of one line


def build_static_page(source: PageSource) -> str:
    """Return the page with all its files and data inline. The policy allows only these scripts, by their hashes."""
    scripts = {f'<script defer src="static/{name}"></script>': read_static(name) for name in SCRIPTS}
    styles = {f'<link rel="stylesheet" href="static/{name}">': read_static(name) for name in STYLES}
    policy = (
        f"default-src 'none'; script-src {_hash_all(scripts)}; style-src {_hash_all(styles)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    command = shlex.join(["splitrelay", "page", *([str(source.folder)] if source.folder else [])])
    written = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    data = to_json({"views": compute_views(source), "command": command, "written": written})
    parts = {
        "<!-- policy -->": f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        "<!-- licences -->": f"<!-- uPlot: {read_static('uplot/LICENSE')} -->",
        "<!-- data -->": f'<script type="application/json" id="static-data">{data}</script>',
        **{link: f"<style>{text}</style>" for link, text in styles.items()},
        **{link: f"<script>{text}</script>" for link, text in scripts.items()},
    }
    page = INDEX
    for mark, text in parts.items():
        page = page.replace(mark, text)
    return page


def _hash_all(files: Mapping[str, str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in files.values())
    return " ".join(f"'sha256-{digest}'" for digest in digests)


def compute_views(source: PageSource) -> dict[str, Any]:
    """Return the answers to all requests that the page makes without a server, by their keys."""
    found: dict[str, Any] = {}

    def add(name: str, **query: str) -> None:
        told = sorted(f"{part}={value}" for part, value in query.items() if value and part != "points")
        key = "&".join([name, *told])
        _, found[key] = answer_view(name, source, query)

    listed = list_runs(source, {})
    found["runs"] = listed
    for metric, axis, each in product(listed["metrics"], AXES, ("", "1")):
        add("curves", metric=metric["name"], x=axis, each=each, points=POINTS)
    if len(listed["first"]) > 1:
        add("compare", lines=",".join(listed["first"]))
    for run in listed["runs"][:DETAILED]:
        if run["state"] != "damaged":
            add("run", id=run["id"])
            add("visits", id=run["id"])
    if source.address is not None:
        add("federation")
    return found
