"""Group runs that differ only in their seed, and record which runs a table or figure was made from."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from splitrelay import __version__
from splitrelay.atomic_files import write_text
from splitrelay.data.datasets import SETS
from splitrelay.errors import InputError
from splitrelay.reports.labels import describe_setting, format_value_label, get_key_label
from splitrelay.runs.packed_records import has_record
from splitrelay.runs.records import Run
from splitrelay.runs.run_directory import RunDirectory
from splitrelay.runs.sources import read_sources
from splitrelay.runs.spec import SEEDS, Spec
from splitrelay.runs.user_parts import list_code

# Other seeds repeat a setting, more rounds extend it, and watching changes nothing.
REPEATS = ("seed", "R", "every")
NAMED = 3  # runs that a note names before it only counts


@dataclass(frozen=True)
class Group:
    """One setting: its runs, one for each seed, the paper's seeds first."""

    runs: tuple[Run, ...]

    @property
    def spec(self) -> Spec:
        """What they have in common (its seed and R are those of the first)."""
        return self.runs[0].spec

    @property
    def seeds(self) -> tuple[int, ...]:
        """In the order of the runs."""
        return tuple(run.spec.seed for run in self.runs)

    @property
    def complete(self) -> bool:
        """Whether every run has all its rounds, or has diverged."""
        return all(is_complete(run) or run.has_diverged for run in self.runs)

    @property
    def diverged(self) -> tuple[Run, ...]:
        """Return the runs that diverged."""
        return tuple(run for run in self.runs if run.has_diverged)


def is_complete(run: Run) -> bool:
    """Whether the last round has been seen; records that are published without weights are complete too."""
    return bool(run.rows) and run.rows[-1]["round"] >= run.spec.R


def find_state(run: Run) -> str:
    """Return finished, diverged, running or stopped."""
    directory = RunDirectory(run.path)
    if is_complete(run):
        return "finished"
    if has_record(directory.diverged):
        return "diverged"
    return "running" if directory.is_locked() else "stopped"


def find_differing_keys(specs: Iterable[Spec], leaving: Collection[str] = ()) -> list[str]:
    """The dotted keys in which these specs are not all the same, in the spec's order."""
    flats = [spec.flatten() for spec in specs]
    names = flats[0] if flats else {}
    return [name for name in names if name not in leaving and any(flat[name] != flats[0][name] for flat in flats)]


def find_label_keys(specs: Iterable[Spec]) -> list[str]:
    """Return the keys that a label of a setting needs beside its algorithm: those that do not follow from it."""
    by_algorithm: dict[str, list[Spec]] = {}
    for spec in (together := list(specs)):
        by_algorithm.setdefault(spec.algorithm, []).append(spec)
    found = {key for same in by_algorithm.values() for key in find_differing_keys(same, (*REPEATS, "algorithm"))}
    return [key for key in find_differing_keys(together) if key in found]


def describe_keys(spec: Spec, keys: Iterable[str]) -> str:
    """'eta=0.1, clip=none': a spec by some of its keys."""
    flat = spec.flatten()
    return ", ".join(f"{get_key_label(key)}={format_value_label(flat[key])}" for key in keys)


def group_runs(runs: Sequence[Run]) -> tuple[list[Group], list[str]]:
    """Runs by setting, and what must be said: which of them do not count, and why."""
    seen = [run for run in runs if run.rows]
    if not seen:
        raise InputError("none of these runs has a row yet", hint="Wait for the first, or run one.")
    by_setting: dict[str, dict[int, Run]] = {}
    for run in sorted(seen, key=lambda run: (is_complete(run), run.rows[-1]["round"], len(run.rows))):
        by_setting.setdefault(_describe_setting(run), {})[run.spec.seed] = run  # of two the longer, the closer watched
    once = [sorted(found.values(), key=lambda run: _describe_place(run.spec.seed)) for found in by_setting.values()]
    groups = [Group(tuple(_choose_complete(found))) for found in once]
    return groups, _describe_left_out(runs, seen, [run for found in once for run in found], groups)


def group_all_runs(runs: Sequence[Run]) -> list[Group]:
    """Return the groups of all runs with rows. A run that does not count in a table is a group of its own."""
    seen = [run for run in runs if run.rows]
    groups = group_runs(seen)[0] if seen else []
    counted = {run.path for group in groups for run in group.runs}
    return groups + [Group((run,)) for run in seen if run.path not in counted]


def _choose_complete(runs: list[Run]) -> list[Run]:
    """Those with all their rounds or diverged; where there is none, all of them as far as they are."""
    return [run for run in runs if is_complete(run) or run.has_diverged] or runs


def _describe_left_out(runs: Sequence[Run], seen: list[Run], once: list[Run], groups: list[Group]) -> list[str]:
    counted = [run for group in groups for run in group.runs]
    diverged = [run for run in once if run.has_diverged]
    short = [run for run in once if not is_complete(run) and run not in diverged]
    sentences = {
        "diverged, counted with the last value": diverged,
        "without a row yet": [run for run in runs if not run.rows],
        "there twice, the longer one counted": [run for run in seen if run not in once and not is_complete(run)],
        "not run to the last round, not counted": [run for run in short if run not in counted],
        "not run to the last round, counted as far as they are": [run for run in short if run in counted],
    }
    return [f"{what[0].upper()}{what[1:]}: {_format_list(found)}." for what, found in sentences.items() if found]


def _format_list(runs: Sequence[Run]) -> str:
    """The first few by name and how far they are, and how many more."""
    names = [f"{run.path.name} ({run.rows[-1]['round'] if run.rows else 0} of {run.spec.R})" for run in runs[:NAMED]]
    return ", ".join(names) + (f" and {len(runs) - NAMED} more" if len(runs) > NAMED else "")


def _describe_setting(run: Run) -> str:
    """Return all keys that make a setting, and the hashes of the user's code and data if the run has any."""
    spec = run.spec
    has_own = spec.data.name not in SETS or list_code(spec) or spec.model.init is not None
    sources = read_sources(run.path)[0] if has_own else None
    return repr([(name, value) for name, value in spec.flatten().items() if name not in REPEATS] + [sources])


def _describe_place(seed: int) -> tuple[int, int]:
    return (SEEDS.index(seed) if seed in SEEDS else len(SEEDS)), seed


def describe_seeds(groups: Iterable[Group], asked: Sequence[int] = SEEDS) -> list[str]:
    """A sentence for every number of seeds that is below what was asked for; the paper has three."""
    few: dict[int, list[Group]] = {}
    for group in groups:
        if len(group.seeds) < len(asked):
            few.setdefault(len(group.seeds), []).append(group)
    return [
        f"{_describe_seeds(count)} instead of {len(asked)}: {_describe_settings(few[count])}." for count in sorted(few)
    ]


def _describe_seeds(count: int) -> str:
    return "One seed" if count == 1 else f"{count} seeds"


def _describe_settings(groups: Sequence[Group]) -> str:
    names = [f"{describe_setting(group.spec)} (seed {', '.join(map(str, group.seeds))})" for group in groups[:NAMED]]
    more = len(groups) - NAMED
    return "; ".join(names) + (f"; and {more} more setting{'s' * (more > 1)}" if more > 0 else "")


def write_provenance(path: Path, runs: Sequence[Run], command: str, said: Sequence[str]) -> Path:
    """Write FILE.json with the caption and notes of FILE, its runs, and the command that makes it again."""
    content = {
        "file": path.name,
        "command": command,
        "splitrelay": __version__,
        "caption": " ".join(said),
        "runs": [_describe_run(run) for run in runs],
    }
    return _write_json(path.with_name(f"{path.name}.json"), content)


def _write_json(path: Path, content: dict[str, Any]) -> Path:
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    return path


def _describe_run(run: Run) -> dict[str, Any]:
    seen = run.rows[-1]["round"] if run.rows else None
    own = {"path": str(run.path), "hash": run.spec.hash, "algorithm": run.spec.algorithm, "seed": run.spec.seed}
    return {**own, "rounds": seen, "R": run.spec.R, "complete": is_complete(run)}
