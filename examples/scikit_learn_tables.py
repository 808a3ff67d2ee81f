"""Compare the estimators with scikit-learn's MLP on three tables: one client with all rows, then three clients.

    python examples/scikit_learn_tables.py [--splits 5] [--quick]

All networks have two hidden layers of 64. Each is trained on three quarters of the rows and scored on the rest
(accuracy, or R2 for diabetes), for several random splits. A difference is paired: both models see the same split. It is
called noise if its 95 % t-interval over the splits contains 0.

With three clients a round has three visits, so the same R means three times as many steps. The rows "R/3" have as
many steps as one client.
"""

import argparse
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import t
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

import splitrelay as sr

HIDDEN = (64, 64)


def divide_by(values: Any) -> Any:
    """Return 0, 1 or 2 for each row: the third of the sorted values that contains it."""
    return np.searchsorted(np.quantile(values, [1 / 3, 2 / 3]), values)


@dataclass(frozen=True)
class Table:
    """A table and how its rows are divided among three heterogeneous clients."""

    name: str
    load: Callable[..., Any]
    groups: Callable[[Any, Any], Any]  # (X, y) -> the client of each row
    description: str
    is_regression: bool = False


TABLES = (
    Table("breast cancer", load_breast_cancer, lambda X, y: divide_by(X[:, 0]), "thirds of the first feature, radius"),
    Table("digits", load_digits, lambda X, y: np.digitize(y, [3, 6]), "digits 0-2, 3-5, 6-9"),
    Table("diabetes", load_diabetes, lambda X, y: divide_by(y), "thirds of the target", is_regression=True),
)
# Each row of the result, and the row with which it is compared
ROWS = {
    "MLP, Adam": None,
    "MLP, Adam, another seed": "MLP, Adam",
    "MLP, SGD": "MLP, Adam",
    "one client": "MLP, Adam",
    "one client ": "MLP, SGD",
    "three alike, SSL": "one client",
    "three alike, SSL, R/3": "one client",
    "three different, SSL": "one client",
    "three different, SSL, R/3": "one client",
    "three different, FedAvg": "one client",
}


def make_adam(table: Table, seed: int, epochs: int) -> Any:
    """Return scikit-learn's MLP with its default optimiser."""
    make = MLPRegressor if table.is_regression else MLPClassifier
    return make_pipeline(StandardScaler(), make(hidden_layer_sizes=HIDDEN, max_iter=epochs, random_state=seed))


def make_sgd(table: Table, seed: int, like: Any, rows: int) -> Any:
    """Return scikit-learn's MLP with the rate, momentum, batch and number of steps of one of our estimators."""
    epochs = max(1, round(like.K * like.R * like.batch / rows))
    make = MLPRegressor if table.is_regression else MLPClassifier
    net = make(
        hidden_layer_sizes=HIDDEN,
        solver="sgd",
        alpha=0,
        batch_size=like.batch,
        learning_rate_init=like.default_eta,
        momentum=like.momentum,
        nesterovs_momentum=False,
        max_iter=epochs,
        n_iter_no_change=epochs,
        random_state=seed,
    )
    scaled = TransformedTargetRegressor(net, transformer=StandardScaler()) if table.is_regression else net
    return make_pipeline(StandardScaler(), scaled)


def score_models(table: Table, seed: int, settings: dict[str, Any], epochs: int) -> dict[str, float]:
    """Return the score of each model on one split."""
    X, y = table.load(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.25, random_state=seed)

    def make(**more: Any) -> Any:
        kind = sr.SplitRegressor if table.is_regression else sr.SplitClassifier
        return kind(hidden=HIDDEN, random_state=seed, **{**settings, **more})

    alike = np.random.RandomState(seed).permutation(len(X)) % 3
    different = table.groups(X, y)
    one = make().fit(X, y)
    third = max(1, one.R // 3)
    models = {
        "MLP, Adam": make_adam(table, seed, epochs).fit(X, y),
        "MLP, Adam, another seed": make_adam(table, seed + 1000, epochs).fit(X, y),
        "MLP, SGD": make_sgd(table, seed, one, len(X)).fit(X, y),
        "one client": one,
        "three alike, SSL": make().fit(X, y, groups=alike),
        "three alike, SSL, R/3": make(R=third).fit(X, y, groups=alike),
        "three different, SSL": make().fit(X, y, groups=different),
        "three different, SSL, R/3": make(R=third).fit(X, y, groups=different),
        "three different, FedAvg": make(algorithm="fedavg").fit(X, y, groups=different),
    }
    return {name: float(model.score(X_test, y_test)) for name, model in models.items()}


def describe_difference(a: Any, b: Any) -> str:
    """Return the mean and the standard deviation of a - b, and whether it is noise."""
    difference = a - b
    mean, deviation = difference.mean(), difference.std(ddof=1)
    limit = t.ppf(0.975, len(a) - 1) * deviation / np.sqrt(len(a))
    return f"{mean:+.3f} ± {deviation:.3f}  {'noise' if abs(mean) <= limit else 'more' if mean > 0 else 'less'}"


def main(splits: int, settings: dict[str, Any], epochs: int) -> None:
    """Print one block of rows per table."""
    for table in TABLES:
        found = [score_models(table, seed, settings, epochs) for seed in range(splits)]
        print(f"{table.name}, {'R2' if table.is_regression else 'accuracy'}; different: {table.description}")
        for name, other in ROWS.items():
            scores = np.array([each[name.strip()] for each in found])
            line = f"  {name:26}{scores.mean():.3f} ± {scores.std(ddof=1):.3f}"
            if other is not None:
                line += f"   to {other:11}{describe_difference(scores, np.array([each[other] for each in found]))}"
            print(line, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=5, help="the number of random splits, at least 2")
    parser.add_argument("--quick", action="store_true", help="one round and few epochs, to see that it runs")
    options = parser.parse_args()
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the number of epochs is chosen above
        if options.quick:
            main(splits=2, settings={"R": 1}, epochs=5)
        else:
            main(options.splits, settings={}, epochs=200)
