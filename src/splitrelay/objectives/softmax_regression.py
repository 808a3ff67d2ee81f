"""Softmax regression with an l2 term: a convex problem on real data with known constants of the theorems.

F_m(x) = mean over client m's samples (a, y) of -log softmax(a'x)_y, plus (mu/2) ||x||^2; F is the plain mean of the
F_m, as in the paper, however many samples each client holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from splitrelay.errors import InputError, OutOfRange
from splitrelay.objectives.batches import Batches

Array = npt.NDArray[np.float64]
Positions = npt.NDArray[np.int64]

BIAS = 0.1  # about the size of a pixel in a row of length 1


@dataclass(frozen=True, eq=False)
class Softmax:
    """M clients; `features` holds one sample a row, `holdings[m]` the rows of client m, `batch` the rows of a step.

    x has shape (d, classes), or (d, classes, ...) with many settings side by side. Batches are drawn with
    replacement, as the theory has it; with batch = None every step sees all samples and nothing is random.
    """

    features: Array
    labels: Positions
    holdings: Sequence[Positions]
    mu: float
    classes: int
    batch: int | None = 20

    def __post_init__(self) -> None:
        if self.features.ndim != 2 or self.labels.shape != self.features.shape[:1]:
            shapes = f"features {self.features.shape}, labels {self.labels.shape}"
            raise InputError("softmax regression needs features of shape (N, d) and N labels", value=shapes)
        if not 0 < self.mu < np.inf:
            raise OutOfRange("the l2 term of softmax regression", limit="mu > 0", value=self.mu)
        if not self.holdings:
            raise InputError("softmax regression needs at least one client")
        for m, held in enumerate(self.holdings):
            if len(held) == 0:
                hint = "Take another seed, fewer clients or a larger alpha."
                raise InputError(f"F_m is a mean over samples, and client {m} has none", hint=hint)

    @property
    def M(self) -> int:
        """The number of clients."""
        return len(self.holdings)

    @property
    def d(self) -> int:
        """The length of a sample, including the constant entry if there is one."""
        return int(self.features.shape[1])

    @property
    def x0(self) -> Array:
        """The start: zero, so that all classes have the same probability."""
        return np.zeros((self.d, self.classes))

    # What a client can do

    def draw(self, m: int, K: int, generator: Callable[[], np.random.Generator], /) -> Sequence[Positions | None]:
        """Draw the rows of K batches. If all samples are used, return K times None and create no generator."""
        if self.batch is None:
            return [None] * K
        held = self.holdings[m]
        return [held[at] for at in Batches(self.batch, "replacement").positions(len(held), K, generator())]

    def gradient(self, m: int, x: Array, xi: Positions | None = None, /) -> Array:
        """Return the gradient of the mean loss over the rows xi with the l2 term, or the gradient of F_m without xi."""
        rows = self.holdings[m] if xi is None else xi
        a = self.features[rows]
        apart = self._compute_errors(a, self.labels[rows], x).reshape(len(a), -1)
        return np.asarray((a.T @ apart).reshape(x.shape) / len(a) + self.mu * x)

    # What only we can do

    def F(self, x: Array) -> Array:
        """Return the mean of the objectives of all clients at x, one number per setting."""
        return np.asarray(
            np.tensordot(self.shares, self._compute_losses(self.features, self.labels, x), axes=1)
            + self._compute_penalty(x)
        )

    def F_m(self, m: int, x: Array) -> Array:
        """Return the objective of client m at x."""
        held = self.holdings[m]
        return np.asarray(
            self._compute_losses(self.features[held], self.labels[held], x).mean(axis=0) + self._compute_penalty(x)
        )

    def full_gradient(self, x: Array) -> Array:
        """Return the gradient of F at x."""
        apart = self.shares.reshape(-1, *[1] * (x.ndim - 1)) * self._compute_errors(self.features, self.labels, x)
        return np.asarray((self.features.T @ apart.reshape(len(apart), -1)).reshape(x.shape) + self.mu * x)

    def curvature(self, x: Array) -> Callable[[Array], Array]:
        """Return the function that multiplies a vector with the Hessian of F at x (for one setting)."""
        p = _apply_softmax(self.features @ x)

        def product(v: Array) -> Array:
            tilted = p * (self.features @ v)
            tilted -= p * tilted.sum(axis=1, keepdims=True)
            return np.asarray(self.features.T @ (self.shares[:, np.newaxis] * tilted) + self.mu * v)

        return product

    @cached_property
    def shares(self) -> Array:
        """The weight of each sample in F: 1/(M n_m) for a sample of client m with n_m samples, 0 for other samples."""
        shares = np.zeros(len(self.features))
        for held in self.holdings:
            np.add.at(shares, held, 1 / (self.M * len(held)))
        return shares

    @cached_property
    def L(self) -> float:
        """The smoothness of all F_m: max_m (1/2) lambda_max(A_m'A_m / n_m) + mu.

        The Hessian of one sample is (diag p - pp') x aa', and no diag p - pp' has an eigenvalue above 1/2.
        """
        grams = (self.features[held].T @ self.features[held] / len(held) for held in self.holdings)
        return max(float(np.linalg.eigvalsh(gram)[-1]) for gram in grams) / 2 + self.mu

    def gradients(self, x: Array) -> Array:
        """Return grad F_m(x) of every client, (M, d, classes)."""
        return np.stack([self.gradient(m, x) for m in range(self.M)])

    def zeta2(self, x: Array) -> float:
        """Return the mean over clients of ||grad F_m(x)||^2. It is zeta_*^2 at x*."""
        return float((self.gradients(x) ** 2).sum(axis=(1, 2)).mean())

    def noise(self, x: Array) -> Array:
        """Return E||g_m - grad F_m(x)||^2 of every client, exactly: the variance of one sample over the batch."""
        if self.batch is None:
            return np.zeros(self.M)
        found = []
        for held in self.holdings:
            a = self.features[held]
            apart = self._compute_errors(a, self.labels[held], x)
            each = self.squares[held] @ (apart**2).sum(axis=1) / len(held)
            found.append(each - ((a.T @ apart / len(held)) ** 2).sum())
        return np.maximum(found, 0) / self.batch

    @property
    def sigma2_everywhere(self) -> float:
        """A bound on the variance of all clients at all x: a sample's gradient is a (p - y)' and ||p - y||^2 <= 2."""
        if self.batch is None:
            return 0.0
        return 2 * max(float(self.squares[held].mean()) for held in self.holdings) / self.batch

    @cached_property
    def squares(self) -> Array:
        """||a||^2 of each sample."""
        return np.asarray((self.features**2).sum(axis=1))

    def _compute_errors(self, a: Array, y: Positions, x: Array) -> Array:
        """Return softmax(a'x) - y of every row."""
        p = _apply_softmax(self._compute_scores(a, x))
        p[np.arange(len(p)), y] -= 1
        return p

    def _compute_losses(self, a: Array, y: Positions, x: Array) -> Array:
        z = self._compute_scores(a, x)
        z -= z.max(axis=1, keepdims=True)
        true = z[np.arange(len(z)), y]
        return np.asarray(np.log(np.exp(z, out=z).sum(axis=1)) - true)

    def _compute_scores(self, a: Array, x: Array) -> Array:
        return np.asarray((a @ x.reshape(self.d, -1)).reshape(len(a), *x.shape[1:]))

    def _compute_penalty(self, x: Array) -> Array:
        return np.asarray(self.mu / 2 * (x**2).sum(axis=(0, 1)))


def _apply_softmax(z: Array) -> Array:
    """Apply the softmax over the classes in place."""
    z -= z.max(axis=1, keepdims=True)
    np.exp(z, out=z)
    z /= z.sum(axis=1, keepdims=True)
    return z


def feature_rows(images: npt.NDArray[np.uint8], middle: npt.NDArray[np.float64]) -> Array:
    """Return one row per image: minus the mean image, scaled to length 1, with the constant BIAS at the end.

    Both keep L small beside mu: what all images share would make it larger and tell no class from another.
    """
    flat = images.reshape(len(images), -1) - middle
    length = np.sqrt((flat**2).sum(axis=1, keepdims=True))
    return np.hstack([flat / np.where(length > 0, length, 1), np.full((len(flat), 1), BIAS)])


def mean_image(images: npt.NDArray[np.uint8]) -> Array:
    """Return the mean of all images."""
    return np.asarray(images.reshape(len(images), -1).mean(axis=0))
