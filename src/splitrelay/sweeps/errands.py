"""One point carried out in this process, whichever that is."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event

from splitrelay.atomic_files import write_text
from splitrelay.errors import Diverged, SplitrelayError
from splitrelay.runs.execute import execute
from splitrelay.runs.run_directory import RunDirectory
from splitrelay.runs.spec import Spec
from splitrelay.sweeps.jobs import Errand, News


def carry_out(errand: Errand, stop: Event, tell: Callable[[News], object]) -> News:
    """Run the point in this process, telling every row; the last news is returned."""
    try:
        spec, directory = Spec.model_validate(errand.spec), RunDirectory(Path(errand.path))
        for progress in execute(spec, directory, checkpoint=errand.checkpoint, stop=stop):
            tell(News(errand.name, "running", progress.row["round"], progress.row["test_accuracy"]))
    except KeyboardInterrupt:
        return News(errand.name, "stopped")
    except Diverged as error:
        return News(errand.name, "diverged", why=str(error))
    except SplitrelayError as error:
        return News(errand.name, "failed", why=str(error))
    except Exception as error:
        return News(errand.name, "failed", why=_unexpected(error, Path(errand.path)))
    return News(errand.name, "done")


def _unexpected(error: Exception, path: Path) -> str:
    """One line for the table; the rest beside the run."""
    with suppress(SplitrelayError):
        write_text(path / "traceback.txt", traceback.format_exc())
    first = (str(error).splitlines() or [""])[0]
    return f"unexpected {type(error).__name__}: {first}. The rest is in {path / 'traceback.txt'}"
