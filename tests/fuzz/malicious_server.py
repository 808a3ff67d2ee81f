"""Fuzz real clients with a malicious server: `python tests/fuzz/malicious_server.py CONVERSATIONS [SEED]`.

The server speaks the protocol correctly up to a random point, and then sends anything: see server_lies. The clients are
those of `splitrelay join`, with both engines and in every role: a client of a cut model, of a whole model and of a
peer-to-peer run, an evaluator, and a fed server. Each conversation has one client, over as many connections and
restarts as it makes.

Each conversation is checked in two ways. Every message that the client sends must be allowed (see client_oracle). The
client must end in order: it returns or raises a SplitrelayError, no thread of it ends with an exception, and it ends
soon after the server has gone and `stop` is set. After each piece of the campaign an honest server trains with clients
of the same process, and memory is read: it must not grow from piece to piece.

The exit code is 1 if anything was wrong, and 2 if the arguments cannot be read.
"""

from __future__ import annotations

import json
import resource
import shutil
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any

import grpc
import numpy as np

ROOT = str(Path(__file__).resolve().parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from splitrelay.data import load  # noqa: E402
from splitrelay.deploy.client_options import Wish  # noqa: E402
from splitrelay.deploy.client_program import Joined  # noqa: E402
from splitrelay.deploy.fuzz_target_server import Alarm  # noqa: E402
from splitrelay.deploy.handshake import FIXED, AgreedSpec, terms_of  # noqa: E402
from splitrelay.deploy.visit_limits import derive_allowed_visits  # noqa: E402
from splitrelay.errors import SplitrelayError  # noqa: E402
from splitrelay.network import background_reconnect, client_stream, limits, peer_transfer, tensor_transfer  # noqa: E402
from splitrelay.network import messages as msg  # noqa: E402
from splitrelay.network.codec import encode  # noqa: E402
from splitrelay.network.connection_handler import FED, JUDGE  # noqa: E402
from splitrelay.network.grpc_options import OPTIONS, SERVICE  # noqa: E402
from splitrelay.network.messages import Message  # noqa: E402
from splitrelay.randomness import Purpose, rng  # noqa: E402
from splitrelay.runs.spec import spec_of  # noqa: E402
from splitrelay.security.authority import create_authority  # noqa: E402
from splitrelay.security.identity import load_identity, server_credentials  # noqa: E402
from splitrelay.security.sealing_session import Sealer  # noqa: E402
from tests.fuzz.client_oracle import Connection, Expected, Oracle, get_shape  # noqa: E402
from tests.fuzz.server_lies import LIES, HangUp, fit_digest  # noqa: E402
from tests.support.deployment import Stage, small_spec  # noqa: E402

WORKERS = 8  # conversations at once: most of their time they wait
PIECE = 200  # conversations between two readings of memory
GROWTH = 1.5, 1.15  # times the memory after the first piece, and after half of them, that is not growth
DEADLINE = 30.0  # seconds within which a client ends after the server has gone
LONGEST = 20.0  # seconds of one conversation
SHORT, LONG = 0.1, 3.0  # seconds that the server waits for a message
SMALL = ("M=2", "C=9", "K=2", "R=2", "batch=5", "eta=0.01")
ROLES: dict[str, tuple[str, ...]] = {
    "cut": ("model=lenet-small",),
    "clipped": ("model=mlp", "clip=1", "momentum=0.5"),
    "scaffold": ("model=mlp", "algorithm=scaffold"),
    "whole": ("model=mlp", "algorithm=fedavg", "placement=whole"),
    "peer-to-peer": ("model=mlp", "route=peer-to-peer"),
    "evaluator": ("model=mlp", "route=peer-to-peer"),
    "fed server": ("model=mlp", "algorithm=fedavg"),
}
NUMBERS = {"evaluator": JUDGE, "fed server": FED}
WITH_KEYS = {"peer-to-peer": "client-0", "evaluator": "judge", "fed server": "fed"}
ENGINES = ("fast", "reference")


@contextmanager
def shorten_timeouts() -> Iterator[None]:
    """Make clients try again and give up within seconds, until this is left."""
    short: dict[tuple[Any, str], Any] = {
        (limits, "HEARTBEAT"): 0.5,
        (limits, "SILENCE"): 3.0,
        (limits, "BACKOFF"): (0.005, 0.05),
        (limits, "STEP"): 3.0,
        (limits, "HANDSHAKE"): 3.0,
        (client_stream, "TICK"): 0.1,
        (background_reconnect, "TICK"): 0.02,
        (peer_transfer, "HAND"): 0.3,
    }
    before = {(module, name): getattr(module, name) for module, name in short}
    for (module, name), value in short.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for (module, name), value in before.items():
            setattr(module, name, value)


# Who is attacked


@dataclass(frozen=True)
class Target:
    """One kind of client: its spec, its data, its keys."""

    role: str
    engine: str
    folder: Path
    expected: Expected
    half: bytes  # an honest one
    keys: Path | None

    def make_wish(self, port: int, keys: Path | None) -> Wish:
        """Return what the client is started with."""
        expected, m = self.expected, self.expected.m
        agreed = AgreedSpec(expected.spec)
        if expected.is_pinned:
            agreed = replace(agreed, terms={name: getattr(expected.terms, name) for name in FIXED})
        return Wish(
            f"127.0.0.1:{port}",
            m if m < JUDGE else None,
            None if m >= JUDGE else self.folder / "data.npz",
            keys=keys,
            agreed=agreed,
            test=self.folder / "test.npz" if m == JUDGE else None,
            keep=(keys or self.folder) / "model.safetensors",
            fed=m == FED,
            repeats=expected.repeats,
        )


def make_targets(folder: Path, draw: np.random.Generator) -> list[Target]:
    """Return every role with both engines, with and without pinned terms."""
    authority = create_authority(folder / "authority", "fuzzing")
    authority.issue_server("server", ["127.0.0.1"])
    authority.issue_client("client-0", 0, hosts=["127.0.0.1"])
    authority.issue_client("judge", evaluator=True)
    authority.issue_client("fed", fed=True)
    x = draw.integers(1, 256, (60, 8, 8)).astype(np.uint8)
    np.savez(folder / "own.npz", x=x, y=np.arange(60) % 10)
    np.savez(folder / "data.npz", x=x[:20], y=np.arange(20) % 10)
    np.savez(folder / "test.npz", x=x[20:50], y=np.arange(30) % 10)
    return [
        _make_target(folder, role, engine, is_pinned, draw)
        for role in ROLES
        for engine in ENGINES
        for is_pinned in (False, True)
    ]


def _make_target(folder: Path, role: str, engine: str, is_pinned: bool, draw: np.random.Generator) -> Target:
    spec = spec_of(None, [f"data={folder / 'own.npz'}", *SMALL, *ROLES[role], f"engine={engine}"])
    data, m = load(spec.data.name), NUMBERS.get(role, 0)
    terms = terms_of(spec, data, heartbeat=0.5, sealed=role in WITH_KEYS, judged=role in WITH_KEYS)
    images = load(str(folder / "own.npz")).train.part(np.arange(50))
    keys = folder / WITH_KEYS[role] if role in WITH_KEYS else None
    allowed = derive_allowed_visits(spec, m)
    expected = Expected(m, spec, terms, is_pinned, images, allowed, int(draw.integers(2)))
    shape = get_shape(spec, terms)
    numbers = shape.size if spec.placement == "whole" else shape.boundary
    x = (0.05 * draw.standard_normal(numbers)).astype(np.float32)
    half = tensor_transfer.packed(x=x, shift=0.01 * x) if role == "scaffold" else tensor_transfer.packed(x=x)
    return Target(role, engine, folder, expected, b"" if keys else half, keys)


# The server


class Over(Exception):
    """This stream is over."""


class Line:
    """One stream from a client: what it sends is checked and queued."""

    def __init__(self, oracle: Oracle, requests: Iterator[bytes]) -> None:
        self.oracle, self.requests, self.connection = oracle, requests, Connection()
        self.queue: SimpleQueue[Message | None] = SimpleQueue()
        threading.Thread(target=self._read, name="fuzz line", daemon=True).start()

    def _read(self) -> None:
        with suppress(grpc.RpcError, Exception if sys.is_finalizing() else grpc.RpcError):
            for frame in self.requests:
                message = self.oracle.observe(self.connection, frame)
                if message is not None:
                    self.queue.put(message)
        self.queue.put(None)

    def expect(self, patience: float, *kinds: type[Message]) -> Any:
        """Return the next message of these kinds. Raise Over where none comes, or the client leaves."""
        until = time.monotonic() + patience
        while True:
            try:
                message = self.queue.get(timeout=max(until - time.monotonic(), 0.001))
            except Empty:
                raise Over from None
            if message is None or isinstance(message, msg.Leave):
                raise Over
            if isinstance(message, kinds):
                return message


class Script:
    """A malicious server in one conversation."""

    def __init__(self, target: Target, draw: np.random.Generator, way: Way | None = None) -> None:
        self.target, self.expected, self.draw = target, target.expected, draw
        self.oracle, self.half = Oracle(target.expected), target.half
        self.shape = get_shape(target.expected.spec, target.expected.terms)
        self.terms = target.expected.terms
        self.way: Way = way or WAYS[int(draw.choice(len(WAYS), p=SHARES))]
        self.fence = self.k = self.visit = self.sealed_fence = 0
        self.round = 0
        self.held: msg.Lease | None = None
        self.links, self.most_links = 0, 1 + self.below(8)
        self.frames, self.most_frames = 0, 20 + self.below(400)
        self.lies = Counter[str]()
        self.sent: list[bytes] = []
        self.over = threading.Event()
        self.lock = threading.Lock()

    def below(self, limit: int) -> int:
        """Return a whole number from 0 on."""
        return int(self.draw.integers(limit))

    def pause(self, seconds: float) -> None:
        """Wait, unless the conversation is over."""
        self.over.wait(seconds)

    def serve(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """Talk to the client on one stream."""
        self.links += 1
        if self.over.is_set() or self.links > self.most_links:
            self.over.set()
            context.abort(grpc.StatusCode.UNAVAILABLE, "the server has gone")
        line = Line(self.oracle, requests)
        try:
            for frame in self.way(self, line):
                self.frames += 1
                if self.frames > self.most_frames or self.oracle.wrong or self.over.is_set():
                    self.over.set()
                    break
                self.oracle.observe_offer(line.connection, frame)
                self.sent = [*self.sent[-20:], frame]
                yield frame
        except Over:
            pass
        except HangUp as end:
            if end.is_abort:
                context.abort(grpc.StatusCode.UNAVAILABLE, "the server has gone")
        if self.over.is_set():
            context.abort(grpc.StatusCode.UNAVAILABLE, "the server has gone")

    # What an honest server would send

    def talk(self, line: Line, patience: Callable[[], float]) -> Iterator[Message]:
        """Yield the honest messages of one stream, in order, while the client sends what it should."""
        line.expect(LONG, msg.Hello)
        yield self.terms
        accept = line.expect(LONG, msg.Accept)
        held = self.held
        if held is not None and accept.fence == held.fence:
            yield msg.Resume(held.fence)
            yield from self._steps(line, held, patience)
        else:
            yield msg.Welcome()
        while True:
            if self.expected.m >= JUDGE:
                yield from self._evaluate(line, patience)
            else:
                yield from self._visit(line, patience)

    def _visit(self, line: Line, patience: Callable[[], float]) -> Iterator[Message]:
        lease = self.make_lease()
        self.held, self.k = lease, 0
        yield lease
        yield from tensor_transfer.chunks(lease.fence, self.half)
        line.expect(patience(), msg.Ready)
        yield from self._steps(line, lease, patience)

    def make_lease(self) -> msg.Lease:
        """Return the next visit, as the spec has it."""
        allowed = self.expected.allowed
        step: Any = allowed.step
        self.fence += 1
        return msg.Lease(
            self.fence,
            self.visit + 1,
            self.round % allowed.R,
            0,
            self.expected.m,
            allowed.K,
            eta=step.eta,
            weight_decay=step.weight_decay,
            clip=step.clip or 0.0,
            momentum=step.momentum,
            prox=step.prox,
            per_half=step.per_half,
            bytes=len(self.half),
            sha256=tensor_transfer.sha256(self.half) if self.half else b"",
            sealed_visit=self.visit,
            sealed_fence=self.sealed_fence,
        )

    def _steps(self, line: Line, lease: msg.Lease, patience: Callable[[], float]) -> Iterator[Message]:
        chunks: list[bytes] = []
        while True:
            word = line.expect(patience(), msg.Step, msg.Chunk, msg.Finish, msg.Deposit)
            if isinstance(word, msg.Step):
                self.k = word.k
                norms = (0.5,) * self.shape.norms if self.expected.spec.optimiser.clip else ()
                gradient = (0.01 * self.draw.standard_normal(word.h.shape)).astype(word.h.dtype)
                yield msg.Reply(lease.fence, word.k, gradient, norms, 1.0)
            elif isinstance(word, msg.Chunk):
                chunks.append(word.data)
            elif isinstance(word, msg.Deposit):
                break
        self.held = None
        yield msg.Commit(lease.fence)
        if self.target.keys is not None:
            self.half, self.visit, self.sealed_fence = b"".join(chunks), lease.visit, lease.fence
        self.round += 1

    def _evaluate(self, line: Line, patience: Callable[[], float]) -> Iterator[Message]:
        """Ask the evaluator for a score, or the fed server for an average, of a half that a client has sealed."""
        self.fence += 1
        look = msg.Look(
            self.fence,
            self.round % 3,
            len(self.half),
            tensor_transfer.sha256(self.half) if self.half else b"",
            self.visit,
            self.sealed_fence,
        )
        if self.expected.m == FED:
            recipe = json.dumps({"halves": [[len(self.half), self.visit, self.sealed_fence]], "steps": ["half"]})
            look = replace(look, recipe=recipe, sealed_visit=self.visit + 1, sealed_fence=self.fence)
        yield look
        yield from tensor_transfer.chunks(look.fence, self.half)
        while True:
            word = line.expect(patience(), msg.Predict, msg.Score, msg.Deposit, msg.Fail)
            if isinstance(word, msg.Predict):
                self.k = word.k
                out = self.draw.standard_normal((len(word.h), len(self.expected.terms.classes)))
                yield msg.Output(look.fence, word.k, out.astype(word.h.dtype))
            else:
                break
        if isinstance(word, msg.Deposit):
            yield msg.Commit(look.fence)
        self.round += 1
        self._seal_next()

    def _seal_next(self) -> None:
        """Make the half of another visit, as another client would have sealed it."""
        keys, spec = self.target.folder / "client-0", self.expected.spec
        x = (0.05 * self.draw.standard_normal(self.shape.boundary)).astype(np.float32)
        self.visit, self.sealed_fence = self.visit + 1, self.fence
        sealer = Sealer(keys, spec.identity, 0, chain=spec.route == "peer-to-peer")
        self.half = sealer.seal(tensor_transfer.packed(x=x), visit=self.visit, fence=self.fence)


# Ways to talk


def talk_honestly(script: Script, line: Line) -> Iterator[bytes]:
    """Keep to the protocol, with any gradients."""
    for message in script.talk(line, lambda: LONG):
        yield encode(message)


def talk_astray(script: Script, line: Line) -> Iterator[bytes]:
    """Keep to the protocol up to a point, lie there, and so on."""
    honest = script.below(12)

    def patience() -> float:
        return LONG if honest > 0 and script.below(4) else SHORT

    for message in script.talk(line, patience):
        honest -= 1
        if honest >= 0:
            yield encode(message)
        else:
            honest = script.below(10)
            lie = LIES[script.below(len(LIES))]
            script.lies[lie.__name__] += 1
            yield from lie(script, message)


def talk_at_random(script: Script, line: Line) -> Iterator[bytes]:
    """Send lies in the place of any message, and listen to nothing."""
    for _ in range(1 + script.below(6)):
        messages: tuple[Message, ...] = (script.terms, msg.Welcome(), script.make_lease(), msg.Commit(script.fence))
        if script.below(2):
            yield encode(messages[script.below(len(messages))])
        else:
            lie = LIES[script.below(len(LIES))]
            script.lies[lie.__name__] += 1
            yield from lie(script, messages[script.below(len(messages))])
    script.pause(0.05)


def take_all(script: Script, line: Line) -> Iterator[bytes]:
    """Keep to the form and ask for as many visits as the client makes; commit few of them, and change the terms."""
    script.most_links, script.most_frames = 300, 600 if script.expected.m == FED else 5000
    if script.below(2):
        mean = tuple(number + 1e-3 * script.below(1000) for number in script.expected.terms.mean)
        script.terms = fit_digest(replace(script.expected.terms, mean=mean))
    for message in script.talk(line, lambda: LONG):
        way = script.below(30)
        if isinstance(message, msg.Commit) and way > 8:
            yield encode(msg.Cancel(message.fence, "again"))
        elif isinstance(message, msg.Lease | msg.Reply | msg.Commit) and way == 0:
            raise HangUp(is_abort=False)
        elif isinstance(message, msg.Reply) and way == 1:
            yield encode(msg.Cancel(message.fence, "again"))
        else:
            yield encode(message)
        if isinstance(message, msg.Commit) and way == 2:
            yield encode(msg.Bye("again", again=True))


Way = Callable[[Script, Line], Iterator[bytes]]
WAYS: tuple[Way, ...] = (talk_at_random, talk_astray, take_all, talk_honestly)
SHARES = (0.17, 0.68, 0.1, 0.05)


# Conversations


class Listener:
    """A gRPC server, plain and with TLS, for one conversation after another."""

    def __init__(self, folder: Path) -> None:
        self.script: Script | None = None
        self.threads = ThreadPoolExecutor(32)
        method = grpc.stream_stream_rpc_method_handler(self._join)
        self.server: Any = grpc.server(self.threads, options=OPTIONS)
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Join": method}),))
        credentials = server_credentials(load_identity(folder / "server"))
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
    links: Counter[str] = field(default_factory=Counter)
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
            self.links[role] += script.links
            self.visits[role] += len(script.oracle.visits)
            self.evaluations[role] += script.oracle.evaluations
            self.sent.update(script.oracle.sent)
            self.ends.update(ends)
            self.lies.update(script.lies)


def run_client(script: Script, wish: Wish, wrong: list[str]) -> str:
    """Run one client program until it ends, and return how it ended."""
    found: list[str] = []
    stop = threading.Event()

    def work() -> None:
        try:
            Joined(wish, lambda text: None, stop).run()
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
        script.links, script.frames = 0, 0
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
    stage = Stage(small_spec(folder, "M=2", "C=9", "R=1", "K=1"), folder)
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
        with Alarm() as alarms:
            yield
            wrong.update(alarms)
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
            with shorten_timeouts():
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
        counts = (campaign.conversations[role], campaign.links[role], campaign.visits[role], campaign.evaluations[role])
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
        print("usage: python tests/fuzz/malicious_server.py CONVERSATIONS [SEED]", file=sys.stderr)
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
