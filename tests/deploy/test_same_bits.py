"""Is a deployed run the simulated one, to the bit, in its weights and in its record?"""

from pathlib import Path
from typing import Any

import pytest

from splitrelay.network.server_connection import FED_SERVER_NUMBER
from splitrelay.runs.spec import load_spec
from splitrelay.security.authority import open_authority
from tests.golden.frozen_results import get_cases, get_processor, hash_file, hash_rows, read_table, write_images
from tests.support.deployment import LocalDeployment, remove_times, simulate_run, small_spec

WAYS = [
    "algorithm=ssl model=lenet-small cut=pool1 engine=reference momentum=0.5 K=5",
    "algorithm=fedavg model=lenet-small engine=reference clip=per-half",
    "algorithm=scaffold model=mlp engine=reference",
    "algorithm=ssl model=lenet-small cut=pool1 engine=fast momentum=0.5 K=5",
    "algorithm=scaffold model=mlp engine=fast",
    "algorithm=ssl model=lenet-small clip=1 engine=reference",
    "algorithm=ssl dtype=float64 order=replacement S=5 M=5 momentum=0.5 tau=proportional",
    "algorithm=fedavg placement=whole weighted=true",
    "algorithm=fedavg S=3 clip=per-half",
    "algorithm=splitfed-v2",
    "algorithm=scaffold",
    "algorithm=ssl model=lenet-small clip=1 engine=fast",
    "algorithm=fedavg placement=whole engine=fast draw=full",
    "algorithm=ssl optimiser=adamw clip=1 eta=0.01 eta_server=0.003",
    "algorithm=ssl schedule=cosine period=3 warmup=1 tau=epochs K=1 clip=1",
    "algorithm=fedavg placement=whole momentum=0.9 nesterov=true eta_server=0.05",
    "algorithm=ssl engine=fast M=4 tau=3+1+2+1 output=average output_decay=0.25",
]


@pytest.mark.parametrize("words", WAYS)
def test_deployed_is_simulated(words: str, tmp_path: Path) -> None:
    spec = small_spec(tmp_path, *words.split())
    expected = simulate_run(spec, tmp_path / "simulated")
    stage = LocalDeployment(spec, tmp_path)
    for m in stage.partition.clients:
        stage.join(m)
    rows = stage.play()
    assert stage.serving.directory.model.read_bytes() == expected.model.read_bytes()
    assert remove_times(rows) == remove_times(expected.read_rows())
    assert set(stage.words.values()) == {"all rounds are done"}


# Do deployed runs end with the frozen weights and rows of tests/golden/frozen_results.json, on every route?
CENTRALIZED = ("cut ssl", "cut fedavg", "whole fedavg", "cut scaffold", "cut minibatch-sgd", "cut sflg")


def make_stage(case: str, folder: Path, *words: str, **offer: Any) -> LocalDeployment:
    return LocalDeployment(
        load_spec(None, [f"data={write_images(folder)}", *get_cases()[case], *words]), folder, **offer
    )


def get_frozen(case: str) -> dict[str, str]:
    frozen, processor = read_table()["runs"][case], get_processor(case.split()[0])
    if processor not in frozen:
        pytest.skip(f"no frozen results for {processor}: only for {', '.join(frozen)}")
    found: dict[str, str] = frozen[processor]
    return found


def join_all(stage: LocalDeployment) -> None:
    test = {"test": stage.folder / "data" / "test.npz", "keep": stage.folder / "model"}
    for m in stage.partition.clients:
        stage.join(m, **(test if stage.keys and m == stage.spec.evaluator else {}))


@pytest.mark.parametrize("case", [f"{engine} {kind}" for engine in ("fast", "reference") for kind in CENTRALIZED])
def test_a_deployed_run_ends_with_the_frozen_weights_and_rows(case: str, tmp_path: Path) -> None:
    frozen, stage = get_frozen(case), make_stage(case, tmp_path)
    join_all(stage)
    rows = stage.play()
    assert {"weights": hash_file(stage.serving.directory.model), "rows": hash_rows(rows)} == frozen


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_peer_to_peer_ends_with_the_frozen_weights(engine: str, tmp_path: Path) -> None:
    case = f"{engine} cut ssl"
    frozen, stage = get_frozen(case), make_stage(case, tmp_path, "route=peer-to-peer", keys=True)
    join_all(stage)
    stage.play()
    assert hash_file(tmp_path / "model") == frozen["weights"]


@pytest.mark.parametrize("case", ["fast cut fedavg", "reference cut splitfed-v2"])
def test_a_fed_server_ends_with_the_frozen_weights(case: str, tmp_path: Path) -> None:
    frozen, stage = get_frozen(case), make_stage(case, tmp_path, keys=True, fed=True)
    open_authority(tmp_path / "authority").issue_client("fed", fed=True)
    stage.join(FED_SERVER_NUMBER, keys=tmp_path / "fed", data=None, fed=True)
    join_all(stage)
    stage.play()
    assert hash_file(tmp_path / "model") == frozen["weights"]
