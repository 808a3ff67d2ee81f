"""Do deployed runs end with the frozen weights and rows of tests/golden/frozen_results.json, on every route?"""

from pathlib import Path
from typing import Any

import pytest

from splitrelay.network.server_connection import FED_SERVER_NUMBER
from splitrelay.runs.spec import load_spec
from splitrelay.security.authority import open_authority
from tests.golden.frozen_results import get_cases, get_processor, hash_file, hash_rows, read_table, write_images
from tests.support.deployment import LocalDeployment

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
