"""Metrics by name, computed over the whole test set. A user can give `module:function` with arguments (outputs, y).

A metric gets the outputs of the model for all samples, and the targets:

    classes      outputs (N, classes), y int64 (N,)         accuracy, top5 (any k), auroc, auprc, f1
    multi-label  outputs (N, labels), y 0 or 1 (N, labels)   accuracy, auroc, auprc, f1
    real         outputs (N, k), y (N, k)                    mse, mae, r2
    tokens       outputs (N, T, vocabulary), y int64 (N, T)  accuracy, perplexity

With two classes, auroc, auprc and f1 refer to the second one, as in scikit-learn. With more classes or with several
labels they are means over classes (macro, one against the rest). Accuracy with several labels is the share of samples
whose labels are all right. For tokens, positions with the label -100 do not count.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from splitrelay.data.optional_imports import import_optional
from splitrelay.data.samples import NO_TOKEN, Target
from splitrelay.errors import InputError, UnknownName, WorkError, find_user_code
from splitrelay.user_functions import get_function_name, get_short_name, load_user_function

Array = npt.NDArray[Any]
Compute = Callable[[Array, Array], float]
TOP = re.compile(r"top([1-9][0-9]*)")
ALL_CLASSES = ("accuracy", "auroc", "auprc", "f1")
METRICS: dict[Target, tuple[str, ...]] = {
    "classes": (*ALL_CLASSES, "top5"),
    "multi-label": ALL_CLASSES,
    "real": ("mse", "mae", "r2"),
    "tokens": ("accuracy", "perplexity"),
}


@dataclass(frozen=True)
class Metric:
    """A metric.

    Attributes:
        name: The name as the user wrote it.
        column: The name of its column in rows, without the prefix test_.
        compute: Returns the value from all outputs and all targets.
    """

    name: str
    column: str
    compute: Compute

    def __call__(self, outputs: Array, y: Array) -> float:
        """Return the value.

        Raises:
            WorkError: The metric fails. The error names the line in the file of the user.
        """
        try:
            return float(self.compute(outputs, y))
        except Exception as error:  # code of the user may raise anything
            place = find_user_code(error)
            where = f": error in your code, {place}" if place else ""
            value = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            raise WorkError(f"metric {get_short_name(self.name)} failed{where}", value=value) from error


def get_metric_column(name: str) -> str:
    """Return the name of a metric's column in rows, without the prefix test_: the function, if it is the user's."""
    return get_function_name(name).replace(".", "_") if ":" in name else name


def get_metrics(names: Sequence[str], target: Target, outputs: int = 0) -> tuple[Metric, ...]:
    """Return the metrics with these names for a kind of targets.

    Args:
        names: Names of built-in metrics, or `module:function`.
        target: The kind of the targets.
        outputs: The number of outputs of the model; it limits k of top-k.

    Raises:
        InputError: A name is unknown, does not fit the targets, or two metrics have one column.
    """
    metrics = tuple(_get_metric(name, target, outputs) for name in names)
    columns = [metric.column for metric in metrics]
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if twice:
        raise InputError("two metrics have the same name", value=", ".join(twice))
    return metrics


def check_metrics(metrics: Sequence[Metric], outputs: Array, y: Array) -> None:
    """Compute every metric once, so that an error comes before the first round.

    Raises:
        InputError: A metric fails on these outputs, or returns no number.
    """
    for metric in metrics:
        try:
            metric(outputs, y)
        except WorkError as error:
            raise InputError(error.what, value=error.value, hint=_explain(metric, y)) from None


def _explain(metric: Metric, y: Array) -> str | None:
    if metric.column in ("auroc", "auprc") and ":" not in metric.name:
        return "The test set must have samples of every class."
    if ":" in metric.name:
        return "A metric gets (outputs, y) of the whole test set as arrays and returns one number."
    return None


def _get_metric(name: str, target: Target, outputs: int) -> Metric:
    if ":" in name:
        compute: Compute = load_user_function("metric", name)
        if not callable(compute):
            raise InputError(f"metric {get_short_name(name)} is no function", value=type(compute).__name__)
        return Metric(name, get_metric_column(name), compute)
    top = TOP.fullmatch(name)
    if top and target == "classes":
        k = int(top[1])
        if outputs and k >= outputs:
            raise InputError(f"metric {name} is always 1", value=f"{outputs} classes", limit=f"more than {k} classes")
        return Metric(name, name, lambda out, y: compute_top(out, y, k))
    if name not in METRICS[target]:
        known = sorted({known for names in METRICS.values() for known in names})
        if name in known or top:
            limit = ", ".join(METRICS[target])
            raise InputError(f"metric {name} does not fit the targets", value=f"target={target}", limit=limit)
        raise UnknownName("metric", name, known)
    return Metric(name, name, BUILTIN[target, name])


def compute_top(outputs: Array, y: Array, k: int) -> float:
    """Return the share of samples whose class is among the k largest outputs."""
    return float((np.argsort(-outputs, axis=1, kind="stable")[:, :k] == y[:, None]).any(axis=1).mean())


def softmax(outputs: Array) -> Array:
    """Return the probabilities of the classes in float64."""
    shifted = outputs.astype(np.float64) - outputs.max(axis=-1, keepdims=True)
    powers = np.exp(shifted)
    shares: Array = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def _import_sklearn() -> Any:
    return import_optional("sklearn.metrics", "this metric")


def _rank_classes(score: str, outputs: Array, y: Array) -> float:
    """Return a score of scikit-learn for the second class of two, or the mean over all classes."""
    classes = outputs.shape[1]
    if classes == 2:
        return _rank_labels(score, outputs[:, 1].astype(np.float64) - outputs[:, 0], y)
    return _rank_labels(score, softmax(outputs), np.eye(classes, dtype=np.int64)[y])


def _rank_labels(score: str, outputs: Array, y: Array) -> float:
    """Return a score of scikit-learn for one label, or the mean over several."""
    for column in y.reshape(len(y), -1).T:
        if len(np.unique(column)) < 2:
            raise ValueError("only one class is present in the test set")
    return float(getattr(_import_sklearn(), score)(y, outputs, average="macro"))


def _compute_f1(outputs: Array, y: Array) -> float:
    average = "binary" if outputs.shape[1] == 2 else "macro"
    labels = None if average == "binary" else list(range(outputs.shape[1]))
    score = _import_sklearn().f1_score(y, outputs.argmax(1), average=average, labels=labels, zero_division=0)
    return float(score)


def _compute_f1_of_labels(outputs: Array, y: Array) -> float:
    return float(_import_sklearn().f1_score(y.astype(int), (outputs > 0).astype(int), average="macro", zero_division=0))


def _compute_r2(outputs: Array, y: Array) -> float:
    if len(y) < 2:
        raise ValueError("r2 needs two samples")
    return float(_import_sklearn().r2_score(y, outputs.reshape(y.shape)))


def compute_token_losses(outputs: Array, y: Array) -> Array:
    """Return -log of the probability of each token that counts, in float64."""
    counted = y != NO_TOKEN
    rows = outputs[counted].astype(np.float64)
    top = rows.max(axis=1, keepdims=True)
    losses: Array = np.log(np.exp(rows - top).sum(axis=1)) + top[:, 0] - rows[np.arange(len(rows)), y[counted]]
    return losses


def _compute_perplexity(outputs: Array, y: Array) -> float:
    losses = compute_token_losses(outputs, y)
    mean = math.fsum(losses.tolist()) / max(len(losses), 1)
    return math.exp(mean) if mean < 700 else math.inf


BUILTIN: dict[tuple[Target, str], Compute] = {
    ("classes", "accuracy"): lambda out, y: float((out.argmax(1) == y).mean()),
    ("classes", "top5"): lambda out, y: compute_top(out, y, 5),
    ("classes", "auroc"): partial(_rank_classes, "roc_auc_score"),
    ("classes", "auprc"): partial(_rank_classes, "average_precision_score"),
    ("classes", "f1"): _compute_f1,
    ("multi-label", "accuracy"): lambda out, y: float(((out > 0) == (y > 0)).all(axis=1).mean()),
    ("multi-label", "auroc"): partial(_rank_labels, "roc_auc_score"),
    ("multi-label", "auprc"): partial(_rank_labels, "average_precision_score"),
    ("multi-label", "f1"): _compute_f1_of_labels,
    ("real", "mse"): lambda out, y: float(np.square(out.reshape(y.shape).astype(np.float64) - y).mean()),
    ("real", "mae"): lambda out, y: float(np.abs(out.reshape(y.shape).astype(np.float64) - y).mean()),
    ("real", "r2"): _compute_r2,
    ("tokens", "accuracy"): lambda out, y: float((out.argmax(-1) == y)[y != NO_TOKEN].mean()),
    ("tokens", "perplexity"): _compute_perplexity,
}
