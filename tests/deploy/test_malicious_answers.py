"""Answers of a malicious server that ended a client with an exception, or gave the server more than the spec allows.

All of them were found by `python -m tests.fuzz.malicious_server`.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splitrelay.data import load
from splitrelay.data.partition_io import get_client_folder
from splitrelay.deploy.client_program import ClientOptions, ClientProgram
from splitrelay.deploy.client_visit import VisitRunner
from splitrelay.deploy.fed_server import FedServer
from splitrelay.deploy.handshake import AgreedSpec, build_terms, compute_digest, read_spec
from splitrelay.deploy.lease_limits import SPARE, ServerBrokeSpec, derive_allowed_visits
from splitrelay.deploy.server_visit import build_lease
from splitrelay.errors import InputError
from splitrelay.network import connection_handler, tensor_transfer
from splitrelay.network.codec import BadMessage, decode, encode
from splitrelay.network.messages import Lease, Message, Output, Reply, Step, Terms
from splitrelay.network.protocol import Conversation, End, State
from splitrelay.network.server_connection import EVALUATOR_NUMBER
from splitrelay.security.authority import create_authority
from splitrelay.security.encryption import TamperedHalf
from tests.deploy.test_malicious_server import TWO
from tests.support.deployment import LocalDeployment, small_spec, write_client_data

VISIT = Lease(1, 1, 0, 0, 0, 2, 0.1)


# Replies


@pytest.mark.parametrize("k", [1, 2, 2**31])
def test_a_reply_to_a_step_that_was_not_asked_is_refused(k: int) -> None:
    talk = Conversation(End.CLIENT)
    talk.state, talk.fence = State.STEPPING, 1
    h = np.ones((1, 3), np.float32)
    talk.record_sent(Step(1, 0, h, np.zeros(1, np.int32), 0.0))
    with pytest.raises(BadMessage):
        talk.record_received(Reply(1, k, h, (), 0.0))
    assert talk.state is State.REFUSED


def test_a_client_survives_a_reply_to_another_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play_with_one_lie(
        LocalDeployment(small_spec(tmp_path, *TWO, "R=1"), tmp_path), monkeypatch, Reply, lambda m: {"k": m.k + 1}
    )


@pytest.mark.parametrize("square", [-1.0, float("nan"), -1e300])
def test_a_squared_norm_below_zero_is_no_reply(square: float) -> None:
    with pytest.raises(BadMessage):
        decode(encode(Reply(1, 0, np.ones((1, 3), np.float32), (1.0, square), 0.0)))


@pytest.mark.parametrize("engine", ["fast", "reference"])
@pytest.mark.parametrize("rows", [slice(0, 1), slice(0, 19), slice(None, None, -1)])
def test_outputs_for_another_number_of_samples_are_not_scored(
    engine: str, rows: slice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = small_spec(tmp_path, *TWO, "route=peer-to-peer", "R=1", f"engine={engine}")
    evaluator = {"test": tmp_path / "data" / "test.npz", "keep": tmp_path / "model.safetensors"}

    def change(message: Any) -> dict[str, Any]:
        out = message.out[rows]
        return {"out": np.concatenate([out, out[:1]]) if len(out) == len(message.out) else out}

    play_with_one_lie(LocalDeployment(spec, tmp_path, keys=True), monkeypatch, Output, change, evaluator)


def play_with_one_lie(
    stage: LocalDeployment, monkeypatch: pytest.MonkeyPatch, kind: type[Message], change: Any, more: Any = None
) -> None:
    """Change the first message of this kind. The visit is made again, and the run ends as always."""
    changed = list[bool]()

    def once(message: Any) -> Any:
        if isinstance(message, kind) and not changed:
            changed.append(True)
            return replace(message, **change(message))
        return message

    monkeypatch.setattr(connection_handler, "encode", lambda message: encode(once(message)))
    for m in (0, 1):
        stage.join(m, **(more or {} if m == 0 else {}))
    stage.play()
    assert changed and set(stage.words.values()) == {"all rounds are done"}


# The number of visits


def make_client(folder: Path, *words: str, with_keys: bool = False, **wish: Any) -> tuple[ClientProgram, Terms]:
    """Return client 0, which has not connected to a server, and the terms of its server."""
    spec = small_spec(folder, *TWO, *(words if "engine=reference" in words else ("engine=fast", *words)))
    write_client_data(spec, folder / "data")
    keys = None
    if with_keys:
        keys = folder / "client-0"
        create_authority(folder / "authority", "tests").issue_client("client-0", 0)
    data = folder / "data" / get_client_folder(0, 2) / "data.npz"
    given: dict[str, Any] = {"keys": keys, "agreed": AgreedSpec(spec), **wish}
    return ClientProgram(ClientOptions("127.0.0.1:1", 0, data, **given), lambda text: None), build_terms(
        spec, load(spec.data.name)
    )


def change_terms(terms: Terms, **values: Any) -> Terms:
    """Return other terms of the same spec, with a digest that fits."""
    other = replace(terms, **values)
    return replace(other, spec_hash=compute_digest(other, read_spec(terms)))


def begin_visit(client: ClientProgram, terms: Terms) -> int:
    """Start the client's program again, let it begin a visit under these terms, and return how many it has counted."""
    again = ClientProgram(client.options, lambda text: None)
    again._accept_terms(terms)
    assert isinstance(again.visitor, VisitRunner)
    again.visitor.used.begin_visit(VISIT)
    return again.visitor.used.counts.visits


def test_visits_are_counted_over_terms_that_differ_beside_the_spec(tmp_path: Path) -> None:
    """Else a server gets a new allowance with every restart of a client, if it changes the mean a little each time."""
    client, terms = make_client(tmp_path, with_keys=True, repeats=0)
    limit = 2 + SPARE
    for n in range(limit):
        assert begin_visit(client, change_terms(terms, mean=(0.001 * n,))) == n + 1
    for other in (terms, change_terms(terms, pad=1), change_terms(terms, judged=True)):
        with pytest.raises(ServerBrokeSpec) as caught:
            begin_visit(client, other)
        assert caught.value.value == limit + 1


def test_visits_are_counted_over_both_engines(tmp_path: Path) -> None:
    client, terms = make_client(tmp_path, "engine=reference", with_keys=True, repeats=0)
    spec = read_spec(terms)
    client.options = replace(client.options, agreed=AgreedSpec(spec.model_copy(update={"engine": "auto"})))
    fast = spec.model_copy(update={"engine": "fast"})
    other = replace(terms, spec=fast.to_toml(), engine="fast")
    assert begin_visit(client, terms) == 1
    assert begin_visit(client, replace(other, spec_hash=compute_digest(other, fast))) == 2


# Parties that do not train


def test_an_evaluator_and_a_fed_server_make_no_visits(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, *TWO)
    honest = derive_allowed_visits(spec, 0)
    for m in (EVALUATOR_NUMBER, EVALUATOR_NUMBER + 1, 2):
        allowed = derive_allowed_visits(spec, m)
        lease = build_lease(replace(honest, m=m).make_visit(VISIT, 0.0, None), 1, 1, b"")
        replace(honest, m=m).check_lease(lease, 10**6)
        with pytest.raises(ServerBrokeSpec):
            allowed.check_lease(lease, 10**6)


def make_fed_server(folder: Path) -> tuple[ClientProgram, Terms]:
    spec = small_spec(folder, *TWO, "algorithm=fedavg", "engine=fast")
    create_authority(folder / "authority", "tests").issue_client("fed", fed=True)
    wish = ClientOptions("127.0.0.1:1", None, None, keys=folder / "fed", fed=True, agreed=AgreedSpec(spec))
    return ClientProgram(wish, lambda text: None), build_terms(spec, load(spec.data.name), sealed=True, judged=True)


def test_a_fed_server_refuses_a_lease(tmp_path: Path) -> None:
    fed, terms = make_fed_server(tmp_path)
    fed._accept_terms(terms)
    with pytest.raises(ServerBrokeSpec):
        fed._execute_request(VISIT)


RECIPES = ["", "{", "[]", "[" * 20_000, "null", json.dumps({"halves": [[0, 0, 0]], "steps": [["*", 10**400]]})]
RECIPES += [json.dumps({"halves": [[0, 0, 0]], "steps": ["half", ["*", number]]}) for number in (10**400, "x", [1, 2])]
RECIPES += [json.dumps({"halves": [[0, visit, 0]], "steps": ["half"]}) for visit in (1e400, "x", None)]


@pytest.mark.parametrize("recipe", RECIPES, ids=range(len(RECIPES)))
def test_a_fed_server_refuses_a_recipe_that_it_cannot_read(recipe: str, tmp_path: Path) -> None:
    fed, terms = make_fed_server(tmp_path)
    fed._accept_terms(terms)
    assert isinstance(fed.visitor, FedServer)
    with pytest.raises(TamperedHalf):
        fed.visitor.combine(b"", recipe)


# What is sent with a visit


@pytest.mark.parametrize("words", ["algorithm=ssl", "algorithm=fedavg placement=whole", "algorithm=fedavg"])
def test_only_an_algorithm_with_a_shift_takes_one(words: str, tmp_path: Path) -> None:
    assert derive_allowed_visits(small_spec(tmp_path, *TWO, "algorithm=scaffold"), 0).has_shift
    client, terms = make_client(tmp_path, *words.split())
    client._accept_terms(terms)
    assert isinstance(client.visitor, VisitRunner) and not client.visitor.used.allowed.has_shift
    shape = client.visitor.engine.shape
    x = np.zeros(shape.size if client.visitor.whole else shape.boundary, np.float32)
    client.visitor._unpack(tensor_transfer.pack_vectors(x=x))
    with pytest.raises(BadMessage):
        client.visitor._unpack(tensor_transfer.pack_vectors(x=x, shift=x))


# The spec


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 20_000,
        "K = " + "9" * 5000,
        "a." * 5000 + "b = 1",
        "[" * 20_000,
        "K = 1979-05-27T99:99:99Z",
        "\x00",
    ],
    ids=range(6),
)
def test_a_spec_that_cannot_be_read_is_an_input_error(text: str, tmp_path: Path) -> None:
    _, terms = make_client(tmp_path)
    with pytest.raises(InputError):
        read_spec(replace(terms, spec=text))


@pytest.mark.parametrize("text", ["# " + "x" * 5000, "# x\n" * 5000, "a." * 5000 + "b = 1", "[" + "a." * 5000 + "b]"])
def test_a_spec_that_would_take_much_memory_is_not_parsed(text: str, tmp_path: Path) -> None:
    """A dotted key takes memory and time that grow with the square of its length."""
    client, terms = make_client(tmp_path)
    with pytest.raises(InputError) as caught:
        read_spec(replace(terms, spec=terms.spec + "\n" + text))
    assert isinstance(caught.value.value, int) and caught.value.value > 4096
    assert client.visitor is None
