"""The evaluator's part, peer to peer: it holds the test set, opens the half, and asks the server for the rest."""

from __future__ import annotations

import math
from importlib import import_module
from pathlib import Path

import torch

from splitrelay.data.images import ImageSet
from splitrelay.deploy.backend import Looking, Outfit, Vector
from splitrelay.deploy.backend_torch import BUILDING, model_spec_of
from splitrelay.models.weights_io import save_weights
from splitrelay.network import limits, messages
from splitrelay.network.client_session import BadMessage, Session

EVALUATORS = {"reference": "splitrelay.deploy.backend_torch", "fast": "splitrelay.deploy.evaluation_fast"}


class Judge:
    """Scores halves on a test set with the engine of the spec, as a simulation would; looking changes nothing."""

    def __init__(self, outfit: Outfit, test: ImageSet, keep: Path) -> None:
        self.looking: Looking = import_module(EVALUATORS[outfit.spec.engine]).Looking(outfit, test)
        with BUILDING:
            plan = model_spec_of(outfit.spec, test.shape, len(test.classes))
            self.layout = plan.layout(getattr(torch, outfit.spec.model.dtype))
        self.keep = keep

    def written(self, bottom: Vector, top: Vector) -> None:
        """The whole model, which only a client can have."""
        x = torch.cat([torch.from_numpy(bottom.copy()), torch.from_numpy(top.copy())])
        save_weights(self.keep, self.layout, x)

    def score(self, session: Session, fence: int, bottom: Vector) -> messages.Score:
        """Loss and accuracy: the test activations go up, the outputs come back."""
        slices = enumerate(self.looking.through(bottom))
        outputs = [self._above(session, messages.Predict(fence, k, h)) for k, h in slices]
        try:
            found = self.looking.tally(outputs)
        except (IndexError, RuntimeError, ValueError) as error:  # of a user's own model we do not know how many it has
            what = "the outputs of the server's half cannot be scored"
            raise BadMessage(what, value=" ".join(str(error).split())[:100]) from None
        n = sum(found.seen)
        per_class = tuple(r / s if s else math.nan for r, s in zip(found.right, found.seen, strict=True))
        return messages.Score(fence, found.loss / n, sum(found.right) / n, per_class)

    def _above(self, session: Session, question: messages.Predict) -> Vector:
        answer = session.exchange(lambda: iter([question]), limits.STEP, question.fence)
        assert isinstance(answer, messages.Output)  # the table allows nothing else
        if answer.k != question.k or len(answer.out) != len(question.h):
            found, sent = (answer.k, len(answer.out)), (question.k, len(question.h))  # part, samples
            raise BadMessage("outputs for other samples than were sent", value=found, limit=sent)
        return answer.out
