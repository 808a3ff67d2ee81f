"""Peer to peer, past a server that cannot read the clients' half: the same weights, and only the evaluator has them."""

from pathlib import Path

import pytest
from relay_kit import Stage, simulated, small_spec
from safetensors.numpy import load_file

from splitrelay.deploy.rehearsal import agreeing, untimed
from splitrelay.errors import InputError


def staged(tmp_path: Path, *words: str) -> Stage:
    spec = small_spec(tmp_path, "route=peer-to-peer", *words)
    stage = Stage(spec, tmp_path, keys=True)
    for m in stage.partition.clients:
        more = {"test": tmp_path / "data" / "test.npz", "keep": tmp_path / "model"} if m == spec.evaluator else {}
        stage.join(m, **more)
    return stage


@pytest.mark.parametrize("engine", ["engine=fast", "engine=reference"])
def test_the_evaluator_writes_the_simulated_model(engine: str, tmp_path: Path) -> None:
    stage = staged(tmp_path, engine, "clip=1", "evaluator=2")
    expected = simulated(stage.spec, tmp_path / "simulated")
    stage.play()
    assert (tmp_path / "model").read_bytes() == expected.model.read_bytes()
    assert agreeing(untimed(stage.serving.directory), untimed(expected), "peer-to-peer")
    assert not stage.serving.directory.model.exists()


def test_nothing_at_the_server_holds_the_clients_half(tmp_path: Path) -> None:
    stage = staged(tmp_path, "R=1")
    stage.play()
    weights = load_file(tmp_path / "model")
    first = next(iter(weights.values())).tobytes()
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) > 3
    assert not [path for path in files if first[:64] in path.read_bytes()]


def test_without_keys_nobody_can_seal(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, "route=peer-to-peer")
    stage = Stage(spec, tmp_path)
    stage.join(0)
    stage.threads[0].join(0)

    def hang_up(port: int) -> None:
        stage.listening.set()
        stage.threads[0].join(20)
        stage.stop.set()

    stage.serving.listening = hang_up
    with pytest.raises(KeyboardInterrupt):
        stage.play()
    assert isinstance(stage.words[0], InputError) and "sealed" in str(stage.words[0])
