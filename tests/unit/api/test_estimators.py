"""The estimators pass scikit-learn's own checks.

scikit-learn itself skips one check, for input of other array libraries, unless SCIPY_ARRAY_API is set.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.model_selection import GridSearchCV, GroupKFold, train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from threadpoolctl import threadpool_limits

import splitrelay as sr

SMALL: dict[str, Any] = {"R": 6, "hidden": (16, 16), "eta": 0.1}


@parametrize_with_checks([sr.SplitClassifier(**SMALL), sr.SplitRegressor(**SMALL)])  # type: ignore[untyped-decorator]
def test_a_check_of_scikit_learn_passes(estimator: Any, check: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checks provoke warnings of scikit-learn
        check(estimator)


def test_groups_are_clients() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    model = sr.SplitClassifier(R=1).fit(X, y, groups=np.arange(len(X)) % 3)
    assert model.run_.spec.partition.M == 3
    with pytest.raises(ValueError, match="groups"):
        sr.SplitClassifier(R=1).fit(X, y, groups=[1, 2])


def test_a_grid_search_selects_the_better_rate() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    groups = np.arange(len(X)) % 4
    search = GridSearchCV(sr.SplitClassifier(R=2), {"eta": [1e-7, 0.05]}, cv=GroupKFold(2))
    search.fit(X, y, groups=groups)
    assert search.best_params_ == {"eta": 0.05}


def test_the_same_seed_gives_the_same_predictions() -> None:
    X, y = load_diabetes(return_X_y=True)
    first, second, other = (sr.SplitRegressor(R=2, random_state=seed).fit(X, y).predict(X) for seed in (1, 1, 2))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("load", "ours", "theirs", "tolerance"),
    [
        (load_digits, sr.SplitClassifier, MLPClassifier, 0.01),
        (load_diabetes, sr.SplitRegressor, MLPRegressor, 0.05),
    ],
    ids=["digits", "diabetes"],
)
def test_the_defaults_reach_scikit_learns_mlp(load: Any, ours: Any, theirs: Any, tolerance: float) -> None:
    """examples/scikit_learn_tables.py compares more splits and more clients."""
    differences = []
    for seed in (3, 4):
        X, X_test, y, y_test = train_test_split(*load(return_X_y=True), test_size=0.25, random_state=seed)
        with threadpool_limits(1), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # 200 epochs are not enough for diabetes
            mlp = theirs(hidden_layer_sizes=(64, 64), random_state=seed)
            expected = make_pipeline(StandardScaler(), mlp).fit(X, y).score(X_test, y_test)
        differences.append(ours(random_state=seed).fit(X, y).score(X_test, y_test) - expected)
    assert np.mean(differences) > -tolerance


def test_settings_may_choose_adam_but_repeat_no_parameter() -> None:
    X = np.sin(np.outer(np.arange(40), [1.0, 2.0]))
    y = (X.sum(axis=1) > 0).astype(int)
    model = sr.SplitClassifier(R=1, settings={"optimiser": "adam"}).fit(X, y)
    assert model.run_.spec.optimiser.kind == "adam"
    with pytest.raises(sr.InputError) as caught:
        sr.SplitClassifier(R=1, settings={"eta": 0.1}).fit(X, y)
    assert caught.value.value == "eta"
