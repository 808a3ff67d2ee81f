"""Against a real Ray with two raylets on this machine: the bits of a local run, also when one of them is killed."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster

from splitrelay.errors import Diverged
from splitrelay.kernels import find_obstacle
from splitrelay.randomness import Purpose, rng
from splitrelay.runs.execute import execute
from splitrelay.runs.run_directory import RunDirectory
from splitrelay.sweeps.jobs import Job, run_job
from splitrelay.sweeps.points import Point, expand_points
from splitrelay.sweeps.ray_backend import (
    QUIET,
    SHARED,
    RayBackend,
    choose_folder,
    read_result_files,
    write_result_files,
)
from splitrelay.sweeps.ray_clients import open_ray_clients
from splitrelay.sweeps.sweep import load_status, run_sweep
from tests.support.error_fields import expect_error

STORE = 80 * 1024 * 1024
# A raylet that is gone is missed after some seconds; one that is slow, because others use the machine, is not.
ALERT = {"health_check_period_ms": 1000, "health_check_timeout_ms": 5000, "health_check_failure_threshold": 5}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "own.npz"
    generator = rng(4, Purpose.INSTANCES)
    np.savez(path, x=generator.integers(0, 256, (90, 8, 8), dtype=np.uint8), y=np.arange(90) % 3)
    return path


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two raylets with a core each; the driver is at the first."""
    os.environ.update(QUIET)
    node = {"num_cpus": 1, "object_store_memory": STORE}
    made = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False, "_system_config": ALERT})
    made.add_node(**node)
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


def points(own: Path, R: int, **more: list[str]) -> list[Point]:
    words = {"data": [str(own)], "model": ["mlp"], "M": ["5"], "K": ["2"], "C": ["1"], "R": [str(R)]}
    return expand_points(None, {**words, **more}).points


def rows(path: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if "seconds" not in k} for row in RunDirectory(path).read_rows()]


def assert_same(one: Path, other: Path) -> None:
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    assert rows(one) == rows(other)


@pytest.mark.parametrize("algorithm", ["fedavg", "splitfed-v3", "scaffold"])
@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_visits_on_actors_have_the_bits_of_one_process(
    cluster: Cluster, own: Path, tmp_path: Path, algorithm: str, engine: str
) -> None:
    if engine == "fast" and find_obstacle():
        pytest.skip("needs the kernels")
    (point,) = points(own, 4, algorithm=[algorithm], clip=["1"], engine=[engine])
    with open_ray_clients(point.spec, None, Event()) as clients:
        for progress in execute(point.spec, RunDirectory(tmp_path / "ray"), clients=clients):
            if progress.row["round"] == 2:
                ray.kill(clients.actors[0], no_restart=False)  # it comes back, and makes its visit again
    list(execute(point.spec, RunDirectory(tmp_path / "local")))
    assert_same(tmp_path / "ray", tmp_path / "local")


def test_what_stops_a_visit_stops_a_run_on_actors(cluster: Cluster, own: Path, tmp_path: Path) -> None:
    (wild,) = points(own, 4, algorithm=["fedavg"], eta=["1e25"])
    stop = Event()
    with open_ray_clients(wild.spec, None, stop) as clients:
        with expect_error(Diverged, hint="eta"):
            list(execute(wild.spec, RunDirectory(tmp_path / "wild"), clients=clients))
        stop.set()
        with pytest.raises(KeyboardInterrupt):
            list(execute(wild.spec, RunDirectory(tmp_path / "stopped"), clients=clients))


def test_a_stop_reaches_points_on_other_hosts(cluster: Cluster, own: Path, tmp_path: Path) -> None:
    stop = Event()
    with pytest.raises(KeyboardInterrupt):
        for _, news in run_sweep(points(own, 100_000, seed=["1", "2", "3"]), tmp_path, RayBackend(), stop=stop):
            if news and news.round == 3:
                stop.set()
    states = [entry.state for entry in load_status(tmp_path).entries.values()]
    assert "stopped" in states and set(states) <= {"stopped", "waiting"}


def test_a_folder_that_is_not_shared_gets_what_a_finished_run_leaves(own: Path, tmp_path: Path) -> None:
    (point,) = points(own, 2)
    job = Job(point.name, point.spec.model_dump(), str(tmp_path / "home" / point.name))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / SHARED).write_text("here")
    with choose_folder(job, "here") as (there, at_home):
        assert at_home and there == job
    with choose_folder(job, "elsewhere") as (there, at_home):
        assert not at_home and there == replace(job, path=there.path) != job
        assert run_job(there, Event(), lambda news: None).state == "done"
        write_result_files(read_result_files(Path(there.path)), Path(job.path))
    assert not Path(there.path).exists()
    list(execute(point.spec, RunDirectory(tmp_path / "local")))
    assert_same(Path(job.path), tmp_path / "local")
    assert RunDirectory(Path(job.path)).is_finished(2)


def test_points_of_a_raylet_that_is_killed_go_on_elsewhere(cluster: Cluster, own: Path, tmp_path: Path) -> None:
    """The last test: afterwards there is one raylet left."""
    found = points(own, 200, seed=["1", "2", "3"])
    lost = next(iter(cluster.worker_nodes))
    seen: dict[str, int] = {}
    dealt: dict[str, int] = {}  # when a run was begun: a run that is taken up keeps its partition
    for _, news in run_sweep(found, tmp_path / "sweep", RayBackend(), checkpoint=1):
        if news and news.round is not None:
            seen[news.name] = news.round
        if not dealt and sum(r >= 5 for r in seen.values()) == 2:  # both raylets are at work
            dealt = {name: (tmp_path / "sweep" / name / "partition.npz").stat().st_mtime_ns for name in seen}
            cluster.remove_node(lost, allow_graceful=False)
    assert len(dealt) == 2 and load_status(tmp_path / "sweep").count("done") == 3
    for point in found:
        list(execute(point.spec, RunDirectory(tmp_path / "local" / point.name)))
        assert_same(tmp_path / "sweep" / point.name, tmp_path / "local" / point.name)
    assert dealt == {name: (tmp_path / "sweep" / name / "partition.npz").stat().st_mtime_ns for name in dealt}
