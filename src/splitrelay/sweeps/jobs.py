"""Jobs of a sweep: one point that is run somewhere, its status, and the interface of the places that run jobs.

A job and its status consist of text and numbers, so that they can be sent to other processes and hosts.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event
from typing import Any, Protocol, TypeVar

from splitrelay.atomic_files import write_text
from splitrelay.errors import Diverged, SplitrelayError, find_user_code

T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """One point to run: its name, the content of its spec, its run directory, evaluations between checkpoints."""

    name: str
    spec: dict[str, Any]
    path: str
    checkpoint: int = 10
    device: str = "cpu"

    def to_dict(self) -> dict[str, Any]:
        """Return the job for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class JobStatus:
    """The state of a job: running (with its last round, if any), done, diverged, failed, stopped or waiting."""

    name: str
    state: str
    round: int | None = None
    last_evaluation: float | None = None  # the test accuracy of this round
    why: str = ""


@dataclass(frozen=True)
class Shard:
    """The part of a sweep for host i of n: every n-th point, starting with the i-th. Hosts need no communication."""

    i: int = 1
    n: int = 1

    @property
    def suffix(self) -> str:
        """Return the suffix of the files of this shard."""
        return "" if self.n == 1 else f"-{self.i}-of-{self.n}"

    def select(self, items: Sequence[T]) -> list[T]:
        """Return the items of this shard."""
        return list(items[self.i - 1 :: self.n])


ALL = Shard()


class JobRunner(Protocol):
    """A place that runs jobs: the cores of this machine, or a cluster."""

    def run(self, jobs: Sequence[Job], stop: Event, /) -> Generator[JobStatus | None, None, None]:
        """Run all jobs, as many at a time as there are cores, and yield what happens to them.

        None is yielded from time to time, so that the caller can update its display. Once `stop` is set, no further
        job starts, and running jobs end after their current visit.
        """
        ...


def run_job(job: Job, stop: Event, report: Callable[[JobStatus], object]) -> JobStatus:
    """Run a job in this process.

    Args:
        job: The job.
        stop: Once set, the run ends after its current visit.
        report: Called with the status after every row.

    Returns:
        The last status.
    """
    # Imported here because torch takes seconds to import, and processes that only send jobs do not need it.
    from splitrelay.runs.execute import execute  # noqa: PLC0415
    from splitrelay.runs.run_directory import RunDirectory  # noqa: PLC0415
    from splitrelay.runs.spec import Spec  # noqa: PLC0415

    path = Path(job.path)
    try:
        spec = Spec.model_validate(job.spec)
        for progress in execute(spec, RunDirectory(path), checkpoint=job.checkpoint, device=job.device, stop=stop):
            report(JobStatus(job.name, "running", progress.row["round"], progress.row["test_accuracy"]))
    except KeyboardInterrupt:
        return JobStatus(job.name, "stopped")
    except Diverged as error:
        return JobStatus(job.name, "diverged", why=str(error))
    except SplitrelayError as error:
        return JobStatus(job.name, "failed", why=str(error))
    except Exception as error:
        with suppress(SplitrelayError):
            write_text(path / "traceback.txt", traceback.format_exc())
        first = (str(error).splitlines() or [""])[0]
        place = find_user_code(error)
        what = f"error in your code, {place}: " if place else "unexpected "
        why = f"{what}{type(error).__name__}: {first}. The traceback is in {path / 'traceback.txt'}"
        return JobStatus(job.name, "failed", why=why)
    return JobStatus(job.name, "done")
