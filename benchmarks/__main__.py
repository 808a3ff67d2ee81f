"""python -m benchmarks [NAME...]: a table of ratios, and the same as JSON in results/benchmarks/."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.measure import machine

NAMES = ("basics", "learning", "runs", "kernels", "any_model")


def main(names: list[str]) -> None:
    if {"-h", "--help"} & set(names):
        print(f"{__doc__}\nNames: {', '.join(NAMES)}; all unless said. python -m benchmarks.wire is another.")
        return
    for name in names or NAMES:
        if name not in NAMES:
            sys.exit(f"unknown benchmark '{name}'. Known: {', '.join(NAMES)}.")
        print("  ".join(f"{key}: {value}" for key, value in machine().items()))
        print(f"{'what':<62} {'ours':>9} {'baseline':>9} {'ratio':>7}  baseline is")
        found = []
        for row in importlib.import_module(f"benchmarks.{name}").rows():
            print(
                f"{row.what:<62} {shown(row.ours)} {shown(row.baseline)} {row.ratio:>6.1f}x  {row.baseline_is}",
                flush=True,
            )
            found.append({**asdict(row), "ratio": row.ratio})
        _save(name, found)


def shown(seconds: float) -> str:
    """Seconds, or microseconds where they are few."""
    return f"{seconds:>7.3f} s" if seconds >= 0.01 else f"{1e6 * seconds:>6.0f} us"


def _save(name: str, rows: list[dict[str, object]]) -> None:
    path = Path("results/benchmarks") / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
