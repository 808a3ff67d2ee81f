"""Metrics equal those of scikit-learn and torch, and losses are means over samples."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn
from torch.nn import functional

from splitrelay.data.samples import NO_TOKEN
from splitrelay.errors import InputError, UnknownName, WorkError
from splitrelay.objectives.losses import LOSSES, check_loss, check_target
from splitrelay.objectives.metrics import check_metrics, get_metrics
from splitrelay.randomness import Purpose, rng
from splitrelay.user_functions import load_user_function
from tests.support.error_fields import expect_error

G = rng(9, Purpose.INSTANCES)
N = 200
OUT = {"two": G.normal(size=(N, 2)).astype(np.float32), "four": G.normal(size=(N, 4)).astype(np.float32)}
Y = {"two": G.integers(0, 2, N), "four": G.integers(0, 4, N)}
LABELS = (G.random((N, 4)) < 0.4).astype(np.float32)
REAL = (OUT["four"][:, 0] + 0.1 * G.normal(size=N)).astype(np.float32)


def compute(name: str, target, out: np.ndarray, y: np.ndarray) -> float:
    (metric,) = get_metrics([name], target, out.shape[-1])
    return metric(out, y)


def softmax(out: np.ndarray) -> np.ndarray:
    return torch.softmax(torch.from_numpy(out).double(), 1).numpy()


def test_two_classes() -> None:
    out, y = OUT["two"], Y["two"]
    p = softmax(out)[:, 1]
    assert compute("accuracy", "classes", out, y) == sklearn.accuracy_score(y, out.argmax(1))
    assert compute("auroc", "classes", out, y) == pytest.approx(sklearn.roc_auc_score(y, p), abs=1e-12)
    assert compute("auprc", "classes", out, y) == pytest.approx(sklearn.average_precision_score(y, p), abs=1e-12)
    assert compute("f1", "classes", out, y) == sklearn.f1_score(y, out.argmax(1))


def test_four_classes() -> None:
    out, y = OUT["four"], Y["four"]
    p = softmax(out)
    assert compute("auroc", "classes", out, y) == pytest.approx(sklearn.roc_auc_score(y, p, multi_class="ovr"))
    assert compute("f1", "classes", out, y) == sklearn.f1_score(y, out.argmax(1), average="macro")
    assert compute("top2", "classes", out, y) == sklearn.top_k_accuracy_score(y, p, k=2)


def test_several_labels() -> None:
    out = OUT["four"]
    assert compute("accuracy", "multi-label", out, LABELS) == sklearn.accuracy_score(LABELS, out > 0)
    assert compute("auroc", "multi-label", out, LABELS) == sklearn.roc_auc_score(LABELS, out)
    assert compute("auprc", "multi-label", out, LABELS) == sklearn.average_precision_score(LABELS, out)
    assert compute("f1", "multi-label", out, LABELS) == sklearn.f1_score(LABELS, out > 0, average="macro")


def test_real_numbers() -> None:
    out = OUT["four"][:, :1]
    assert compute("mse", "real", out, REAL) == pytest.approx(sklearn.mean_squared_error(REAL, out), rel=1e-6)
    assert compute("mae", "real", out, REAL) == pytest.approx(sklearn.mean_absolute_error(REAL, out), rel=1e-6)
    assert compute("r2", "real", out, REAL) == pytest.approx(sklearn.r2_score(REAL, out), rel=1e-9)


def test_tokens() -> None:
    out = torch.from_numpy(G.normal(size=(6, 5, 7)).astype(np.float32))
    y = torch.from_numpy(G.integers(0, 7, (6, 5)))
    y[:, 3:] = NO_TOKEN
    loss = functional.cross_entropy(out.flatten(0, 1), y.flatten())
    assert compute("perplexity", "tokens", out.numpy(), y.numpy()) == pytest.approx(math.exp(loss), rel=1e-5)
    right = (out.argmax(-1) == y)[:, :3].float().mean()
    assert compute("accuracy", "tokens", out.numpy(), y.numpy()) == pytest.approx(float(right))
    assert float(LOSSES["token-cross-entropy"](out, y)) == pytest.approx(float(loss), rel=1e-5)


@pytest.mark.parametrize(
    "name, out, y",
    [
        ("squared-error", OUT["four"][:, :1], REAL),
        ("bce", OUT["four"], LABELS),
        ("cross-entropy", OUT["four"], Y["four"]),
        ("token-cross-entropy", G.normal(size=(4, 3, 5)).astype(np.float32), G.integers(0, 5, (4, 3))),
    ],
)
def test_a_loss_is_a_mean_over_samples(name: str, out: np.ndarray, y: np.ndarray) -> None:
    outputs, labels = torch.from_numpy(out), torch.from_numpy(y)
    check_loss(LOSSES[name], outputs, labels)
    each = [float(LOSSES[name](outputs[i : i + 1], labels[i : i + 1])) for i in range(len(labels))]
    assert float(LOSSES[name](outputs, labels)) == pytest.approx(np.mean(each), rel=1e-5)


def test_losses_and_metrics_must_fit_the_targets() -> None:
    with expect_error(InputError, limit="squared-error"):
        check_target("cross-entropy", "real")
    check_target("cross-entropy", "classes")
    with expect_error(InputError, value="target=real"):
        get_metrics(["auroc"], "real")
    with expect_error(InputError):
        get_metrics(["top5"], "classes", 5)
    with expect_error(UnknownName):
        get_metrics(["aurok"], "classes")
    with expect_error(InputError):
        get_metrics(["auroc", "auroc"], "classes")


def test_a_test_set_of_one_class_has_no_auroc() -> None:
    metrics = get_metrics(["auroc"], "classes", 2)
    with expect_error(InputError):
        check_metrics(metrics, OUT["two"], np.zeros(N, np.int64))


def test_a_failing_metric_names_the_line_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_metrics.py").write_text("def cost(out, y):\n    return out.shape[9]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (metric,) = get_metrics(["my_metrics:cost"], "classes")
    with expect_error(WorkError) as caught:
        metric(OUT["two"], Y["two"])
    assert "my_metrics.py, line 2" in caught.value.what
    with expect_error(InputError) as caught:
        check_loss(
            load_user_function("loss", "my_metrics:cost"), torch.from_numpy(OUT["two"]), torch.from_numpy(Y["two"])
        )
    assert "my_metrics.py, line 2" in caught.value.what
