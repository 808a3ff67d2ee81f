"""Both ends of an evaluation where the server cannot read the client half.

The evaluator holds the test set. It opens the client half, sends smashed data of the test set to the server, and gets
the outputs of the server half. `RemoteEvaluator` is the server's end, `EvaluatorClient` the evaluator's.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import torch

from splitrelay.data.images import Samples
from splitrelay.deploy.backend import ClientContext, TestSet, Vector, get_backend
from splitrelay.deploy.backend_torch import BUILDING, build_model_spec
from splitrelay.deploy.client_options import get_client_name
from splitrelay.deploy.deposit_bound import LARGEST_LOSS
from splitrelay.deploy.evaluation_requests import PartyRequest, send_request
from splitrelay.deploy.half_disputes import HalfDisputes, Verdict
from splitrelay.deploy.remote_clients import RemoteClients
from splitrelay.deploy.sealed_state import SealedState
from splitrelay.errors import WorkError
from splitrelay.evaluation import SLICE, Score
from splitrelay.models.weights_io import save_weights
from splitrelay.network import messages, tensor_transfer
from splitrelay.network.client_session import Session
from splitrelay.network.codec import BadMessage, is_finite_array
from splitrelay.network.server_connection import EVALUATOR_NUMBER
from splitrelay.objectives.metrics import get_metric_column

UNSEEN = Score(math.nan, math.nan, ())


class RemoteEvaluator:
    """The server's end: asks the evaluator for scores and computes the server half for it."""

    def __init__(self, remote: RemoteClients, disputes: HalfDisputes, m: int) -> None:
        self.remote, self.disputes, self.connections, self.m = remote, disputes, remote.connections, m
        self.r = 0  # the next round to evaluate
        self.has_begun = False
        self.has_overflowed = False  # whether the outputs of the server half did, in this evaluation
        self.last_slice: int | None = None  # number of the first slice that was not full

    def score(self, x: SealedState) -> Score:
        """Return the score of x, or NaN if it is not evaluated.

        The evaluation that a checkpoint was saved with is not repeated: clients may know later visits, and refuse x.
        """
        before, self.has_begun = not self.has_begun and self.r > 0, True
        if before:
            return UNSEEN
        found = self._request(x, keep=False)
        self.r += 1
        if found is None:
            return UNSEEN
        columns = map(get_metric_column, self.remote.server_visits.spec.metrics)
        return Score(found.loss, found.accuracy, found.per_class, dict(zip(columns, found.metrics, strict=True)))

    def skip_next(self, r: int) -> None:
        """Do not ask for the next evaluation, of round r: its row exists, and clients may refuse an older half."""
        self.r, self.has_begun = r + 1, False

    def hand_over(self, x: SealedState) -> None:
        """Send the server half, too, so that the evaluator can write the whole model."""
        self._request(x, keep=True)

    def _request(self, x: SealedState, keep: bool) -> messages.Score | None:
        x = self.remote.complete(x)
        if not keep and self.remote.scheduler.get_quarantine_reason(self.m) is not None:
            self.remote.journal.note("unseen", client=self.m)
            return None
        top = tensor_transfer.pack_vectors(x=x.top.numpy()) if keep else b""

        def ask(connection: int) -> int:
            return send_request(self.remote, connection, x.bytes(), x.visit, x.fence, r=self.r, top=top)

        question = PartyRequest(self.remote, self.m, ask)
        engine = self.remote.server_visits.engine()
        self.remote.scheduler.question, self.has_overflowed = question, False
        try:
            while True:
                answer = question.next()
                error = self._find_error(answer, keep) if isinstance(answer, messages.Score) else None
                if error is not None:
                    question.reject(error)
                elif isinstance(answer, messages.Score):
                    if self.m == EVALUATOR_NUMBER:  # of a client, its visits are counted
                        self.remote.scheduler.quarantine.commit(self.m)
                    return answer
                if isinstance(answer, messages.Predict) and self._is_in_order(answer, question):
                    self._send_output(engine.predict(x.top.numpy(), answer.h), answer, question)
                if question.refusal is not None and question.k < 0 and self._is_disputed(x, question, keep):
                    self.remote.journal.note("unseen", client=self.m)
                    return None
                if not keep and self._is_late(question, x):  # without the model nothing is finished
                    question.cancel("the run continues without the evaluation")
                    self.remote.journal.note("unseen", client=self.m)
                    return None
                question.check_failures()
        finally:
            self.remote.scheduler.question = None
            self.remote.server_visits.free.append(engine)

    def _is_disputed(self, x: SealedState, question: PartyRequest, keep: bool) -> bool:
        """Return whether to skip the evaluation because nobody can tell who is to blame for a half that does not open.

        Raises:
            VisitRejected: The client that wrote the half is to blame.
            WorkError: The run cannot continue without the evaluation.
        """
        assert question.refusal is not None
        why, writer = question.refusal.why, self.disputes.find_half_writer(x)
        question.refusal = None
        if not x.visit or writer == self.m:
            return False
        verdict = self.disputes.find_verdict(x, self.m)
        self.disputes.check_verdict(verdict, x, why)
        if verdict is Verdict.OPENED:
            return False
        if keep or self.remote.policy.away != "skip":
            what = f"{get_client_name(self.m)} cannot open the half of visit {x.visit}"
            raise WorkError(f"{what}; {self.disputes.describe_dispute(writer)}", value=why.rstrip("."))
        return True

    def _find_error(self, score: messages.Score, keep: bool) -> str | None:
        """Return what is wrong with a score. With `keep` it only says that the model was kept."""
        server_visits = self.remote.server_visits
        spec = server_visits.spec
        if not keep and len(score.metrics) != len(spec.metrics):
            return f"a score has {len(score.metrics)} metrics, the spec has {len(spec.metrics)}"
        is_real = spec.data.target == "real" and not keep
        is_own = ":" in spec.model.loss
        return find_score_error(score, server_visits.classes, can_be_negative=is_own, is_real=is_real)

    def _is_in_order(self, asked: messages.Predict, question: PartyRequest) -> bool:
        """Cancel the request at a slice after one that was not full: short slices would have no end."""
        if asked.k == 0:
            self.last_slice = None
        if self.last_slice is not None and asked.k > self.last_slice:
            question.cancel("a slice of the test set that is not the last is too short")
            return False
        if len(asked.h) < SLICE:
            self.last_slice = asked.k
        return True

    def _send_output(self, out: Any, asked: messages.Predict, question: PartyRequest) -> None:
        if is_finite_array(out):
            question.send(messages.Output(asked.fence, asked.k, out))
        else:
            self.has_overflowed = True
            question.cancel("the outputs of the server half are not finite")

    def _is_late(self, question: PartyRequest, x: SealedState) -> bool:
        """Return whether the run continues without this evaluation, because the evaluator is absent or too slow."""
        policy, waited = self.remote.policy, time.monotonic() - question.since
        late = policy.away == "skip" and (waited > policy.lease or question.failures > policy.retries)
        if late and question.unable and x.visit and self.disputes.find_half_writer(x) != self.m:
            verdict = self.disputes.find_verdict(x, self.m, later=True)
            self.disputes.check_verdict(verdict, x, question.why)
            is_blamed = verdict is Verdict.OPENED
        else:
            is_blamed = not self.has_overflowed  # the weights may be the reason
        if late and is_blamed:
            self.remote.scheduler.strike_absent(self.m, question.why or "no answer", round=self.r)
        if late and self.m not in self.connections.get_clients():
            self.remote.scheduler.absent[self.m] = "the evaluator has not come back"
        return late or self.remote.scheduler.get_absence_reason(self.m) is not None


def find_score_error(
    score: messages.Score, classes: int, *, can_be_negative: bool, is_real: bool = False
) -> str | None:
    """Return what is wrong with a score, or None.

    Args:
        score: what the evaluator reports. Its accuracy of a class without test images is NaN.
        classes: how many classes the data have.
        can_be_negative: whether the loss is a function of the user, which may be negative.
        is_real: whether the targets are real numbers, which have no accuracy.
    """
    if not abs(score.loss) <= LARGEST_LOSS or (score.loss < 0 and not can_be_negative):
        return f"the loss of a score is out of range: {score.loss:g}"
    if is_real:
        is_empty = math.isnan(score.accuracy) and not score.per_class
        return None if is_empty else "a score of real numbers has an accuracy"
    shares = [score.accuracy, *(share for share in score.per_class if not math.isnan(share))]
    if not all(0 <= share <= 1 for share in shares):
        return "an accuracy of a score is out of range: not from 0 to 1"
    if len(score.per_class) not in (0, classes):
        return f"a score has {len(score.per_class)} classes, the data have {classes}"
    return None


class EvaluatorClient:
    """The evaluator's end: evaluates halves on its test set with the engine of the spec, as a simulation would."""

    def __init__(self, context: ClientContext, test: Samples, keep: Path) -> None:
        self.test: TestSet = get_backend(context.spec.engine).TestSet(context, test)
        with BUILDING:
            plan = build_model_spec(context.spec, test.inputs, test.outputs)
            self.layout = plan.layout(getattr(torch, context.spec.model.dtype))
        self.keep = keep

    def save_model(self, bottom: Vector, top: Vector) -> None:
        """Write the whole model. The server cannot, because it has only its half."""
        x = torch.cat([torch.from_numpy(bottom.copy()), torch.from_numpy(top.copy())])
        save_weights(self.keep, self.layout, x)

    def score(self, session: Session, fence: int, bottom: Vector) -> messages.Score:
        """Return loss and accuracy: send the smashed data of the test set, and compare the outputs with the labels."""
        slices = enumerate(self.test.compute_smashed(bottom))
        outputs = [self._exchange_slice(session, messages.Predict(fence, k, h)) for k, h in slices]
        try:
            score = self.test.compute_score(outputs)
        except (IndexError, RuntimeError, ValueError) as error:  # a user's model may have any outputs
            what = "the outputs of the server's half cannot be scored"
            raise BadMessage(what, value=" ".join(str(error).split())[:100]) from None
        return messages.Score(fence, score.loss, score.accuracy, score.per_class, score.metrics)

    def _exchange_slice(self, session: Session, question: messages.Predict) -> Vector:
        answer = session.exchange([question], session.timeouts.step, question.fence)
        assert isinstance(answer, messages.Output)  # the table allows nothing else
        if answer.k != question.k or len(answer.out) != len(question.h):
            found, sent = (answer.k, len(answer.out)), (question.k, len(question.h))  # part, samples
            raise BadMessage("outputs for other samples than were sent", value=found, limit=sent)
        return answer.out
