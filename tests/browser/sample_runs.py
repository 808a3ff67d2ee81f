"""Runs for pictures and tests of the page: real ones on digits, and a stopped, a diverged and a skipped one."""

import json
from pathlib import Path

from splitrelay.runs.execute import execute
from splitrelay.runs.run_directory import RunDirectory
from splitrelay.runs.spec import make_spec

SEEDS = (1234, 666, 22)


def make_sample_runs(folder: Path, R: int = 40) -> None:
    """Train SSL and FedAvg with three seeds, then leave one run in the middle and let one diverge."""
    for algorithm in ("ssl", "fedavg"):
        for seed in SEEDS:
            spec = make_spec(algorithm=algorithm, C=2, R=R, eta=0.1, seed=seed)
            list(execute(spec, RunDirectory(folder / f"{algorithm}-{seed}")))
    stopped = RunDirectory(folder / "ssl-one-class")
    list(execute(make_spec(algorithm="ssl", C=1, R=R, eta=0.1, seed=1234), stopped))
    cut = stopped.truncate_rows(R // 2)
    cut[5] |= {"skipped": 2, "skipped_visits": [[4, 3, 0, "the client was away"], [4, 7, 0, "the client was away"]]}
    cut[9] |= {"skipped": 1, "skipped_visits": [[8, 1, 0, "the client was away"]]}
    stopped.write_rows(cut)
    events = [{"event": "leased", "round": r, "client": m, "occurrence": 0} for r, m in ((6, 2), (6, 2), (6, 5))]
    (stopped.path / "relay").mkdir()
    (stopped.path / "relay" / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    fast = RunDirectory(folder / "ssl-too-fast")
    list(execute(make_spec(algorithm="ssl", C=2, R=R, eta=30.0, seed=1234), fast))
    fast.truncate_rows(R // 8)
    fast.model.unlink()
    fast.diverged.write_text(f"round {R // 8}: the loss of client 3 is not finite; got nan. Use a smaller eta.\n")
