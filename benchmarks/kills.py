"""python -m benchmarks.kills [N]: kill -9 a real run at N random moments; it must end as if nothing had happened."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from splitrelay.randomness import Purpose, rng

PROGRAM = [sys.executable, "-c", "from splitrelay.cli.main import run; run()", "-q", "run"]
WORDS = ["data=digits", "algorithm=scaffold", "M=10", "S=4", "order=sampled", "C=2", "K=2", "R=120", "eta=0.05"]


def start(folder: Path) -> subprocess.Popen[str]:
    """The run as its own process; its rows come down the pipe."""
    command = [*PROGRAM, *WORDS, "--checkpoint", "1", "--out", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def killed(folder: Path, wait: float) -> bool:
    """Let it come to its first new row, wait, and kill it; False if it was done before."""
    rounds = folder / "rounds.jsonl"
    old = len(rounds.read_text().splitlines()) if rounds.exists() else 0
    process = start(folder)
    assert process.stdout is not None
    for _ in range(1 + old + 1):  # the head of the table, the rows that are there, a new one
        process.stdout.readline()
    time.sleep(wait)
    alive = process.poll() is None
    os.kill(process.pid, signal.SIGKILL) if alive else None
    process.stdout.close()
    if process.wait() > 0:
        sys.exit(f"the run ended by itself, with exit code {process.returncode}")
    return alive


def result(folder: Path) -> tuple[bytes, list[dict[str, object]]]:
    """What must not depend on kills: the model's bytes, and the rows without their seconds."""
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return (folder / "model.safetensors").read_bytes(), [
        {k: v for k, v in row.items() if k != "seconds"} for row in rows
    ]


def main(wanted: int) -> None:
    generator, kills, runs, wrong = rng(1, Purpose.INSTANCES), 0, 0, 0
    with tempfile.TemporaryDirectory() as place:
        whole = Path(place) / "whole"
        start(whole).communicate()
        while kills < wanted:
            folder = Path(place) / "killed"
            while killed(folder, float(generator.uniform(0, 0.4))):
                kills += 1
                print(f"\r{kills} kills, {runs} runs ended, {wrong} of them wrong", end="", flush=True)
            runs += 1
            wrong += result(folder) != result(whole)
            shutil.rmtree(folder)
    print(f"\r{kills} kills, {runs} runs ended, {wrong} of them wrong")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
