"""Is a deployed run the simulated one, to the bit, in its weights and in its record?"""

from pathlib import Path

import pytest

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
