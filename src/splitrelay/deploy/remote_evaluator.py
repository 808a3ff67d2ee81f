"""The evaluator's part, peer to peer: it holds the test set, opens the half, and asks the server for the rest."""

from __future__ import annotations

from pathlib import Path

import torch

from splitrelay.data.images import ImageSet
from splitrelay.deploy.backend import ClientContext, TestSet, Vector, engine_backend
from splitrelay.deploy.backend_torch import BUILDING, model_spec_of
from splitrelay.models.weights_io import save_weights
from splitrelay.network import limits, messages
from splitrelay.network.client_session import Session
from splitrelay.network.codec import BadMessage


class EvaluatorClient:
    """Scores halves on a test set with the engine of the spec, as a simulation would; looking changes nothing."""

    def __init__(self, context: ClientContext, test: ImageSet, keep: Path) -> None:
        self.test: TestSet = engine_backend(context.spec.engine).TestSet(context, test)
        with BUILDING:
            plan = model_spec_of(context.spec, test.shape, len(test.classes))
            self.layout = plan.layout(getattr(torch, context.spec.model.dtype))
        self.keep = keep

    def written(self, bottom: Vector, top: Vector) -> None:
        """The whole model, which only a client can have."""
        x = torch.cat([torch.from_numpy(bottom.copy()), torch.from_numpy(top.copy())])
        save_weights(self.keep, self.layout, x)

    def score(self, session: Session, fence: int, bottom: Vector) -> messages.Score:
        """Loss and accuracy: the test activations go up, the outputs come back."""
        slices = enumerate(self.test.compute_smashed(bottom))
        outputs = [self._above(session, messages.Predict(fence, k, h)) for k, h in slices]
        try:
            sums = self.test.add_up(outputs)
        except (IndexError, RuntimeError, ValueError) as error:  # of a user's own model we do not know how many it has
            what = "the outputs of the server's half cannot be scored"
            raise BadMessage(what, value=" ".join(str(error).split())[:100]) from None
        return messages.Score(fence, *sums.compute_means())

    def _above(self, session: Session, question: messages.Predict) -> Vector:
        answer = session.exchange(lambda: iter([question]), limits.STEP, question.fence)
        assert isinstance(answer, messages.Output)  # the table allows nothing else
        if answer.k != question.k or len(answer.out) != len(question.h):
            found, sent = (answer.k, len(answer.out)), (question.k, len(question.h))  # part, samples
            raise BadMessage("outputs for other samples than were sent", value=found, limit=sent)
        return answer.out
