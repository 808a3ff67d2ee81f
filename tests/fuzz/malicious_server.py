"""Fuzz real clients with a malicious server: `python -m tests.fuzz.malicious_server CONVERSATIONS [SEED]`.

The server speaks the protocol correctly up to a random point, and then sends anything: see malicious_script and
server_lies. The clients are those of `splitrelay join`, with both engines and in every role: a client of a cut model,
of a whole model and of a peer-to-peer run, an evaluator, and a fed server. Each conversation has one client, over
as many connections and restarts as it makes.

Each conversation is checked in two ways. Every message that the client sends must be allowed (see client_oracle). The
client must end in order: it returns or raises a SplitrelayError, no thread of it ends with an exception, and it ends
soon after the server has gone and `stop` is set. After each piece of the campaign an honest server trains with clients
of the same process, and memory is read: it must not grow from piece to piece.

The exit code is 1 if anything was wrong, and 2 if the arguments cannot be read.
"""

from __future__ import annotations

import resource
import shutil
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc

from splitrelay.deploy.client_options import ClientOptions
from splitrelay.deploy.client_program import ClientProgram
from splitrelay.errors import SplitrelayError
from splitrelay.network.grpc_channel import SERVICE
from splitrelay.network.server import OPTIONS
from splitrelay.randomness import Purpose, rng
from splitrelay.security.identity import build_server_credentials, load_identity
from tests.fuzz.malicious_script import Script
from tests.fuzz.malicious_targets import Target, make_targets
from tests.fuzz.target_server import ErrorLog
from tests.support.deployment import LocalDeployment, small_spec

WORKERS = 8  # conversations at once: most of their time they wait
PIECE = 200  # conversations between two readings of memory
GROWTH = 1.5, 1.15  # times the memory after the first piece, and after half of them, that is not growth
DEADLINE = 30.0  # seconds within which a client ends after the server has gone
LONGEST = 20.0  # seconds of one conversation


class Listener:
    """A gRPC server, plain and with TLS, for one conversation after another."""

    def __init__(self, folder: Path) -> None:
        self.script: Script | None = None
        self.threads = ThreadPoolExecutor(32)
        method = grpc.stream_stream_rpc_method_handler(self._join)
        self.server: Any = grpc.server(self.threads, options=OPTIONS)
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Join": method}),))
        credentials = build_server_credentials(load_identity(folder / "server"))
        self.ports = {
            False: int(self.server.add_insecure_port("127.0.0.1:0")),
            True: int(self.server.add_secure_port("127.0.0.1:0", credentials)),
        }
        self.server.start()

    def _join(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        assert self.script is not None
        yield from self.script.serve(requests, context)

    def close(self) -> None:
        """End all streams."""
        self.server.stop(0).wait()
        self.threads.shutdown()


@dataclass
class Campaign:
    """What became of some conversations."""

    conversations: Counter[str] = field(default_factory=Counter)  # by role
    connections: Counter[str] = field(default_factory=Counter)
    visits: Counter[str] = field(default_factory=Counter)
    evaluations: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)  # by kind of message
    ends: Counter[str] = field(default_factory=Counter)
    lies: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, role: str, script: Script, ends: list[str]) -> None:
        """Count one conversation."""
        with self.lock:
            self.conversations[role] += 1
            self.connections[role] += script.connection_count
            self.visits[role] += len(script.oracle.visits)
            self.evaluations[role] += script.oracle.evaluations
            self.sent.update(script.oracle.sent)
            self.ends.update(ends)
            self.lies.update(script.lies)


def run_client(script: Script, wish: ClientOptions, wrong: list[str]) -> str:
    """Run one client program until it ends, and return how it ended."""
    found: list[str] = []
    stop = threading.Event()

    def work() -> None:
        try:
            ClientProgram(wish, lambda text: None, stop).run()
            found.append("returned")
        except SplitrelayError as error:
            found.append(type(error).__name__)
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            own = [at for at in traceback.extract_tb(error.__traceback__) if "splitrelay" in at.filename][-1]
            wrong.append(f"{error!r:.150} at {Path(own.filename).name}:{own.lineno}, {Path(where.filename).name}")
            found.append("crash")

    thread = threading.Thread(target=work, name="fuzz client", daemon=True)
    thread.start()
    until = time.monotonic() + LONGEST
    while thread.is_alive() and not script.over.is_set() and time.monotonic() < until:
        thread.join(0.01)
    script.over.set()
    stop.set()
    thread.join(DEADLINE)
    if thread.is_alive():
        frames = sys._current_frames().get(thread.ident or 0)
        at = traceback.extract_stack(frames)[-1] if frames else "nowhere"
        wrong.append(f"a client does not end: {at}")
        return "hang"
    return found[0]


def converse(script: Script, listener: Listener, folder: Path) -> list[str]:
    """Have one conversation, in which a client with keys may be started several times; return how it ended."""
    target, ends, wrong = script.target, list[str](), list[str]()
    listener.script = script
    keys = None if target.keys is None else Path(shutil.copytree(target.keys, folder / "keys"))
    wish = target.make_wish(listener.ports[keys is not None], keys)
    for _ in range(1 if keys is None else 1 + script.below(3)):
        script.over = threading.Event()
        script.connection_count, script.frames = 0, 0
        ends.append(run_client(script, wish, wrong))
    script.oracle.check_pixels()
    script.oracle.wrong += wrong
    return ends


def run_piece(targets: list[Target], listeners: list[Listener], numbers: range, seed: int, campaign: Campaign) -> None:
    """Have these conversations, several at once."""
    left, lock = iter(numbers), threading.Lock()

    def work(listener: Listener) -> None:
        while True:
            with lock:
                number = next(left, None)
            if number is None:
                return
            target = targets[number % len(targets)]
            script = Script(target, rng(seed, Purpose.INSTANCES, 3, number))
            with TemporaryDirectory() as folder:
                ends = converse(script, listener, Path(folder))
            campaign.add(f"{target.role}, {target.engine}", script, ends)
            for what in set(script.oracle.wrong):
                with campaign.lock:
                    campaign.wrong[what] += 1
                print(f"conversation {number} ({target.role}, {target.engine}, {script.way.__name__}): {what}")

    with ThreadPoolExecutor(len(listeners)) as threads:
        list(threads.map(work, listeners))


def train_honestly(folder: Path) -> str | None:
    """Train with an honest server and fresh clients; return what went wrong, or None."""
    stage = LocalDeployment(small_spec(folder, "M=2", "C=9", "R=1", "K=1"), folder)
    for m in (0, 1):
        stage.join(m)
    try:
        stage.play()
    except BaseException as error:
        return f"an honest run failed: {error!r}"
    ends = set(stage.words.values())
    return None if ends == {"all rounds are done"} else f"clients of an honest run ended with {ends}"


@contextmanager
def watch_threads(wrong: Counter[str]) -> Iterator[None]:
    """Count the exceptions that end threads, and what gRPC logs as errors."""
    before = threading.excepthook

    def note(args: Any) -> None:
        at = traceback.extract_tb(args.exc_traceback)
        where = f"{Path(at[-1].filename).name}:{at[-1].lineno}" if at else "nowhere"
        wrong[f"a thread ended with {args.exc_value!r:.150} at {where}"] += 1

    threading.excepthook = note
    try:
        with ErrorLog() as logged:
            yield
            wrong.update(logged)
    finally:
        threading.excepthook = before


def run_campaign(
    conversations: int, seed: int = 0, piece: int = PIECE, workers: int = WORKERS
) -> Iterator[tuple[Campaign, int]]:
    """Yield the campaign so far and the peak memory in kB after each piece."""
    campaign = Campaign()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        stack.enter_context(watch_threads(campaign.wrong))
        targets = make_targets(folder, rng(seed, Purpose.INSTANCES, 2))
        listeners = [Listener(folder) for _ in range(workers)]
        for listener in listeners:
            stack.callback(listener.close)
        for first in range(0, conversations, piece):
            run_piece(targets, listeners, range(first, min(first + piece, conversations)), seed, campaign)
            (folder / f"honest-{first}").mkdir()
            failure = train_honestly(folder / f"honest-{first}")
            if failure is not None:
                campaign.wrong[failure] += 1
            yield campaign, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def find_growth(peaks: list[int]) -> list[str]:
    """Return a line for each comparison in which memory has grown too much."""
    before = (peaks[0], peaks[len(peaks) // 2])
    return [
        f"memory grew from {least} to {peaks[-1]} kB"
        for most, least in zip(GROWTH, before, strict=True)
        if peaks[-1] > most * least
    ]


def print_table(title: str, rows: Counter[str]) -> None:
    """Print counts, the most frequent first."""
    print(f"{title}:" if rows else f"{title}: nothing")
    for what, number in rows.most_common():
        print(f"{number:>9}  {what}")


def print_summary(campaign: Campaign) -> None:
    """Print one table of all roles, and what was wrong."""
    print(f"{'role':<26}{'conversations':>14}{'connections':>13}{'visits':>9}{'evaluations':>13}")
    for role in sorted(campaign.conversations):
        counts = (
            campaign.conversations[role],
            campaign.connections[role],
            campaign.visits[role],
            campaign.evaluations[role],
        )
        print("{:<26}{:>14}{:>13}{:>9}{:>13}".format(role, *counts))
    print_table("how clients ended", campaign.ends)
    print_table("messages of clients", campaign.sent)
    print_table("lies", campaign.lies)
    print_table("wrong", campaign.wrong)


def main(words: list[str]) -> int:
    """Run a campaign; return the exit code."""
    if words and words[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    if not 1 <= len(words) <= 2 or not all(word.isdecimal() for word in words):
        print("usage: python -m tests.fuzz.malicious_server CONVERSATIONS [SEED]", file=sys.stderr)
        return 2
    conversations, seed = int(words[0]), int(words[1]) if len(words) > 1 else 0
    began, peaks, campaign = time.monotonic(), list[int](), Campaign()
    for campaign, peak in run_campaign(conversations, seed):
        peaks.append(peak)
        done = sum(campaign.conversations.values())
        took, wrong = time.monotonic() - began, sum(campaign.wrong.values())
        print(f"{done} conversations, {took:.0f} s, {peak} kB, {wrong} wrong", flush=True)
    if peaks:
        campaign.wrong.update(find_growth(peaks))
    print_summary(campaign)
    return int(bool(campaign.wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
