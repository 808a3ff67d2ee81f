"""Estimators for scikit-learn: split training behind `fit`, `predict` and `score`.

`groups` says to which client each row belongs, as in scikit-learn's cross-validation by groups. Without it, all rows
belong to one client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import nn

from splitrelay.api.fit import fit
from splitrelay.data.images import DataSet
from splitrelay.data.samples import SampleSet
from splitrelay.errors import InputError

Array = npt.NDArray[Any]
MakeNet = Callable[[int, int], nn.Module]  # (features, outputs) -> module
HELD_OUT = 1  # rows of the test set of a fit: an estimator is evaluated by its caller


class _SplitEstimator(BaseEstimator):  # type: ignore[misc]
    """The parameters and the training that both estimators share."""

    default_eta: ClassVar[float]

    def __init__(
        self,
        net: MakeNet | nn.Module | None = None,
        *,
        hidden: Sequence[int] = (64, 64),
        cut: str | int | None = None,
        algorithm: Any = "ssl",
        K: int = 10,
        eta: float | None = None,
        R: int = 60,
        batch: int = 32,
        momentum: float = 0.9,
        clip: float | None = 10.0,
        settings: dict[str, Any] | None = None,
        random_state: Any = 0,
    ) -> None:
        self.net = net
        self.hidden = hidden
        self.cut = cut
        self.algorithm = algorithm
        self.K = K
        self.eta = eta
        self.R = R
        self.batch = batch
        self.momentum = momentum
        self.clip = clip
        self.settings = settings
        self.random_state = random_state

    def _train(self, X: Array, y: Array, classes: tuple[str, ...], outputs: int, groups: Any) -> None:
        """Train on all rows. The rows are standardized first, with the moments of all clients together."""
        owners = self._check_groups(groups, len(X))
        self.scaler_ = StandardScaler().fit(X)
        features = np.ascontiguousarray(self.scaler_.transform(X), dtype=np.float32)
        target = "classes" if classes else "real"
        train = SampleSet(features, y, target, classes, outputs, clients=owners)  # type: ignore[arg-type]
        data = DataSet("rows", train, train.part(np.arange(HELD_OUT)))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        own = {name: getattr(self, name) for name in ("cut", "algorithm", "K", "R", "batch", "momentum", "clip")}
        own |= {"eta": self.default_eta if self.eta is None else self.eta}
        own |= {"seed": seed, "every": self.R, "progress": False}
        settings = dict(self.settings or {})
        for name in settings:
            if name in own:
                hint = "Remove it from settings, and set the parameter of the estimator."
                raise InputError("settings contains a parameter of the estimator", value=name, hint=hint)
        if settings.get("optimiser", "sgd") != "sgd":
            del own["momentum"]  # only SGD has it
        self.run_ = fit(self._make_net(X.shape[1], outputs, seed), data, **own, **settings)
        self.model_ = self.run_.model.double()  # in float64 a prediction does not depend on the other rows
        self.n_iter_ = self.R

    def _check_groups(self, groups: Any, n: int) -> npt.NDArray[np.str_]:
        """Return the client of each row as text."""
        if groups is None:
            return np.full(n, "0")
        owners = column_or_1d(groups)
        if len(owners) != n:
            raise ValueError(f"groups has {len(owners)} entries, but X has {n} rows")
        named: npt.NDArray[np.str_] = owners.astype(np.str_)
        return named

    def _make_net(self, features: int, outputs: int, seed: int) -> Callable[[], nn.Module] | nn.Module:
        net = self.net
        if isinstance(net, nn.Module):
            return net
        if net is not None:
            return lambda: net(features, outputs)
        return lambda: make_mlp(features, tuple(self.hidden), outputs)

    def _predict(self, X: Any) -> Array:
        """Return the outputs of the network for checked rows."""
        check_is_fitted(self)
        rows = validate_data(self, X, reset=False, dtype=np.float64)
        with torch.no_grad():
            outputs: Array = self.model_(torch.from_numpy(self.scaler_.transform(rows))).numpy()
        return outputs


class SplitClassifier(ClassifierMixin, _SplitEstimator):  # type: ignore[misc]
    """A classifier whose network is trained by clients and a server, cut in two.

    Args:
        net: A function (features, classes) -> nn.Module, or a module. The default is an MLP.
        hidden: The hidden layers of the default MLP.
        cut: The last layer of the client half. The default is the first possible cut.
        algorithm: The algorithm by name, or an object.
        K: Local steps per visit.
        eta: The learning rate. The default is 0.05 for a classifier and 0.01 for a regressor.
        R: Rounds.
        batch: Rows per step.
        momentum: The momentum within a visit. It has no effect with another optimiser than SGD.
        clip: The largest norm of the gradient, or None.
        settings: Further settings of `sr.fit`, by their names.
        random_state: The seed of the initialization, the order of the clients and the batches.

    Example:
        >>> from sklearn.datasets import load_breast_cancer
        >>> X, y = load_breast_cancer(return_X_y=True)
        >>> hospitals = np.arange(len(X)) % 3
        >>> model = SplitClassifier(R=5).fit(X[:400], y[:400], groups=hospitals[:400])
        >>> bool(model.score(X[400:], y[400:]) > 0.9)
        True
    """

    default_eta: ClassVar[float] = 0.05

    def fit(self, X: Any, y: Any, groups: Any = None) -> SplitClassifier:
        """Train. `groups` names the client of each row."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"the classifier needs at least two classes; the data have one class: {self.classes_[0]}")
        names = tuple(map(str, range(len(self.classes_))))
        self._train(X, labels.astype(np.int64), names, len(names), groups)
        return self

    def decision_function(self, X: Any) -> Array:
        """Return the logits: one column per class, or one value per row with two classes."""
        check_is_fitted(self)
        outputs = self._predict(X)
        return outputs[:, 1] - outputs[:, 0] if len(self.classes_) == 2 else outputs

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class."""
        outputs = self._predict(X)
        shares = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        probabilities: Array = shares / shares.sum(axis=1, keepdims=True)
        return probabilities

    def predict(self, X: Any) -> Array:
        """Return the most probable class of each row."""
        check_is_fitted(self)
        predicted: Array = self.classes_[self._predict(X).argmax(axis=1)]
        return predicted


class SplitRegressor(RegressorMixin, _SplitEstimator):  # type: ignore[misc]
    """A regressor whose network is trained by clients and a server, cut in two.

    The targets are standardized for training, with the moments of all clients together. The arguments are those of
    `SplitClassifier`.

    Example:
        >>> from sklearn.datasets import load_diabetes
        >>> X, y = load_diabetes(return_X_y=True)
        >>> model = SplitRegressor(R=10).fit(X[:350], y[:350], groups=np.arange(350) % 3)
        >>> bool(model.score(X[350:], y[350:]) > 0.3)
        True
    """

    default_eta: ClassVar[float] = 0.01  # with 0.05 it overfits small tables of noisy targets, such as diabetes

    def fit(self, X: Any, y: Any, groups: Any = None) -> SplitRegressor:
        """Train. `groups` names the client of each row."""
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        y = column_or_1d(y, warn=True).astype(np.float64)
        self.mean_, self.scale_ = float(y.mean()), float(y.std()) or 1.0
        self._train(X, ((y - self.mean_) / self.scale_).astype(np.float32), (), 1, groups)
        return self

    def predict(self, X: Any) -> Array:
        """Return the predicted value of each row."""
        outputs = self._predict(X)[:, 0]
        return outputs * self.scale_ + self.mean_


def make_mlp(features: int, hidden: Sequence[int], outputs: int) -> nn.Sequential:
    """Return a multilayer perceptron with ReLU between its layers."""
    if not hidden:
        raise InputError("the default network needs a hidden layer, to be cut", value=hidden, hint="hidden=(64,)")
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(features, width), nn.ReLU()]
        features = width
    return nn.Sequential(*layers, nn.Linear(features, outputs))
