"""The visits of one large run on Ray actors, one a core, each serving any client: the same bits as in one process."""

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

from splitrelay.algorithms.base import Cost, Done, Outcome, Step, Visit
from splitrelay.data import load
from splitrelay.errors import Diverged, InputError, SplitrelayError, WorkError
from splitrelay.runs.build import build_engine, build_network, build_partition, resolve_spec
from splitrelay.runs.spec import Spec
from splitrelay.sweeps.ray_backend import joined

AHEAD = 2  # visits that an actor has before it: one it is at, one that need not be waited for
LOST = 5  # hosts that may be lost; visits are pure, so another actor makes them again
TICK = 1.0  # seconds between two looks at whether we are to stop


class Host:
    """An actor: data, partition and engine of a spec, ready for any client's visit."""

    def __init__(self, spec: dict[str, Any], cwd: str) -> None:
        if Path(cwd).is_dir():
            os.chdir(cwd)  # data and models may be named from there
        torch.set_num_threads(1)  # bits depend on it
        made = Spec.model_validate(spec)
        trial, data = made, load(made.data.name)  # mapped, so that the actors of a host share it
        network, _ = build_network(trial, data, build_partition(made, data))
        self.engine = build_engine(trial, network)

    def visit(self, plain: dict[str, Any], x: Any, shift: Any) -> dict[str, Any]:
        """One visit, from plain words, numbers and arrays, to the same."""
        step = Step(**plain.pop("step"), shift=None if shift is None else torch.tensor(shift))
        try:
            done = self.engine.run(Visit(**plain, x=torch.tensor(x), step=step))
        except SplitrelayError as error:
            return {"diverged": isinstance(error, Diverged), "why": str(error)}
        return {"x": done.x.numpy(), "cost": asdict(done.cost)}


class RayClients:
    """All clients of a run, on the actors of a cluster."""

    def __init__(self, spec: Spec, stop: Event) -> None:
        cores = int(ray.cluster_resources().get("CPU", 0))  # type: ignore[no-untyped-call]
        if cores < 1:
            raise InputError("this Ray cluster has no cores", hint="Start it with --num-cpus.")
        actor = ray.remote(Host).options(num_cpus=1, max_restarts=LOST, max_task_retries=LOST)
        self.hosts: list[Any] = [actor.remote(spec.model_dump(), str(Path.cwd())) for _ in range(cores)]
        self.stop = stop

    def run(self, visit: Visit[torch.Tensor], /) -> Outcome[torch.Tensor]:
        """One visit."""
        return next(self.run_all([visit]))

    def run_all(self, visits: Iterable[Visit[torch.Tensor]], /) -> Iterator[Outcome[torch.Tensor]]:
        """As many at once as there are actors; answers in the order of the visits."""
        waiting, idle = deque(enumerate(visits)), deque(self.hosts * AHEAD)
        flying: dict[Any, tuple[int, Any]] = {}
        there: dict[int, Outcome[torch.Tensor]] = {}
        models: dict[int, Any] = {}  # each x is sent to a host once, however many visits begin at it
        for number in range(len(waiting)):
            while number not in there:
                while waiting and idle:
                    j, visit = waiting.popleft()
                    host = idle.popleft()
                    flying[self._begun(host, visit, models)] = j, host
                for reference in ray.wait(list(flying), timeout=TICK)[0]:
                    j, host = flying.pop(reference)
                    there[j] = _outcome(reference)
                    idle.append(host)
            yield there.pop(number)

    def close(self) -> None:
        """The actors end."""
        for host in self.hosts:
            ray.kill(host)

    def _begun(self, host: Any, visit: Visit[torch.Tensor], models: dict[int, Any]) -> Any:
        if self.stop.is_set():
            raise KeyboardInterrupt
        if id(visit.x) not in models:
            models[id(visit.x)] = ray.put(visit.x.numpy())
        step = {name: value for name, value in vars(visit.step).items() if name != "shift"}
        plain = {"r": visit.r, "i": visit.i, "m": visit.m, "K": visit.K, "step": step}
        shift = visit.step.shift
        return host.visit.remote(plain, models[id(visit.x)], None if shift is None else shift.numpy())


@contextmanager
def ray_clients(spec: Spec, address: str | None, stop: Event) -> Iterator[RayClients]:
    """The clients of a run on a cluster: joined by its address, or started here."""
    with joined(address):
        clients = RayClients(resolve_spec(spec)[0], stop)
        try:
            yield clients
        finally:
            clients.close()


def _outcome(reference: Any) -> Outcome[torch.Tensor]:
    try:
        answer = ray.get(reference)
    except ray.exceptions.RayError as error:
        raise WorkError("the clients on Ray are lost", value=str(error).splitlines()[0]) from None
    if "why" in answer:
        raise (Diverged if answer["diverged"] else WorkError)(answer["why"])
    return Done(torch.tensor(answer["x"]), Cost(**answer["cost"]))
