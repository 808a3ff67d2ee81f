"""A server that lies to its clients: does a client send anything that its own copy of the spec does not allow?"""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from splitrelay.deploy import backend_fast, backend_torch, lease_limits
from splitrelay.deploy import handshake as handshake
from splitrelay.deploy.backend import derive_client_shape
from splitrelay.deploy.handshake import AgreedSpec, build_terms, compute_digest, read_agreed_spec, write_terms
from splitrelay.deploy.lease_limits import FEW, SPARE, Approval, ServerBrokeSpec, UsedVisits, derive_allowed_visits
from splitrelay.deploy.server_visit import build_lease
from splitrelay.errors import InputError, SplitrelayError
from splitrelay.kernels.builtin_models import BUILTIN_MODELS
from splitrelay.models.model_spec import ModelSpec
from splitrelay.network import codec, connection_handler
from splitrelay.network.codec import encode
from splitrelay.network.connection_handler import EVALUATOR_NUMBER
from splitrelay.network.messages import (
    Accept,
    Chunk,
    Deposit,
    EvaluationRequest,
    Lease,
    Message,
    Predict,
    Refuse,
    Reply,
    Step,
    Terms,
    Welcome,
)
from splitrelay.network.peer_transfer import UNREACHED, HalfSender, PeerEndpoint, PeerUnreachable
from splitrelay.runs.execute import build_trainer
from splitrelay.runs.registry import ALGORITHMS
from splitrelay.runs.spec import Spec, load_spec
from splitrelay.security.credential_reload import IdentityReloader
from splitrelay.security.identity import load_identity
from tests.support.deployment import CLIENT, LocalDeployment, small_spec
from tests.support.error_fields import expect_error

Change = Callable[[Message], Message]
SENT = (Step, Chunk, Deposit, Predict)  # messages that carry something of a client's data or model
TWO = ("M=2", "C=9", "R=2", "K=2", "model=lenet-small")


class Lies:
    """A real server whose messages are changed before they leave it, and all that its clients send."""

    def __init__(self, stage: LocalDeployment, monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
        self.stage, self.received = stage, list[Message]()
        decode = connection_handler.decode

        def listen(frame: bytes, bounds: Any) -> Message:
            self.received.append(decode(frame, bounds))
            return self.received[-1]

        monkeypatch.setattr(connection_handler, "encode", lambda message: encode(change(message)))
        monkeypatch.setattr(connection_handler, "decode", listen)

    def join(self, m: int = 0, **wish: Any) -> Any:
        """Return the last words of client m, or its error. The server stops when the client has left."""
        # A client that leaves does not wait for what it did not read.
        self.stage.join(m, **{"timeouts": replace(CLIENT, tick=0.1), **wish})
        self.stage.threads.append(_start(self._stop_after(self.stage.threads[0])))
        with pytest.raises(KeyboardInterrupt):
            self.stage.play()
        return self.stage.words[m]

    def _stop_after(self, thread: Any) -> Callable[[], None]:
        def stop() -> None:
            thread.join(300)
            self.stage.stop.set()

        return stop

    @property
    def sent(self) -> list[Message]:
        """What the clients sent of their data and their half."""
        return [message for message in self.received if isinstance(message, SENT)]


def _start(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def quorum(tmp_path: Path, *words: str) -> LocalDeployment:
    """A server that begins with one client."""
    return LocalDeployment(small_spec(tmp_path, *TWO, *words), tmp_path, quorum=1)


def offer(spec: Spec, **terms: Any) -> Change:
    """The server offers this spec instead of its own, with a digest that fits."""

    def change(message: Message) -> Message:
        if not isinstance(message, Terms):
            return message
        other = replace(message, spec=spec.to_toml(), engine=spec.engine, **terms)
        return replace(other, spec_hash=compute_digest(other, spec))

    return change


def lease(**values: Any) -> Change:
    """The server leases every visit with these values."""
    return lambda message: replace(message, **values) if isinstance(message, Lease) else message


# The spec


@pytest.mark.parametrize(
    "words",
    [
        "cut=flatten", "cut=1", "model=logistic", "model=mlp", "K=999", "eta=0.2", "clip=1", "momentum=0.5", "batch=50",
        "draw=full", "weight_decay=0", "R=1000", "S=1", "placement=whole algorithm=fedavg", "algorithm=minibatch-sgd",
        "loss=mse engine=reference", "seed=7", "dtype=float64 engine=reference", "evaluator=1",
    ],
)  # fmt: skip
def test_a_client_refuses_every_spec_but_its_own(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = quorum(tmp_path, "engine=fast")
    lies = Lies(stage, monkeypatch, offer(small_spec(tmp_path, *TWO, "engine=fast", *words.split())))
    error = lies.join()
    keys = [word.partition("=")[0] for word in words.split()]
    assert isinstance(error, InputError) and any(key in str(error.value) for key in keys)
    assert not lies.sent and not any(isinstance(message, Accept) for message in lies.received)


def test_a_digest_covers_the_whole_terms(tmp_path: Path) -> None:
    stage = quorum(tmp_path)
    spec, terms = stage.serving.spec, build_terms(stage.serving.spec, stage.serving.data)
    others = [
        replace(terms, **change)
        for change in (
            {"shape": (1, 8, 9)}, {"classes": terms.classes[1:]}, {"mean": (0.0,)}, {"std": (9.0,)}, {"peak": 1},
            {"pad": 1}, {"flip": True}, {"plan": "[]"}, {"sealed": True}, {"judged": True},
        )
    ]  # fmt: skip
    digests = {compute_digest(one, spec) for one in (terms, *others)}
    digests |= {compute_digest(terms, spec.model_copy(update={"R": 3}))}
    assert len(digests) == len(others) + 2 and terms.spec_hash in digests
    assert all(len(digest) == 64 for digest in digests)


def test_terms_that_change_after_the_first_connection_end_the_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain copy of the spec says nothing of mean and std, but they stay what they were at first."""
    stage, offered = quorum(tmp_path), list[Terms]()

    def change(message: Message) -> Message:
        if isinstance(message, Terms):
            offered.append(message)
            return message if len(offered) == 1 else offer(stage.serving.spec, mean=(0.1,))(message)
        return Refuse("come again") if isinstance(message, Welcome) else message

    lies = Lies(stage, monkeypatch, change)
    error = lies.join()
    assert isinstance(error, InputError) and len(offered) == 2 and not lies.sent


@pytest.mark.parametrize(
    "values",
    [{"peak": 0}, {"peak": 256}, {"std": (0.0,)}, {"std": (float("nan"),)}, {"mean": (1e30,)}, {"shape": (1, 8)},
     {"shape": (0, 8, 8)}, {"shape": (2**16,) * 3}, {"pad": 2**20}, {"heartbeat": 1e-9}, {"classes": ("x" * 2000,)},
     {"salt": b"short"}],
    ids=lambda values: next(iter(values)),
)  # fmt: skip
def test_terms_outside_the_limits_end_the_join_as_wrong_input(
    values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = quorum(tmp_path)
    lies = Lies(stage, monkeypatch, offer(stage.serving.spec, **values))
    error = lies.join()
    assert isinstance(error, SplitrelayError) and error.exit_code == 2
    assert not any(isinstance(message, Accept) for message in lies.received)


# Leases


@pytest.mark.parametrize(
    "values",
    [{"K": 999}, {"K": 1}, {"eta": 0.2}, {"clip": 1.0}, {"momentum": 0.9}, {"prox": 1.0}, {"weight_decay": 0.0},
     {"per_half": True}, {"r": 2}, {"r": 2**32 - 1}, {"i": 1}, {"m": 1}, {"bytes": 2**30}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_a_client_refuses_a_lease_that_its_spec_does_not_allow(
    values: dict[str, Any], engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lies = Lies(quorum(tmp_path, f"engine={engine}"), monkeypatch, lease(**values))
    error = lies.join()
    assert isinstance(error, ServerBrokeSpec) and error.exit_code == 2
    assert error.value == next(iter(values.values())) or "bytes" in values
    assert not lies.sent


def test_a_client_refuses_an_evaluation_of_a_round_that_does_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(message: Message) -> Message:
        return replace(message, r=99) if isinstance(message, EvaluationRequest) else message

    stage = LocalDeployment(small_spec(tmp_path, *TWO, "route=peer-to-peer"), tmp_path, quorum=1, keys=True)
    lies = Lies(stage, monkeypatch, change)
    error = lies.join(test=tmp_path / "data" / "test.npz", keep=tmp_path / "model.safetensors")
    assert isinstance(error, ServerBrokeSpec) and error.value == 99 and not lies.sent


@pytest.mark.parametrize(
    "change",
    [
        lambda reply: replace(reply, gradient=reply.gradient[:-1]),
        lambda reply: replace(reply, gradient=reply.gradient.astype(np.float64)),
        lambda reply: replace(reply, gradient=np.full_like(reply.gradient, np.nan)),
        lambda reply: replace(reply, gradient=reply.gradient.reshape(len(reply.gradient), -1)),
        lambda reply: replace(reply, norms=(1.0,) * 50),
    ],
)
def test_a_gradient_of_another_form_is_no_answer(
    change: Callable[[Reply], Reply], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client connects again, and the visit is made from its start; the second answer is right."""
    lied = list[bool]()

    def once(message: Message) -> Message:
        if isinstance(message, Reply) and not lied:
            lied.append(True)
            return change(message)
        return message

    stage = LocalDeployment(small_spec(tmp_path, *TWO, "R=1"), tmp_path)
    monkeypatch.setattr(connection_handler, "encode", lambda message: encode(once(message)))
    for m in (0, 1):
        stage.join(m)
    stage.play()
    assert lied and set(stage.words.values()) == {"all rounds are done"}


# What a client computes before anybody has agreed


@pytest.mark.parametrize("K", [1, 2, 5, FEW - 1, FEW, FEW + 1, 3 * FEW])
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_the_visits_of_many_local_steps_are_those_of_a_whole_round(
    name: str, K: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are derived from a round of few steps: the server chooses K, and minibatch SGD has a visit for each."""
    spec = small_spec(tmp_path, f"algorithm={name}", f"K={K}")
    found = derive_allowed_visits(spec, 0)
    monkeypatch.setattr(lease_limits, "FEW", 10**6)
    assert found == derive_allowed_visits(spec, 0)


def test_a_spec_with_endless_local_steps_costs_no_memory(tmp_path: Path) -> None:
    allowed = derive_allowed_visits(small_spec(tmp_path, "algorithm=minibatch-sgd", "K=2147483647"), 0)
    assert allowed.occurrences == 2147483647 and allowed.K == 1


def test_a_spec_with_a_number_that_is_no_float_is_refused(tmp_path: Path) -> None:
    stage = quorum(tmp_path)
    spec = stage.serving.spec.model_copy(update={"R": 10**400})
    with pytest.raises(InputError):
        handshake.read_spec(build_terms(spec, stage.serving.data))


@pytest.mark.parametrize("engine", ["fast", "reference"])
@pytest.mark.parametrize("name", sorted(BUILTIN_MODELS))
def test_the_sizes_of_a_built_in_model_are_known_without_its_layers(
    name: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, images = small_spec(tmp_path, f"model={name}", f"engine={engine}"), (3, 32, 32)
    expected = backend_torch.compute_shape(spec, images, 10)
    monkeypatch.setattr(ModelSpec, "net", None)
    assert derive_client_shape(spec, images, 10) == expected


def test_a_user_s_model_is_not_built_for_images_that_the_client_does_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, built = quorum(tmp_path, "engine=reference"), list[tuple[int, ...]]()
    mine = stage.serving.spec.model_copy(
        update={"model": stage.serving.spec.model.model_copy(update={"name": f"{__name__}:build_mine"})}
    )
    monkeypatch.setattr(backend_torch, "compute_shape", lambda spec, images, *rest: built.append(images))
    lies = Lies(stage, monkeypatch, offer(mine, shape=(1, 4096, 4096)))
    error = lies.join(agreed=AgreedSpec(mine))
    assert isinstance(error, InputError) and not built and not lies.sent


# How many visits


def used(tmp_path: Path, *words: str, repeats: int = 0, m: int = 0) -> UsedVisits:
    allowed = derive_allowed_visits(small_spec(tmp_path, *words), m)
    return UsedVisits(allowed, tmp_path / "usage.json", repeats)


def test_visits_are_counted_over_restarts_and_end(tmp_path: Path) -> None:
    visit = Lease(1, 1, 0, 0, 0, 2, 0.1)
    for _ in range(2 + SPARE):
        used(tmp_path, "R=2").begin_visit(visit)  # a new program each time
    with pytest.raises(ServerBrokeSpec) as caught:
        used(tmp_path, "R=2").begin_visit(visit)
    assert caught.value.value == 3 + SPARE
    used(tmp_path, "R=2", repeats=1).begin_visit(visit)


def test_evaluations_are_counted_too(tmp_path: Path) -> None:
    counted = used(tmp_path, "R=4", "every=2")
    for _ in range(4 + SPARE):
        counted.begin_evaluation()
    with pytest.raises(ServerBrokeSpec):
        counted.begin_evaluation()


@pytest.mark.parametrize("committed", [False, True])
def test_a_run_is_complete_only_after_a_commit_in_the_last_round(committed: bool, tmp_path: Path) -> None:
    """A server that repeats visits without a commit made a client exit as if the run had been completed."""
    spec, counted = small_spec(tmp_path, "R=2"), used(tmp_path, "R=2")
    for _ in range(4):
        counted.begin_visit(Lease(1, 1, 0, 0, 0, 2, 0.1))
    counted.record_commit(1 if committed else 0)
    assert counted.is_complete(spec) is committed
    assert used(tmp_path, "R=2").is_complete(spec) is committed  # after a restart
    counted.begin_visit(Lease(1, 1, 1, 0, 0, 2, 0.1))
    assert not counted.is_complete(spec)  # the server asks for a visit of the last round again: none of it counts
    assert not used(tmp_path, "R=2").is_complete(spec)


def test_a_number_of_steps_that_depends_on_others_stays_what_it_was(tmp_path: Path) -> None:
    words = ("tau=proportional", "K=3", "M=4")
    used(tmp_path, *words).begin_visit(Lease(1, 1, 0, 0, 0, 7, 0.1))
    with pytest.raises(ServerBrokeSpec):
        used(tmp_path, *words).begin_visit(Lease(1, 1, 0, 0, 0, 8, 0.1))
    allowed = used(tmp_path, *words).allowed
    base = build_lease(allowed.make_visit(Lease(1, 1, 0, 0, 0, 12, 0.1), 0.0, None), 1, 1, b"")
    allowed.check_lease(base, 10**6)
    with pytest.raises(ServerBrokeSpec):
        allowed.check_lease(replace(base, K=13), 10**6)


def test_each_client_allows_its_own_number_of_steps(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "M=4", "tau=3+1+2+4")
    allowed = derive_allowed_visits(spec, 2)
    lease = build_lease(allowed.make_visit(Lease(1, 1, 0, 0, 2, 2, 0.1), 0.0, None), 1, 1, b"")
    allowed.check_lease(lease, 10**6)
    for K in (1, 3, 4):
        with pytest.raises(ServerBrokeSpec) as caught:
            allowed.check_lease(replace(lease, K=K), 10**6)
        assert caught.value.value == K
    assert derive_allowed_visits(spec, EVALUATOR_NUMBER).visits == 0


def test_without_a_count_nothing_is_sent(tmp_path: Path) -> None:
    (tmp_path / "usage.json").write_text("{")
    with pytest.raises(InputError):
        used(tmp_path)
    nowhere = UsedVisits(derive_allowed_visits(small_spec(tmp_path), 0), tmp_path / "own.npz" / "usage.json", 0)
    with pytest.raises(InputError) as caught:
        nowhere.begin_visit(Lease(1, 1, 0, 0, 0, 2, 0.1))
    assert "--state" in str(caught.value.hint)


def test_two_programs_with_the_same_keys_share_one_count(tmp_path: Path) -> None:
    visit, both = Lease(1, 1, 0, 0, 0, 2, 0.1), [used(tmp_path, "R=2") for _ in range(2)]
    for n in range(2 + SPARE):
        both[n % 2].begin_visit(visit)
    for one in both:
        with pytest.raises(ServerBrokeSpec):
            one.begin_visit(visit)


def test_the_number_of_groups_takes_no_memory(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "algorithm=fedseq")
    assert derive_allowed_visits(spec.model_copy(update={"G": 10**12}), 0) == derive_allowed_visits(spec, 0)


def test_a_client_dials_other_hosts_only_peer_to_peer_and_tells_nothing_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialed = list[str]()

    def bring(sender: Any, address: str, *_: Any) -> Any:
        dialed.append(address)
        raise PeerUnreachable("connection refused by 10.0.0.1")

    monkeypatch.setattr(HalfSender, "send", bring)
    centralized = LocalDeployment(small_spec(tmp_path, *TWO, "R=1"), tmp_path, keys=True)
    monkeypatch.setattr(connection_handler, "encode", lambda message: encode(lease(heir="127.0.0.1:22")(message)))
    for m in (0, 1):
        centralized.join(m)
    centralized.play()
    assert set(centralized.words.values()) == {"all rounds are done"} and not dialed
    post = PeerEndpoint(IdentityReloader(load_identity(tmp_path / "client-0"), lambda text: None), lambda text: None)
    for address in ("127.0.0.1:22", "unix:/run/docker.sock", "dns:///example.org:443"):
        (handed,) = post.hand_over(Lease(1, 1, 0, 0, 0, 2, 0.1, heir=address), b"half")
        assert handed.why == UNREACHED
    assert dialed == ["127.0.0.1:22"]


class Noted:
    """Clients that note every visit they are asked for."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.visits = inner, list[Any]()

    def run(self, visit: Any, /) -> Any:
        return next(iter(self.run_all([visit])))

    def run_all(self, visits: Any, /) -> Any:
        asked = list(visits)
        self.visits += asked
        return self.inner.run_all(asked)


@pytest.mark.parametrize("order", ["permutation", "sampled", "consumed", "fixed", "replacement"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_visit_of_an_honest_run_is_allowed(name: str, order: str, tmp_path: Path) -> None:
    for words in ((), ("tau=proportional",), ("clip=1", "momentum=0.5", "K=3")):
        group = ("G=2",) if name in ("sflg", "fedseq") else ()
        spec = small_spec(tmp_path, f"algorithm={name}", f"order={order}", "M=3", "C=4", "S=2", "R=4", *group, *words)
        learning, _ = build_trainer(spec)
        learning.clients.clients = noted = Noted(learning.clients.clients)
        list(learning.run(spec.R, spec.every))
        allowed = {m: derive_allowed_visits(spec, m) for m in range(3)}
        for visit in noted.visits:
            allowed[visit.m].check_lease(build_lease(visit, 1, 1, b""), 10**6)
        assert max(Counter((visit.r, visit.m) for visit in noted.visits).values()) <= allowed[0].occurrences


# Joining without a copy of the spec


def test_without_an_agreement_nothing_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lies = Lies(quorum(tmp_path), monkeypatch, lambda message: message)
    error = lies.join(agreed=None)
    digest = lies.stage.serving.network.context.terms.spec_hash
    assert isinstance(error, InputError) and error.hint is not None and digest in error.hint
    assert not lies.sent and not any(isinstance(message, Accept) for message in lies.received)


@pytest.mark.parametrize("yes", [True, False])
def test_the_operator_is_shown_what_would_leave_and_decides(
    yes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = list[str]()

    def comment(message: Message) -> Message:
        return replace(message, spec=f"# hidden \x9b8m\n{message.spec}") if isinstance(message, Terms) else message

    monkeypatch.setattr(connection_handler, "encode", lambda message: encode(comment(message)))
    approval = Approval(lambda text: bool(shown.append(text)) or yes)
    stage = LocalDeployment(small_spec(tmp_path, *TWO, "batch=5"), tmp_path)
    if not yes:
        lies = Lies(
            LocalDeployment(small_spec(tmp_path, *TWO), tmp_path, quorum=1), monkeypatch, lambda message: message
        )
        assert isinstance(lies.join(agreed=None, approval=approval), InputError) and not lies.sent
    else:
        for m in (0, 1):
            stage.join(m, agreed=None, approval=approval)
        stage.play()
        assert set(stage.words.values()) == {"all rounds are done"}
    (text,) = shown
    assert "hidden" not in text
    assert "10 samples as 64 numbers each" in text and "at most 2 visits" in text and "batch = 5" in text


def test_a_digest_can_be_accepted_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = LocalDeployment(small_spec(tmp_path, *TWO), tmp_path)
    digest = build_terms(stage.serving.spec, stage.serving.data).spec_hash
    for m, accepted in ((0, digest), (1, digest.upper())):
        stage.join(m, agreed=None, accept_spec=accepted)
    stage.play()
    assert set(stage.words.values()) == {"all rounds are done"}
    (tmp_path / "other").mkdir()
    lies = Lies(quorum(tmp_path / "other"), monkeypatch, lambda message: message)
    error = lies.join(agreed=None, accept_spec="0" * 64)
    assert isinstance(error, InputError) and error.limit == "0" * 64 and not lies.sent


def test_terms_written_by_the_server_are_agreed_to_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = quorum(tmp_path)
    file = tmp_path / "terms.toml"
    file.write_text(write_terms(build_terms(stage.serving.spec, stage.serving.data)), encoding="utf-8")
    agreed = read_agreed_spec(file)
    assert agreed.spec == stage.serving.spec and agreed.terms is not None
    lies = Lies(stage, monkeypatch, offer(stage.serving.spec, mean=(0.5,)))
    error = lies.join(agreed=agreed)
    assert isinstance(error, InputError) and "mean" in str(error.value) and not lies.sent


# A client half without parameters


@pytest.mark.parametrize("cut", ["flatten", "1"])
@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_features_leave_only_where_the_clients_own_spec_says_so(
    cut: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("M=2", "C=9", "R=1", "K=2", "model=logistic", f"engine={engine}")
    named = LocalDeployment(small_spec(tmp_path, *words, f"cut={cut}"), tmp_path)
    for m in (0, 1):
        named.join(m)
    named.play()
    assert set(named.words.values()) == {"all rounds are done"}
    (tmp_path / "again").mkdir()
    unnamed = LocalDeployment(small_spec(tmp_path / "again", *words), tmp_path / "again", quorum=1)
    digest = build_terms(unnamed.serving.spec, unnamed.serving.data).spec_hash
    lies = Lies(unnamed, monkeypatch, lambda message: message)
    error = lies.join(**({} if engine == "fast" else {"agreed": None, "accept_spec": digest}))
    assert isinstance(error, InputError) and not lies.sent


# A model that is not built in


def tiny() -> nn.Sequential:
    """A model of the tests."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))


OWN = ("M=2", "C=9", "R=1", "K=2", "model=tests.deploy.test_malicious_server:tiny", "cut=3", "engine=fast")


def test_layers_that_the_operator_has_agreed_to_need_no_torch_at_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = LocalDeployment(small_spec(tmp_path, *OWN), tmp_path)
    terms = build_terms(stage.serving.spec, stage.serving.data)
    (tmp_path / "terms.toml").write_text(write_terms(terms), encoding="utf-8")
    stage.join(0, agreed=read_agreed_spec(tmp_path / "terms.toml"))
    stage.join(1, agreed=None, accept_spec=terms.spec_hash)
    derived = list[Any]()
    monkeypatch.setattr("splitrelay.deploy.backend_fast._convert_model", _count(derived))
    stage.play()
    assert set(stage.words.values()) == {"all rounds are done"}
    assert len(derived) == 2  # by the server, for its terms and for its own half


def test_layers_that_only_the_server_names_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a plain copy of the spec the client makes the layers with its own code, whatever the server says."""
    features = '{"shape": [1, 8, 8], "layers": [{"kind": "Flatten", "name": "0"}]}'
    spec = small_spec(tmp_path, *OWN)
    lies = Lies(LocalDeployment(spec, tmp_path, quorum=1), monkeypatch, offer(spec, plan=features))
    accepted = list[Any]()
    monkeypatch.setattr("splitrelay.kernels.read_plan", lambda document: accepted.append(document))
    error = lies.join()
    assert not accepted and isinstance(error, SplitrelayError)  # the server refuses the digest, which is not its own


CALLED = list[str]()


def run_code(*given: Any) -> nn.Sequential:
    """Code that the client's operator has never heard of."""
    CALLED.append("run")
    return tiny()


@pytest.mark.parametrize(
    ("words", "terms"),
    [
        ("model={code} engine=fast cut=3", {"plan": ""}),
        ("model={code} engine=fast cut=3 route=peer-to-peer", {"sealed": True}),
        ("model={code} engine=fast cut=3", {"sealed": True}),
        ("model={code} engine=reference cut=3", {}),
        ("loss={code} engine=reference", {}),
        ("loss={code} engine=fast", {}),
        ("model=mlp loss={code} engine=fast", {"plan": "{}"}),
    ],
)
@pytest.mark.parametrize("role", ["client", "evaluator"])
def test_a_digest_alone_lets_no_code_run(
    words: str, terms: dict[str, Any], role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layers come with the terms, under the digest. The function that has made them is never called here."""
    stage = LocalDeployment(small_spec(tmp_path, *OWN), tmp_path, quorum=1, keys=True)
    named = [word.format(code=f"{__name__}:run_code") for word in words.split()]
    spec = small_spec(tmp_path, *TWO, *named)
    made = offer(spec, **terms)
    lies = Lies(stage, monkeypatch, made)
    digest = getattr(made(build_terms(stage.serving.spec, stage.serving.data)), "spec_hash")  # noqa: B009
    CALLED.clear()
    more = {"test": tmp_path / "data" / "test.npz"} if role == "evaluator" else {}
    error = lies.join(agreed=None, accept_spec=digest, keep=tmp_path / "model.safetensors", **more)
    assert isinstance(error, InputError) and not CALLED and not lies.sent


@pytest.mark.parametrize("module", ["tests.deploy.test_handshake", "installed.mine", "json"])
def test_a_server_runs_no_module_but_the_file_named_with_code(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server may know a module in a package of the client's host that is called like the named file."""
    package = tmp_path / "site" / "installed"
    package.mkdir(parents=True)
    for file in (package / "__init__.py", package / "mine.py"):
        file.write_text(f"from {__name__} import CALLED\nCALLED.append({file.stem!r})\n")
    named = tmp_path / "own" / f"{module.rpartition('.')[2]}.py"
    named.parent.mkdir()
    named.write_text("def make(): pass\n")
    monkeypatch.syspath_prepend(package.parent)
    CALLED.clear()
    with pytest.raises(InputError):
        handshake.check_named_files([f"{module}:make"], [named])
    assert not CALLED


def test_a_server_names_no_function_that_the_named_file_only_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is called before the operator has agreed: the sizes of the messages depend on the layers."""
    file = tmp_path / "own_layers.py"
    file.write_text(
        "from os import abort\nimport os\nif os.name:\n    def make(): pass\nbuild = make\nclass Net: pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    handshake.check_named_files([f"own_layers:{name}" for name in ("make", "build", "Net")], [file])
    for name in ("abort", "os", "__loader__"):
        with expect_error(InputError, value=name):
            handshake.check_named_files([f"own_layers:{name}"], [file])


def _count(calls: list[Any]) -> Any:
    original = backend_fast._convert_model

    def plan(*given: Any) -> Any:
        calls.append(given)
        return original(*given)

    return plan


# What the terms may say


@pytest.mark.parametrize(
    "values",
    [{"std": (float("nan"),)}, {"std": (0.0,)}, {"std": (1e-30,)}, {"mean": (float("inf"),)}, {"mean": (1e30,)},
     {"peak": 0}, {"peak": 256}, {"pad": 2**20}, {"heartbeat": 1e-9}, {"heartbeat": float("nan")},
     {"classes": ("x" * 2000,)}, {"shape": (1, 0, 8)}, {"shape": (60000, 60000, 60000)}],
    ids=str,
)  # fmt: skip
def test_terms_outside_their_range_are_refused_when_they_are_read(values: dict[str, Any], tmp_path: Path) -> None:
    stage = quorum(tmp_path)
    terms = build_terms(stage.serving.spec, stage.serving.data)
    assert codec.decode_control(codec.encode_control(terms)) == terms
    with pytest.raises(codec.BadMessage):
        codec.decode_control(codec.encode_control(replace(terms, **values)))


def test_an_agreed_spec_is_compared_in_every_key(tmp_path: Path) -> None:
    stage = quorum(tmp_path)
    spec, terms = stage.serving.spec, build_terms(stage.serving.spec, stage.serving.data)
    handshake.check_agreed(AgreedSpec(spec), spec, terms)
    handshake.check_agreed(AgreedSpec(spec.model_copy(update={"engine": "auto"})), spec, terms)
    for word in ("order=fixed", "gamma=0.5", "every=2", "C=8", "augment=false", "tau=proportional", "init=x"):
        name, _, value = word.partition("=")
        other = load_spec(None, [*_words(spec), f"{name}={value}"])
        with pytest.raises(InputError):
            handshake.check_agreed(AgreedSpec(other), spec, terms)


def _words(spec: Spec) -> list[str]:
    return [f"{key}={value}" for key, value in spec.flatten().items() if value is not None]
