"""Print the files of src/ that one deployed step crosses: `python tests/trace_step.py [ENGINE] [--calls]`.

The script runs a server program and a client program with real connections in this process, and records every function
of splitrelay that is called. A step begins when `train_client_half` calls `forward`, and ends when it does so again.
The numbers are a report. No test enforces them.

How it counts:

- A file counts if it is crossed in at least half of the steps. Checks that happen once a second are listed apart.
- Work that the server does after its reply belongs to the step in which it happens.
- Only functions count. Reading a constant or creating a dataclass does not cross the file that defines it.
- Files of `engine`, `kernels`, `models`, `objectives` and `data` compute the step. A simulation crosses them, too.
- A step is answered in the loop (`immediate`) if the server's computation is short, and by way of the queue of events
  (`queued`) otherwise. The script forces each of the two.

With --calls, the functions are printed in the order of their first call.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = f"{ROOT / 'src' / 'splitrelay'}/"
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from splitrelay.deploy.remote_clients import RemoteClients  # noqa: E402
from tests.support.deployment import LocalDeployment, small_spec  # noqa: E402

COMPUTING = ("engine/", "kernels/", "models/", "objectives/", "data/", "randomness.py", "vectors.py")
WARM_UP, STEPS = 3, 24  # steps that are not traced at the start of a visit, and all steps of a visit


@dataclass
class Trace:
    """The calls of each step, by program."""

    steps: list[list[tuple[str, str, str]]] = field(default_factory=list)  # (program, file, function)
    is_recording: bool = False

    def handle_event(self, frame: FrameType, event: str, _: Any) -> None:
        """Record a call; for threading.setprofile."""
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(SOURCE):
            return
        caller, program = frame.f_back, get_program()
        called_by_loop = caller is not None and caller.f_code.co_name == "train_client_half"
        if code.co_name == "forward" and called_by_loop and program == "client":  # the server probes its model alone
            assert caller is not None
            self.is_recording = WARM_UP <= caller.f_locals["k"] < STEPS - 1
            if self.is_recording:
                self.steps.append([("client", "engine/base.py", "train_client_half")])
        if self.is_recording:
            self.steps[-1].append((program, code.co_filename.removeprefix(SOURCE), get_name(code)))


def get_program() -> str:
    """Return the program to which this thread belongs."""
    return "server" if threading.current_thread().name in ("training", "wire") else "client"


def get_name(code: CodeType) -> str:
    """Return the name of a function with its class."""
    return getattr(code, "co_qualname", code.co_name)


def trace_steps(engine: str, *, immediate: bool, folder: Path) -> Trace:
    """Run one visit and return its calls."""
    trace = Trace()
    spec = small_spec(folder, f"engine={engine}", "M=1", "C=10", "R=1", f"K={STEPS}")
    deployment = LocalDeployment(spec, folder)
    RemoteClients.is_brief = property(lambda self: immediate, lambda self, value: None)  # type: ignore[assignment]
    threading.setprofile(trace.handle_event)
    server = threading.Thread(target=deployment.play, name="training")
    server.start()
    deployment.join(0)
    server.join()
    threading.setprofile(None)
    del RemoteClients.is_brief
    return trace


def find_path(trace: Trace) -> tuple[list[str], list[str]]:
    """Return the files that most steps cross, in the order of their first call, and the other ones."""
    seen = Counter(file for step in trace.steps for file in {file for _, file, _ in step})
    order = dict.fromkeys(file for step in trace.steps for _, file, _ in step)
    usual = [file for file in order if 2 * seen[file] >= len(trace.steps)]
    return usual, [file for file in order if file not in usual]


def print_path(trace: Trace, title: str, *, calls: bool) -> None:
    """Print the files of a step, and how many functions each program calls in them."""
    usual, rare = find_path(trace)
    transport = [file for file in usual if not file.startswith(COMPUTING)]
    count = sum(len(step) for step in trace.steps) / len(trace.steps)
    print(f"{title}: {len(usual)} files, {len(transport)} of them without the computation; {count:.0f} calls")
    for file in usual:
        programs = sorted({program for step in trace.steps for program, name, _ in step if name == file})
        print(f"  {file:32} {' and '.join(programs)}")
    if rare:
        print(f"  in fewer than half of the steps: {', '.join(rare)}")
    if calls:
        for program, file, name in dict.fromkeys(trace.steps[len(trace.steps) // 2]):
            print(f"    {program:7} {file:32} {name}")


def main() -> None:
    """Trace the engines that are named, both ways of answering."""
    parser = argparse.ArgumentParser(description="Print the files that one deployed step crosses.")
    parser.add_argument("engines", nargs="*", default=["fast", "reference"])
    parser.add_argument("--calls", action="store_true", help="print the functions of one step, too")
    arguments = parser.parse_args()
    for engine in arguments.engines:
        for immediate in (True, False):
            with tempfile.TemporaryDirectory() as folder:
                trace = trace_steps(engine, immediate=immediate, folder=Path(folder))
            print_path(trace, f"{engine}, {'immediate' if immediate else 'queued'}", calls=arguments.calls)


if __name__ == "__main__":
    main()
