"""Check the losses and scores that clients and the evaluator report, before anything is computed with them.

The numbers go into sums, rows and journals. A loss of 1.7e308 is finite, but the sum of two such losses is not: the
server ended with an OverflowError, and again at every restart. Each number is therefore bounded where it arrives. The
bound is the largest number of float32: an honest run in float32 cannot exceed it.
"""

from __future__ import annotations

import math

import numpy as np

from splitrelay.network.codec import BadMessage
from splitrelay.network.messages import Score

LARGEST_LOSS = float(np.finfo(np.float32).max)


def is_loss(value: float) -> bool:
    """Whether a loss is a number that sums can hold; NaN is not."""
    return abs(value) <= LARGEST_LOSS


def check_loss(value: float) -> None:
    """Raise BadMessage if a client reports a loss that is not a number of this size."""
    if not is_loss(value):
        raise BadMessage("a client reports a loss out of range", value=value, limit=f"at most {LARGEST_LOSS:g}")


def find_score_error(score: Score, classes: int, *, can_be_negative: bool) -> str | None:
    """Return what is wrong with a score, or None.

    Args:
        score: what the evaluator reports. Its accuracy of a class without test images is NaN.
        classes: how many classes the data have.
        can_be_negative: whether the loss is a function of the user, which may be negative.
    """
    if not is_loss(score.loss) or (score.loss < 0 and not can_be_negative):
        return f"the loss of a score is out of range: {score.loss:g}"
    shares = [score.accuracy, *(share for share in score.per_class if not math.isnan(share))]
    if not all(0 <= share <= 1 for share in shares):
        return "an accuracy of a score is out of range: not from 0 to 1"
    if len(score.per_class) not in (0, classes):
        return f"a score has {len(score.per_class)} classes, the data have {classes}"
    return None
