"""Run a small share of `python -m tests.fuzz.malicious_server`, and check that its oracle can fail."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from splitrelay.deploy import client_program
from splitrelay.network import messages as msg
from splitrelay.network import tensor_transfer
from splitrelay.network.codec import encode
from splitrelay.network.messages import Message
from splitrelay.randomness import Purpose, rng
from tests.fuzz import malicious_server as fuzz
from tests.fuzz.client_oracle import Connection, Oracle, get_shape
from tests.fuzz.malicious_script import Script, Way, talk_honestly
from tests.fuzz.malicious_targets import ENGINES, ROLES, Target, make_targets
from tests.fuzz.server_lies import fit_digest


def test_clients_survive_a_malicious_server_and_send_only_what_they_agreed_to() -> None:
    ((campaign, _),) = fuzz.run_campaign(28, piece=28)
    assert campaign.wrong == Counter()
    assert len(campaign.conversations) == len(ROLES) * len(ENGINES)
    assert campaign.sent["accept"] > 0 and campaign.sent["step"] > 0 and len(campaign.lies) > 5


# The fuzzer can fail


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return make_targets(tmp_path_factory.mktemp("targets"), rng(0, Purpose.INSTANCES, 2))[0]


def talk(target: Target, way: Way, folder: Path) -> list[str]:
    """Return what was wrong in one conversation."""
    listener = fuzz.Listener(target.folder)
    script = Script(target, rng(0, Purpose.INSTANCES, 4), way)
    fuzz.converse(script, listener, folder)
    listener.close()
    return script.oracle.wrong


def test_an_honest_conversation_is_not_wrong(target: Target, tmp_path: Path) -> None:
    assert not talk(target, talk_honestly, tmp_path)


def test_an_exception_of_a_client_is_found(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fall(*given: Any) -> None:
        raise KeyError("planted")

    monkeypatch.setattr(client_program, "read_spec", fall)
    (what,) = talk(target, talk_honestly, tmp_path)
    assert "planted" in what


def make_step(target: Target, samples: int = 5, k: int = 0) -> msg.Step:
    shape = get_shape(target.expected.spec, target.expected.terms).h
    return msg.Step(1, k, np.ones((samples, *shape), np.float32), np.zeros(samples, np.int32), 0.0)


def test_the_oracle_allows_an_honest_visit(target: Target) -> None:
    assert not observe(target, make_step(target), make_step(target), make_step(target, k=1), *make_deposit(target.half))


WRONG: dict[str, Callable[[Target], list[Message]]] = {
    "too many samples": lambda target: [make_step(target, 6)],
    "too many steps": lambda target: [make_step(target, k=2)],
    "another step with the same number": lambda target: [make_step(target), make_step(target, 4)],
    "another shape": lambda target: [replace(make_step(target), h=np.ones((5, 3), np.float32))],
    "another dtype": lambda target: [replace(make_step(target), h=make_step(target).h.astype(np.float64))],
    "another label": lambda target: [replace(make_step(target), labels=np.full(5, 10, np.int32))],
    "another visit": lambda target: [replace(make_step(target), fence=2)],
    "test data": lambda target: [msg.Predict(1, 0, make_step(target).h)],
    "another half": lambda target: make_deposit(tensor_transfer.pack_vectors(x=np.zeros(3, np.float32))),
    "another digest": lambda target: [*make_deposit(target.half)[:-1], msg.Deposit(1, len(target.half), b"x" * 32)],
    "pixels": lambda target: [msg.Chunk(1, 0, target.expected.images.x[7].tobytes())],
    "levels": lambda target: [msg.Chunk(1, 0, target.expected.images.normalize(target.expected.images.x).tobytes())],
}


@pytest.mark.parametrize("name", WRONG)
def test_the_oracle_refuses(name: str, target: Target) -> None:
    assert len(observe(target, *WRONG[name](target))) == 1


def test_the_oracle_refuses_everything_before_the_agreed_terms(target: Target) -> None:
    terms = target.expected.terms
    for offered in ([], [replace(terms, spec_hash="0" * 64)], [fit_digest(replace(terms, spec=terms.spec + " "))]):
        oracle, connection = Oracle(target.expected), Connection()
        for one in offered:
            oracle.observe_offer(connection, encode(one))
        oracle.observe(connection, encode(msg.Accept("h", "fast", "", 20)))
        assert bool(oracle.wrong) == (len(offered) == 0 or offered[0].spec_hash == "0" * 64)


def make_deposit(half: bytes) -> list[Message]:
    return [
        *tensor_transfer.split_into_chunks(1, half),
        msg.Deposit(1, len(half), tensor_transfer.compute_sha256(half)),
    ]


def observe(target: Target, *messages: Message) -> list[str]:
    """Return what the oracle finds wrong in a visit with these messages."""
    oracle, connection = Oracle(target.expected), Connection()
    oracle.observe_offer(connection, encode(target.expected.terms))
    for message in (msg.Accept("h", "fast", "", 20), msg.Ready(1), *messages):
        oracle.observe(connection, encode(message))
    oracle.check_pixels()
    return oracle.wrong


def test_memory_that_grows_is_wrong() -> None:
    assert not fuzz.find_growth([100, 105, 110])
    assert len(fuzz.find_growth([100, 140, 170])) == 2


@pytest.mark.parametrize(("words", "code"), [(["--help"], 0), ([], 2), (["x"], 2), (["1", "2", "3"], 2)])
def test_the_arguments_are_checked(words: list[str], code: int) -> None:
    assert fuzz.main(words) == code
