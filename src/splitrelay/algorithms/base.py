"""The outer seam: an algorithm gives visits to clients, and the clients return outcomes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

from splitrelay.errors import OutOfRange
from splitrelay.vectors import Scalar, X

State = TypeVar("State")
LocalSteps = int | Sequence[int] | Mapping[int, int]  # K for all clients, or tau_m for each client
Sizes = Sequence[Scalar] | Mapping[int, Scalar]


OptimiserKind = Literal["sgd", "adam", "adamw", "adagrad"]
MemoryUse = Literal["reset", "handed", "kept"]


@dataclass(frozen=True)
class UpdateRule:
    """The optimiser of the local steps. It acts on each coordinate of x alone, so each half applies its own part.

    The defaults are those of torch.optim.

    Attributes:
        kind: sgd, adam, adamw (weight decay acts on x, not on the gradient) or adagrad.
        nesterov: Nesterov's form of the momentum of sgd.
        beta1: The decay of the mean of the gradients (adam, adamw).
        beta2: The decay of the mean of their squares (adam, adamw).
        epsilon: Added to the denominator (adam, adamw, adagrad).
        memory: What happens to the state of the optimiser (momentum, means) at the end of a visit. reset: the next
            visit starts without it. handed: it goes to the next client together with x. kept: each client keeps its
            own for its next visit.
    """

    kind: OptimiserKind = "sgd"
    nesterov: bool = False
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    memory: MemoryUse = "reset"

    def count_vectors(self, momentum: float) -> int:
        """Return the number of vectors of the size of x in the state of the optimiser."""
        return {"sgd": int(momentum != 0), "adam": 2, "adamw": 2, "adagrad": 1}[self.kind]


@dataclass(frozen=True)
class Memory(Generic[X]):
    """The state of an optimiser between two visits: its vectors, and the number of steps that made them."""

    vectors: tuple[X, ...]
    steps: int


@dataclass(frozen=True)
class Step(Generic[X]):
    """The definition of a local step: x - eta (clipped gradient + weight_decay x + prox (x - start)).

    It contains data only, because it is sent to other hosts.

    Attributes:
        clip: The largest norm of the whole gradient. The norm does not depend on the cut.
        shift: Added to every gradient before all other changes (the control variates of SCAFFOLD).
        per_half: Clip each half by its own norm. This is a different algorithm.
        rule: The optimiser that turns the gradient into a change of x.
        eta_server: The learning rate of the server half, if it is not eta.
    """

    eta: Scalar
    weight_decay: float = 0
    clip: float | None = None
    momentum: float = 0
    prox: float = 0
    shift: X | None = None
    per_half: bool = False
    rule: UpdateRule = UpdateRule()
    eta_server: Scalar | None = None


@dataclass(frozen=True)
class Visit(Generic[X]):
    """The i-th visit of client m in round r: it starts at x and makes K local steps (tau_m in the paper).

    Attributes:
        memory: The state of the optimiser to start from. None starts without one.
    """

    r: int
    i: int
    m: int
    x: X
    step: Step[X]
    K: int
    memory: Memory[X] | None = None


@dataclass(frozen=True)
class Cost:
    """The cost of a visit: bytes sent by the client (up) and to it (down), and the mean loss of its steps."""

    up: int = 0
    down: int = 0
    loss: float = math.nan


@dataclass(frozen=True)
class Done(Generic[X]):
    """The client finished its visit at x. `memory` is the state of its optimiser, unless it is reset."""

    x: X
    cost: Cost = Cost()
    memory: Memory[X] | None = None


@dataclass(frozen=True)
class Skipped:
    """The client did not make its visit. The record contains the reason."""

    why: str


Outcome = Done[X] | Skipped


class Clients(Protocol[X]):
    """Runs visits in this process, in a pool of threads, or on other hosts."""

    def run(self, visit: Visit[X], /) -> Outcome[X]:
        """Run one visit."""
        ...

    def run_all(self, visits: Iterable[Visit[X]], /) -> Iterator[Outcome[X]]:
        """Run many visits, in parallel if possible. Yield the outcomes in the order of the visits."""
        ...


class Cut(Protocol[X]):
    """The position at which x = [client half; server half] is cut. SplitFed treats the halves differently."""

    def halves(self, x: X, /) -> tuple[X, X]:
        """Return (client half, server half)."""
        ...

    def join(self, bottom: X, top: X, /) -> X:
        """Return the whole model."""
        ...


class Algorithm(Protocol[X, State]):
    """Defines a round. The state is a value that can be saved, resumed and compared. For SSL and FedAvg it is x."""

    def init(self, x0: X, /) -> State:
        """Return the state before the first round."""
        ...

    def round(self, r: int, state: State, order: Sequence[int], clients: Clients[X], /) -> State:
        """Return the state after round r, in which the clients in `order` take part."""
        ...

    def model(self, state: State, /) -> X:
        """Return the global model of a state."""
        ...


@dataclass(frozen=True)
class AlgorithmSettings:
    """All values from which algorithms are built. Each algorithm uses those that it needs.

    Attributes:
        M: The number of clients.
        gamma: The size of the global step.
        sizes: The numbers of samples n_m for a weighted average, or None for an unweighted average.
        G: The number of groups.
        prox: The factor of the proximal term (FedProx).
        server_momentum: The momentum of the server (FedAvgM), and beta1 (FedAdam).
        server_beta2: The decay of the mean of squares (FedAdam).
        server_epsilon: The term of the denominator (FedAdam).
    """

    step: Step[Any]
    K: LocalSteps
    M: int
    cut: Cut[Any]
    gamma: Scalar = 1
    sizes: Sizes | None = None
    G: int = 1
    prox: Any = 0.1
    server_momentum: Any = 0.9
    server_beta2: Any = 0.99
    server_epsilon: Any = 1e-3


AlgorithmFactory = Callable[[AlgorithmSettings], Algorithm[Any, Any]]


def enumerate_visits(order: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield (i, m) for each client m of the order, where m occurs for the i-th time (from 0).

    A client that occurs twice draws different batches in its second visit.
    """
    seen: Counter[int] = Counter()
    for m in order:
        yield seen[m], m
        seen[m] += 1


def iterate_groups(order: Sequence[int], G: int) -> Iterator[list[tuple[int, int]]]:
    """Assign the clients of the order to G groups in rotation. Yield the next visit (i, m) of all groups together.

    The j-th client of the order belongs to group j modulo G.
    """
    if not 1 <= G <= len(order):
        raise OutOfRange("number of groups G", limit=f"1 <= G <= {len(order)} clients per round", value=G)
    visits = list(enumerate_visits(order))
    for start in range(0, len(visits), G):
        yield visits[start : start + G]


def tau(K: LocalSteps, m: int) -> int:
    """Return tau_m, the number of local steps of client m."""
    return K if isinstance(K, int) else K[m]


def global_step(gamma: Scalar, x: X, result: X) -> X:
    """Return x + gamma (result - x). For gamma = 1 the result is returned unchanged, to the last bit."""
    is_one = getattr(gamma, "shape", ()) == () and gamma == 1
    return result if is_one else x + gamma * (result - x)
