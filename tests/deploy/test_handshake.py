"""What server and client must agree on before the first turn: where they do not, what does who joins read?"""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from splitrelay.cli.main import run
from splitrelay.deploy import backend_fast, client_program, handshake, server_program
from splitrelay.deploy.client_program import ClientOptions, ClientProgram
from splitrelay.deploy.handshake import AgreedSpec, build_terms
from splitrelay.errors import InputError
from splitrelay.network.limits import Limits
from splitrelay.network.messages import Terms
from splitrelay.runs.build import load_data
from splitrelay.runs.spec import Spec
from tests.deploy.test_admission import onlooker
from tests.support.deployment import LocalDeployment, small_spec, write_client_data
from tests.support.error_fields import expect_error

TWO = ("M=2", "C=9", "R=1")


def tiny() -> nn.Sequential:
    """A model that the package does not have."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))


class Joining:
    """A server of a small run, and client 0 as a command of which all words are kept."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys
        self.data = folder / "data" / "client-0000" / "data.npz"

    def __call__(
        self, *words: str, spec: tuple[str, ...] = TWO, data: Path | None = None, agreed: bool = True, **offer: Any
    ) -> tuple[int, list[str]]:
        """How it leaves, and the lines that it says but for the warning; it has the server's spec unless told."""
        stage = LocalDeployment(small_spec(self.folder, *spec), self.folder, **offer)
        words = (*words, "--spec", self.mine(*spec)) if agreed and "--spec" not in words else words
        join = ("--insecure", "--client", "0", "--data", str(data or self.data), "--patience", "300", *words)
        (code,) = onlooker(stage, lambda port: left("join", f"127.0.0.1:{port}", *join))
        said = self.capsys.readouterr()
        lines = (said.err + said.out).splitlines()
        assert not stage.events("arrived")
        return code, [line for line in lines if not line.startswith("INSECURE")]

    def refused(self, *words: str, **how: Any) -> str:
        """The one line of who cannot take part, which is also the last."""
        code, lines = self(*words, **how)
        assert code == 2 and [line.startswith("splitrelay: ") for line in lines] == [True], lines
        return lines[0].removeprefix("splitrelay: ")

    def mine(self, *words: str) -> str:
        """A spec of its own, in a file."""
        path = self.folder / "mine.toml"
        path.write_text(small_spec(self.folder, *words).to_toml())
        return str(path)


def left(*words: str) -> int:
    """How a command leaves."""
    try:
        run(words)
    except SystemExit as leaving:
        return int(leaving.code or 0)
    return 0


@pytest.fixture
def join(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Joining:
    return Joining(tmp_path, capsys)


# The spec


def test_who_agrees_would_be_taken_and_leaves_no_trace(join: Joining) -> None:
    for words in (TWO, (*TWO, "engine=auto")):
        code, lines = join("--check", "--spec", join.mine(*words))
        assert code == 0 and lines[-1].startswith("all is well")


def test_a_check_without_a_spec_shows_what_would_leave(join: Joining) -> None:
    code, lines = join("--check", agreed=False)
    assert code == 0 and any("10 samples as 64 numbers each" in line for line in lines)
    assert join.refused(agreed=False)


@pytest.mark.parametrize("check", [("--check",), ()], ids=["check", "join"])
def test_who_insists_on_another_spec_is_told_both(check: tuple[str, ...], join: Joining) -> None:
    line = join.refused(*check, "--spec", join.mine(*TWO, "eta=0.2"))
    assert "needs optimiser.eta=0.2; got optimiser.eta=0.1" in line


def test_another_number_of_rounds_is_another_spec(join: Joining) -> None:
    assert "needs R=7; got R=1" in join.refused("--check", "--spec", join.mine(*TWO, "R=7"))


OWN = ("model=tests.deploy.test_handshake:tiny", "cut=3")


def test_code_that_the_server_names_is_run_only_where_the_client_names_it_too(join: Joining) -> None:
    assert join.refused("--check", spec=(*TWO, *OWN), agreed=False) == (
        "the server's spec names code of its own; got tests.deploy.test_handshake:tiny. "
        "Give --code with your own copy of the code, or --spec, so that you say which code is run."
    )
    assert join("--check", "--spec", join.mine(*TWO, *OWN), spec=(*TWO, *OWN))[0] == 0


def offering(monkeypatch: pytest.MonkeyPatch, change: Callable[[Spec], Spec], **more: Any) -> None:
    """A server that offers something else than it runs."""

    def build_terms(spec: Spec, *rest: Any) -> Terms:
        other = change(spec)
        offered = replace(handshake.build_terms(spec, *rest), spec=other.to_toml())
        return replace(offered, **{"spec_hash": handshake.compute_digest(offered, other), **more})

    monkeypatch.setattr(server_program, "build_terms", build_terms)


@pytest.mark.parametrize("what", ["name", "loss"])
def test_code_that_the_server_names_is_not_even_looked_for(
    what: str, join: Joining, monkeypatch: pytest.MonkeyPatch
) -> None:
    def named(spec: Spec) -> Spec:
        return spec.model_copy(update={"model": spec.model.model_copy(update={what: "nowhere_at_all:function"})})

    offering(monkeypatch, named)
    assert join.refused("--check", agreed=False).startswith("the server's spec names code of its own; got ")


def test_a_spec_under_another_ones_name_is_not_believed(join: Joining, monkeypatch: pytest.MonkeyPatch) -> None:
    offering(monkeypatch, lambda spec: spec, spec_hash="0123456789ab")
    assert "needs 0123456789ab; got " in join.refused("--check")


# The engine


def test_a_host_without_the_engine_of_the_run_says_what_it_lacks(
    join: Joining, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_fast, "find_obstacle", lambda: "no library for this processor")
    assert join.refused("--check").startswith("this host lacks the engine fast; got no library for this processor")
    assert join("--check", spec=(*TWO, "engine=reference"))[0] == 0


def test_who_computes_with_another_engine_is_refused(join: Joining, monkeypatch: pytest.MonkeyPatch) -> None:
    accept = client_program.Accept

    def otherwise(spec_hash: str, engine: str, *rest: Any, **more: Any) -> Any:
        return accept(spec_hash, "reference", *rest, **more)

    monkeypatch.setattr(client_program, "Accept", otherwise)
    line = join.refused("--check")
    assert line.startswith("the server refused: this run is computed by the engine fast, not reference")


# The data


def images(folder: Path, shape: tuple[int, ...], y: list[int]) -> Path:
    np.savez(folder / "brought.npz", x=np.zeros((len(y), *shape), np.uint8), y=np.array(y, int))
    return folder / "brought.npz"


@pytest.mark.parametrize("check", [("--check",), ()], ids=["check", "join"])
@pytest.mark.parametrize(
    ("shape", "y", "why"),
    [
        ((7, 7), [0, 1], "do not have this shape; needs (1, 8, 8), (8, 8, 1), (8, 8) or flat rows of 64; got (7, 7)"),
        ((3, 8, 8), [0, 1], "got (3, 8, 8)"),
        ((8, 8), [0, 10], "are not this run's classes; needs one of 0, 1, 2, 3, 4, 5, 6, 7, 8, 9; got 10"),
        ((8, 8), [], "holds no images"),
    ],
)
def test_data_of_another_kind_are_told_before_the_first_turn(
    shape: tuple[int, ...], y: list[int], why: str, check: tuple[str, ...], join: Joining
) -> None:
    line = join.refused(*check, data=images(join.folder, shape, y))
    assert why in line and str(join.folder / "brought.npz") in line


def test_a_single_image_is_enough(tmp_path: Path) -> None:
    """Fewer than a batch: each of its steps is on what there is."""
    stage = LocalDeployment(small_spec(tmp_path, *TWO), tmp_path)
    stage.join(0, data=images(tmp_path, (8, 8), [3]))
    stage.join(1)
    stage.play()
    assert set(stage.words.values()) == {"all rounds are done"}
    assert [event["steps"] for event in stage.events("committed")] == [2, 2]


@pytest.mark.parametrize("engine", ["reference", "fast"])
def test_a_device_needs_the_reference_engine_and_is_recorded_with_the_cpu_level(engine: str, tmp_path: Path) -> None:
    spec = small_spec(tmp_path, *TWO, f"engine={engine}")
    write_client_data(spec, tmp_path / "data")
    options = ClientOptions("", 0, tmp_path / "data/client-0000/data.npz", agreed=AgreedSpec(spec), device="meta")
    client, data = ClientProgram(options, print), load_data(spec.data)
    terms = build_terms(spec, data)
    if engine == "fast":
        with expect_error(InputError, value="meta", limit="cpu", hint="engine=reference"):
            client._accept_terms(terms)
    else:
        assert client._accept_terms(terms).cpu == build_terms(spec, data, device="meta").cpu == f"{terms.cpu} + meta"


def test_a_step_on_all_samples_has_a_limit(join: Joining) -> None:
    full: dict[str, Any] = {"spec": (*TWO, "draw=full"), "limits": Limits(batch=20)}
    assert join("--check", **full, data=images(join.folder, (8, 8), [0] * 20))[0] == 0
    line = join.refused("--check", **full, data=images(join.folder, (8, 8), [0] * 21))
    assert line.startswith("the server refused: a step on all of 21 samples is too long. Bring at most 20")
    assert join("--check", data=images(join.folder, (8, 8), [0] * 21))[0] == 0


# Every refusal says the way out, and names the right value

WAY_OUT = re.compile(r"\. [A-Z].*\.$")


def test_a_host_without_the_engine(join: Joining, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_fast, "find_obstacle", lambda: "no library for this processor")
    assert WAY_OUT.search(join.refused("--check"))


def test_another_engine(join: Joining, monkeypatch: pytest.MonkeyPatch) -> None:
    accept = client_program.Accept
    monkeypatch.setattr(client_program, "Accept", lambda h, e, *a, **k: accept(h, "reference", *a, **k))
    assert WAY_OUT.search(join.refused("--check"))


def test_a_step_on_too_many_samples(join: Joining) -> None:
    data = images(join.folder, (8, 8), [0] * 21)
    assert WAY_OUT.search(join.refused("--check", spec=(*TWO, "draw=full"), data=data, limits=Limits(batch=20)))


def test_no_images(join: Joining) -> None:
    assert WAY_OUT.search(join.refused("--check", data=images(join.folder, (8, 8), [])))


def test_a_spec_under_another_name(join: Joining, monkeypatch: pytest.MonkeyPatch) -> None:
    offering(monkeypatch, lambda spec: spec, spec_hash="0123456789ab")
    assert WAY_OUT.search(join.refused("--check"))


def test_the_loss_is_named_where_the_loss_is_the_servers_code(join: Joining, monkeypatch: pytest.MonkeyPatch) -> None:
    offering(monkeypatch, lambda s: s.model_copy(update={"model": s.model.model_copy(update={"loss": "far:away"})}))
    assert "got far:away" in join.refused("--check", agreed=False)
