"""Check every message that a client sends to a server which may be malicious.

The rules come from the client's own copy of the spec and from the client's own data, never from the server:

1. Before the server has offered terms with exactly this spec, the client sends only hello, heartbeats and leave.
2. Smashed data have the shape and dtype of the spec and at most one batch of samples. A visit has at most K steps,
   and a step that is sent again has the same bytes. Labels are numbers of classes.
3. Visits and evaluations are limited over all connections and restarts of the client.
4. A deposit is exactly one half, and in a peer-to-peer run it is sealed.
5. No piece of an image is in the bytes that were sent (see check_pixels).
"""

from __future__ import annotations

import tomllib
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import lru_cache
from threading import Lock

import numpy as np

from splitrelay.data.images import ImageSet
from splitrelay.deploy.backend import Shape
from splitrelay.deploy.backend_fast import derive_plan, derive_shape
from splitrelay.deploy.handshake import compute_digest
from splitrelay.deploy.lease_limits import SPARE, AllowedVisits
from splitrelay.errors import SplitrelayError
from splitrelay.kernels.evaluator import SLICE
from splitrelay.network import messages as msg
from splitrelay.network import tensor_transfer
from splitrelay.network.codec import BadMessage, decode, encode
from splitrelay.network.messages import Message, Terms
from splitrelay.network.server_connection import EVALUATOR_NUMBER, FED_SERVER_NUMBER
from splitrelay.runs.spec import Spec
from splitrelay.security import encryption
from splitrelay.security.sealing_session import COUNT, ENTRY
from tests.support.small_datasets import cut_into_pieces

ALWAYS = ("hello", "heartbeat", "leave")
PIECE = 8  # bytes that are compared at once
Form = tuple[tuple[float, ...], tuple[float, ...], int]  # mean, std and peak
LEVELS = 100  # different inputs that make pieces of images recognisable
FIRST_PIXELS = 200_000  # bytes of a conversation that are searched for pixels


def get_builtin_shape(spec: Spec, terms: Terms) -> Shape:
    """Return the sizes of the messages of a built-in model."""
    plan, cut = derive_plan(spec, (terms.shape[0], terms.shape[1], terms.shape[2]), len(terms.classes))
    return derive_shape(plan, cut)


@dataclass(frozen=True)
class Expected:
    """What one client may send: all from its own spec and data."""

    m: int
    spec: Spec
    terms: Terms  # the true ones
    is_pinned: bool  # the client has agreed to all of the terms, not only to the spec
    images: ImageSet
    allowed: AllowedVisits
    repeats: int

    def get_limit(self, planned: int) -> int:
        """Return how many visits or evaluations the client may begin."""
        return (1 + self.repeats) * planned + SPARE


@dataclass
class SentVisit:
    """The steps of one visit: the bytes of each."""

    fence: int
    steps: dict[int, bytes] = field(default_factory=dict)


@dataclass
class Connection:
    """One stream of a client, as the oracle sees it."""

    terms: Terms | None = None  # the last ones offered here that have exactly the client's spec
    visit: SentVisit | None = None
    evaluations: set[int] = field(default_factory=set)  # fences
    chunks: list[bytes] = field(default_factory=list)


@lru_cache(1000)
def read_spec(text: str) -> Spec | None:
    """Return the spec in a text, or None."""
    if text.count(".") > 1000:  # a dotted key takes memory that grows with the square of its length
        return None
    try:
        return Spec.model_validate(tomllib.loads(text))
    except (ValueError, RecursionError, SplitrelayError):
        return None


@lru_cache(1000)
def get_shape(spec: Spec, terms: Terms) -> Shape:
    """Return the sizes of the messages of a spec, for images as these terms have them."""
    return get_builtin_shape(spec, terms)


class Oracle:
    """Check one conversation: all connections of one client, restarts included."""

    def __init__(self, expected: Expected) -> None:
        self.expected = expected
        self.visits: list[SentVisit] = []
        self.evaluations = 0
        self.sent = Counter[str]()
        self.wrong: list[str] = []
        self.bytes = bytearray()
        self.forms: set[Form] = set()  # of the terms that were offered
        self.lock = Lock()

    def observe_offer(self, connection: Connection, frame: bytes) -> None:
        """Note what the server sends, if it is the offer of the client's own spec."""
        try:
            message = decode(frame)
        except BadMessage:
            return
        if not isinstance(message, Terms):
            return
        mine, spec = self.expected, read_spec(message.spec)
        fits = spec is not None and spec == mine.spec and compute_digest(message, spec) == message.spec_hash
        if fits and (not mine.is_pinned or message.spec_hash == mine.terms.spec_hash):
            connection.terms = message
            if len(message.mean) == len(message.std) == message.shape[0]:
                self.forms.add((message.mean, message.std, message.peak))

    def observe(self, connection: Connection, frame: bytes) -> Message | None:
        """Check one frame of the client and return its message."""
        with self.lock:
            try:
                message = decode(frame)
            except BadMessage as error:
                self.wrong.append(f"the client sent a frame that cannot be read: {error.what}")
                return None
            self.sent[message.event] += 1
            if len(self.bytes) < FIRST_PIXELS:
                self.bytes += frame
            self._check(connection, message)
            return message

    def _check(self, connection: Connection, message: Message) -> None:
        terms = connection.terms
        if message.event in ALWAYS:
            return
        if terms is None:
            self.wrong.append(f"{message.event} before terms with the client's spec were offered")
            return
        if isinstance(message, msg.Accept):
            found = [visit for visit in self.visits if visit.fence == message.fence]
            if found:
                connection.visit = found[-1]
            elif message.fence:  # its ready was lost with the connection
                self._begin_visit(connection, message.fence)
        elif isinstance(message, msg.Ready):
            self._begin_visit(connection, message.fence)
        elif isinstance(message, msg.Step):
            self._check_step(connection, terms, message)
        elif isinstance(message, msg.Predict):
            self._check_predict(connection, terms, message)
        elif isinstance(message, msg.Chunk):
            connection.chunks.append(message.data)
            self._check_role(message, message.k != len(connection.chunks) - 1, "chunks out of order")
        elif isinstance(message, msg.Deposit):
            self._check_deposit(connection, terms, message)
        elif isinstance(message, msg.Finish):
            connection.chunks = []  # a deposit begins, perhaps again

    def _begin_visit(self, connection: Connection, fence: int) -> None:
        connection.visit = SentVisit(fence)
        self.visits.append(connection.visit)
        self._check_count("visits", len(self.visits), self.expected.allowed.visits)

    def _check_role(self, message: Message, is_wrong: bool, what: str) -> None:
        if is_wrong:
            self.wrong.append(f"{what} ({message.event})")

    def _check_count(self, what: str, number: int, planned: int) -> None:
        if number > self.expected.get_limit(planned):
            self.wrong.append(f"more {what} than the client allows")

    def _check_step(self, connection: Connection, terms: Terms, step: msg.Step) -> None:
        expected, shape = self.expected, get_shape(self.expected.spec, terms)
        spec, visit = expected.spec, connection.visit
        batch = len(expected.images) if spec.optimiser.draw == "full" else spec.optimiser.batch
        self._check_role(step, expected.m >= EVALUATOR_NUMBER, "a step of a party that does not train")
        self._check_role(step, spec.placement == "whole", "smashed data of a whole model")
        self._check_role(step, terms.shape != expected.terms.shape, "smashed data of images of another shape")
        self._check_role(step, step.h.shape[1:] != shape.h, f"shape of smashed data {step.h.shape[1:]}")
        self._check_role(step, step.h.dtype.name != spec.model.dtype, "dtype of smashed data")
        self._check_role(step, len(step.h) > batch, "more samples than a batch")
        self._check_role(step, step.labels.min() < 0 or step.labels.max() >= len(terms.classes), "labels")
        self._check_role(step, step.k >= expected.allowed.K, "more than K steps in one visit")
        if visit is None or visit.fence != step.fence:
            self.wrong.append("a step outside a visit")
            return
        before = visit.steps.setdefault(step.k, encode(step))
        self._check_role(step, before != encode(step), "a step that was sent again with other data")

    def _check_predict(self, connection: Connection, terms: Terms, predict: msg.Predict) -> None:
        expected, shape = self.expected, get_shape(self.expected.spec, terms)
        self._check_role(predict, expected.m != EVALUATOR_NUMBER, "test data of a party that does not evaluate")
        self._check_role(predict, predict.h.shape[1:] != shape.h, "shape of smashed data")
        self._check_role(predict, predict.h.dtype.name != expected.spec.model.dtype, "dtype of smashed data")
        self._check_role(predict, len(predict.h) > SLICE, "more samples than a slice")
        if predict.fence not in connection.evaluations:
            connection.evaluations.add(predict.fence)
            self.evaluations += 1
            self._check_count("evaluations", self.evaluations, expected.allowed.evaluations)

    def _check_deposit(self, connection: Connection, terms: Terms, deposit: msg.Deposit) -> None:
        spec, blob = self.expected.spec, b"".join(connection.chunks)
        connection.chunks = []
        shape = get_shape(spec, terms)
        numbers = shape.size if spec.placement == "whole" else shape.boundary
        plain, extra = tensor_transfer.compute_packed_size({"x": numbers}, spec.model.dtype), 0
        is_sealed = spec.route == "peer-to-peer" or self.expected.m == FED_SERVER_NUMBER
        if is_sealed:
            self._check_role(deposit, not blob.startswith(encryption.MAGIC), "a half that is not sealed")
            extra = len(blob) - plain - encryption.OVERHEAD - COUNT.size
            most = 0 if self.expected.m == FED_SERVER_NUMBER else spec.partition.M * ENTRY.size
            self._check_role(deposit, extra % ENTRY.size != 0 or not 0 <= extra <= most, "length of a sealed half")
        else:
            self._check_role(deposit, len(blob) != plain, f"length of a half, {len(blob)} not {plain}")
        fits = deposit.bytes == len(blob) and deposit.sha256 == tensor_transfer.compute_sha256(blob)
        self._check_role(deposit, not fits, "a deposit does not describe its half")

    def check_pixels(self) -> None:
        """Search all bytes that were sent for pieces of the client's images."""
        images = self.expected.images
        for form in [*self.forms][:3] or [(images.mean, images.std, images.peak)]:
            found = find_pieces(images, form, bytes(self.bytes))
            if found:
                self.wrong.append(f"pixels were sent: {found}")


def find_pieces(images: ImageSet, form: Form, sent: bytes) -> list[str]:
    """Return the forms in which a piece of an image is in what was sent; images have this mean, std and peak.

    This is `seen` of test_no_features_sent the other way round: few pieces are sorted, not all that was sent.
    """
    if len(sent) < PIECE:
        return []
    windows = np.ascontiguousarray(np.lib.stride_tricks.sliding_window_view(np.frombuffer(sent, np.uint8), PIECE))
    words = windows.view("<u8").ravel()
    found = []
    for name, known in sort_pieces(images, form).items():
        at = np.minimum(np.searchsorted(known, words), len(known) - 1)
        if bool((known[at] == words).any()):
            found.append(name)
    return found


@lru_cache(100)
def sort_pieces(images: ImageSet, form: Form) -> dict[str, np.ndarray]:
    """Return the pieces of all images in each form, sorted; none where there are so few that chance would find them."""
    mean, std, peak = form
    normalised = replace(images, mean=mean, std=std, peak=peak)
    few = np.unique(normalised.levels).size < LEVELS
    return {
        name: np.unique(found) for name, found in cut_into_pieces(normalised).items() if not (few and "levels" in name)
    }
