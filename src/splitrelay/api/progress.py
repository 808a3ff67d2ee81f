"""Show the progress of a run in a terminal or in a notebook, and nothing anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from splitrelay.data.optional_imports import import_optional


def is_interactive() -> bool:
    """Return whether a person watches: standard error is a terminal, or this is a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return sys.stderr.isatty() or type(shell).__name__ == "ZMQInteractiveShell"


def show_progress(rows: Iterable[Mapping[str, Any]], R: int, shown: bool | None) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a run and show its progress.

    Args:
        rows: The rows as they are computed.
        R: The last round.
        shown: Whether to show it. None means: if a person watches and rich is installed.
    """
    if shown is False or (shown is None and not is_interactive()):
        yield from rows
        return
    progress = import_optional("rich.progress", "a progress bar")
    console = import_optional("rich.console", "a progress bar").Console(stderr=True)
    columns = (
        progress.TextColumn("round {task.completed}/{task.total}"),
        progress.BarColumn(),
        progress.TextColumn("{task.description}"),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=R)
        for row in rows:
            bar.update(task, completed=row["round"], description=describe_row(row))
            yield row


def describe_row(row: Mapping[str, Any]) -> str:
    """Return the loss and all metrics of a row in a few words."""
    values = {name.removeprefix("test_"): value for name, value in row.items() if name.startswith("test_")}
    numbers = {name: value for name, value in values.items() if isinstance(value, float) and value == value}
    return ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
