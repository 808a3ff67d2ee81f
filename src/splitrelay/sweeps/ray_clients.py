"""Make the visits of one large run on Ray actors, one per core. The bits are those of one process."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from threading import Event
from typing import Any

import ray
import torch

from splitrelay.algorithms.base import Cost, Done, Memory, Outcome, Step, UpdateRule, Visit
from splitrelay.errors import Diverged, InputError, SplitrelayError, WorkError
from splitrelay.runs.build import build_engine, build_network, build_partition, load_data, resolve_spec
from splitrelay.runs.spec import Spec
from splitrelay.sweeps.ray_backend import connect_ray

AHEAD = 2  # visits per actor: one that it computes, and one that is ready when it ends
MAX_LOST = 5  # hosts that may be lost; another actor can repeat a visit because visits have no side effects
POLL = 1.0  # seconds between two checks of `stop`


class VisitActor:
    """A Ray actor with the data, partition and engine of a spec. It can make the visit of any client."""

    def __init__(self, spec: dict[str, Any], cwd: str) -> None:
        if Path(cwd).is_dir():
            os.chdir(cwd)  # paths of data and models may be relative to it
        parsed = Spec.model_validate(spec)
        torch.set_num_threads(parsed.threads or 1)  # bits depend on it
        data = load_data(parsed.data)  # memory-mapped, so that the actors of a host share it
        network, _ = build_network(parsed, data, build_partition(parsed, data))
        self.engine = build_engine(parsed, network)

    def visit(self, content: dict[str, Any], x: Any, shift: Any) -> dict[str, Any]:
        """Make one visit. Arguments and result are texts, numbers and arrays."""
        settings = content.pop("step")
        rule, memory = UpdateRule(**settings.pop("rule")), content.pop("memory")
        step = Step(**settings, rule=rule, shift=None if shift is None else torch.tensor(shift))
        try:
            visit = Visit(**content, x=torch.tensor(x), step=step, memory=_unpack_memory(memory))
            done = self.engine.run(visit)
        except SplitrelayError as error:
            fields = {name: getattr(error, name) for name in ("value", "limit", "hint")}
            texts = {name: None if field is None else str(field) for name, field in fields.items()}
            return {"diverged": isinstance(error, Diverged), "what": error.what, "fields": texts}
        return {"x": done.x.numpy(), "cost": asdict(done.cost), "memory": _pack_memory(done.memory)}


class RayClients:
    """All clients of a run, on the actors of a cluster."""

    def __init__(self, spec: Spec, stop: Event) -> None:
        cores = int(ray.cluster_resources().get("CPU", 0))  # type: ignore[no-untyped-call]
        if cores < 1:
            raise InputError("this Ray cluster has no cores", hint="Start it with --num-cpus.")
        actor_class = ray.remote(VisitActor).options(num_cpus=1, max_restarts=MAX_LOST, max_task_retries=MAX_LOST)
        self.actors: list[Any] = [actor_class.remote(spec.model_dump(), str(Path.cwd())) for _ in range(cores)]
        self.stop = stop

    def run(self, visit: Visit[torch.Tensor], /) -> Outcome[torch.Tensor]:
        """Make one visit."""
        return next(self.run_all([visit]))

    def run_all(self, visits: Iterable[Visit[torch.Tensor]], /) -> Iterator[Outcome[torch.Tensor]]:
        """Make all visits, as many at a time as there are actors, and yield outcomes in the order of the visits."""
        waiting, idle = deque(enumerate(visits)), deque(self.actors * AHEAD)
        running: dict[Any, tuple[int, Any]] = {}
        outcomes: dict[int, Outcome[torch.Tensor]] = {}
        models: dict[int, Any] = {}  # each x is sent to a host once, even if many visits start from it
        for number in range(len(waiting)):
            while number not in outcomes:
                while waiting and idle:
                    j, visit = waiting.popleft()
                    actor = idle.popleft()
                    running[self._start(actor, visit, models)] = j, actor
                for reference in ray.wait(list(running), timeout=POLL)[0]:
                    j, actor = running.pop(reference)
                    outcomes[j] = _get_outcome(reference)
                    idle.append(actor)
            yield outcomes.pop(number)

    def close(self) -> None:
        """End the actors."""
        for actor in self.actors:
            ray.kill(actor)

    def _start(self, actor: Any, visit: Visit[torch.Tensor], models: dict[int, Any]) -> Any:
        if self.stop.is_set():
            raise KeyboardInterrupt
        if id(visit.x) not in models:
            models[id(visit.x)] = ray.put(visit.x.numpy())
        step = {name: value for name, value in vars(visit.step).items() if name != "shift"}
        step["rule"] = asdict(visit.step.rule)
        content = {"r": visit.r, "i": visit.i, "m": visit.m, "K": visit.K, "step": step}
        content["memory"] = _pack_memory(visit.memory)
        shift = visit.step.shift
        return actor.visit.remote(content, models[id(visit.x)], None if shift is None else shift.numpy())


@contextmanager
def open_ray_clients(spec: Spec, address: str | None, stop: Event) -> Iterator[RayClients]:
    """Connect to a Ray and yield the clients of a run on it."""
    with connect_ray(address):
        clients = RayClients(resolve_spec(spec)[0], stop)
        try:
            yield clients
        finally:
            clients.close()


def _get_outcome(reference: Any) -> Outcome[torch.Tensor]:
    try:
        answer = ray.get(reference)
    except ray.exceptions.RayError as error:
        raise WorkError("the clients on Ray are lost", value=str(error).splitlines()[0]) from None
    if "what" in answer:
        raise (Diverged if answer["diverged"] else WorkError)(answer["what"], **answer["fields"])
    return Done(torch.tensor(answer["x"]), Cost(**answer["cost"]), _unpack_memory(answer["memory"]))


def _pack_memory(memory: Memory[torch.Tensor] | None) -> tuple[list[Any], int] | None:
    return None if memory is None else ([vector.numpy() for vector in memory.vectors], memory.steps)


def _unpack_memory(packed: tuple[list[Any], int] | None) -> Memory[torch.Tensor] | None:
    return None if packed is None else Memory(tuple(map(torch.tensor, packed[0])), packed[1])
