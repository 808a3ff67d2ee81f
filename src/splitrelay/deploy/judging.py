"""The evaluator's part, peer to peer: it holds the test set, opens the half, and asks the server for the rest."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from splitrelay.data.images import ImageSet
from splitrelay.deploy.reference import BUILDING, Client, blueprint_of
from splitrelay.deploy.shapes import Outfit, Vector
from splitrelay.deploy.tensors import from_wire, to_wire
from splitrelay.evaluation import SLICE
from splitrelay.models.files import save_weights
from splitrelay.objectives.images import DeviceImages
from splitrelay.wire import limits, messages
from splitrelay.wire.client import Session


class Judge:
    """Scores halves on a test set, with torch whatever the engine: looking changes nothing."""

    def __init__(self, outfit: Outfit, test: ImageSet, keep: Path) -> None:
        self.client = Client(outfit)
        with BUILDING:
            plan = blueprint_of(outfit.spec, test.shape, len(test.classes))
            self.layout = plan.layout(self.client.dtype)
        self.images, self.classes, self.keep = DeviceImages(test, self.client.dtype), len(test.classes), keep

    def written(self, bottom: Vector, top: Vector) -> None:
        """The whole model, which only a client can have."""
        x = torch.cat([torch.from_numpy(bottom.copy()), torch.from_numpy(top.copy())])
        save_weights(self.keep, self.layout, x)

    def score(self, session: Session, fence: int, bottom: Vector) -> messages.Score:
        """Loss and accuracy: the test activations go up, the outputs come back."""
        self.client.bottom.load(torch.from_numpy(bottom.copy()))
        losses, right, seen = [], torch.zeros(self.classes), torch.zeros(self.classes)
        for k, (features, labels) in enumerate(self.images.slices(SLICE)):
            out = self._through(session, fence, k, features)
            losses.append(float(self.client.network.loss(out, labels)) * len(labels))
            right += torch.bincount(labels[out.argmax(1) == labels], minlength=self.classes)
            seen += torch.bincount(labels, minlength=self.classes)
        n = int(seen.sum())
        pairs = zip(right.tolist(), seen.tolist(), strict=True)
        per_class = tuple(r / s if s else math.nan for r, s in pairs)
        return messages.Score(fence, math.fsum(losses) / n, float(right.sum()) / n, per_class)

    @torch.no_grad()
    def _through(self, session: Session, fence: int, k: int, features: torch.Tensor) -> torch.Tensor:
        h = messages.Predict(fence, k, to_wire(self.client.bottom.predict(features)))
        answer = session.exchange(lambda: iter([h]), limits.STEP, fence)
        assert isinstance(answer, messages.Output)  # the table allows nothing else
        return from_wire(answer.out)
