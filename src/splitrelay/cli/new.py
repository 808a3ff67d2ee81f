"""`splitrelay new` and `splitrelay presets`: a spec to begin with, and the settings of the paper by name."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import click

from splitrelay.cli.click_extensions import Command
from splitrelay.cli.console import emit, format_option, note, say
from splitrelay.errors import InputError
from splitrelay.table import Table


@click.command(cls=Command, example="splitrelay new first")
@click.argument("name", required=False)
@click.option("--schema", is_flag=True, help="Print the JSON schema of specs, for your editor, and write nothing.")
def new(name: str | None, schema: bool) -> None:
    """Write NAME.toml: a commented spec that runs as it is, in seconds (digits, 10 clients)."""
    from splitrelay.atomic_files import write_text
    from splitrelay.runs.spec import build_schema, format_template

    if schema:
        say(json.dumps(build_schema(), indent=2))
        return
    if not name:
        raise InputError("new needs a name", hint="For example: splitrelay new first")
    path = Path(name if name.endswith(".toml") else f"{name}.toml")
    if path.exists():
        raise InputError(f"{path} is there already", hint="Choose another name, or remove it.")
    write_text(path, format_template(path.stem))
    say(f"wrote {path}")
    note(f"next: {shlex.join(['splitrelay', 'run', str(path)])}")


@click.command(cls=Command, example="splitrelay presets")
@click.argument("part", default="")
@format_option
def presets(part: str, shape: str) -> None:
    """The settings of the paper's tables and figures, by name: splitrelay run preset=NAME algorithm=fedavg.

    PART keeps those whose name holds it. Rates are the paper's best of each algorithm; protocol=paper unless you say
    protocol=authors; the paper's seeds are 1234, 666 and 22.
    """
    from splitrelay.paper.presets import PRESETS, PROTOCOLS, rate

    rows = [
        (preset.name, rate(preset, "ssl"), rate(preset, "fedavg"), preset.clip, preset.words)
        for preset in PRESETS.values()
        if part in preset.name
    ]
    if not rows:
        raise InputError(f"no preset's name holds '{part}'", hint="splitrelay presets shows them all.")
    notes = tuple(f"protocol={name}: {words}" for name, words in PROTOCOLS.items())
    table = Table(("preset", "eta of ssl", "eta of fedavg", "clip", "what"), rows, notes=notes)
    emit(table, [dict(zip(table.columns, row, strict=True)) for row in rows], shape)
