"""The arguments of commands that take a spec: one TOML file and key=value settings; lists and ranges for sweeps."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from splitrelay.cli.key_values import Key, count, number, parse_settings, seed, words
from splitrelay.errors import InputError, suggest_name

if TYPE_CHECKING:
    from splitrelay.runs.spec import Spec

CPU = "cpu"
RANGE_POINTS = 5  # points of a range without a number of points: every point is a run
PATH_KEYS = ("data.name", "model.init")  # their values may contain commas


def device_option(command: Any) -> Any:
    """Add the option --device."""
    return click.option("--device", default=CPU, show_default=True, help="cpu, cuda or mps.")(command)


def check_device(device: str) -> None:
    """Raise InputError if a device other than the CPU does not work on this machine."""
    if device == CPU:
        return
    try:
        from splitrelay.runs.build import get_device
    except ModuleNotFoundError as error:  # a client of the fast engine needs no torch
        if error.name != "torch":
            raise
        hint = "pip install 'splitrelay[deploy]', or leave --device out."
        raise InputError("torch is not installed here", value=device, limit=CPU, hint=hint) from None
    get_device(device)


def list_spec_keys() -> list[Key]:
    """Return the keys of a spec for help texts and completion, generated from the fields of `Spec`."""
    from splitrelay.runs.spec import KEYS

    keys = []
    for key in KEYS.values():
        default = str(key.default).lower() if isinstance(key.default, bool) else key.default
        text = key.description if default is None else f"{key.description} (default {default})"
        keys.append(Key(key.name, words, text, many=False))
    return keys


def load_spec_arguments(command: str, arguments: Sequence[str]) -> Spec:
    """Return the spec of a command line: its file, if there is one, with the settings on top."""
    from splitrelay.runs.spec import load_spec

    file, settings = split_arguments(command, arguments)
    return load_spec(file, [f"{name}={text}" for name, text in settings.items()])


def split_arguments(
    command: str, arguments: Sequence[str], *, lists: bool = False
) -> tuple[Path | None, dict[str, str]]:
    """Separate the spec file from the settings.

    Args:
        command: The command, for messages.
        arguments: Words of the command line.
        lists: Whether the command takes lists of values, for the hint of an error.

    Returns:
        The file or None, and the text of each key.

    Raises:
        InputError: There are two files, the file does not exist, or a key is given twice.
    """
    from splitrelay.runs.spec import KEYS

    files = [argument for argument in arguments if "=" not in argument]
    if len(files) > 1:
        raise InputError(f"{command} takes one spec", value=" ".join(files), hint="Settings are KEY=VALUE.")
    for file in files:
        _check_spec_file(Path(file))
    settings: dict[str, str] = {}
    given: dict[str, str] = {}  # by path: the argument that set the key
    for argument in (argument for argument in arguments if "=" in argument):
        name, _, settings[name] = argument.partition("=")
        path = KEYS[name].path if name in KEYS else name
        if path in given:
            hint = f"Give a list instead: {name}=a,b." if lists else "Give it once."
            raise InputError(f"{name} is given twice", value=f"{given[path]} {argument}", hint=hint)
        given[path] = argument
    return Path(files[0]) if files else None, settings


def _check_spec_file(file: Path) -> None:
    if file.is_dir():
        resume = shlex.join(["splitrelay", "run", str(file / "spec.toml"), "--out", str(file)])
        hint = f"To continue its run: {resume}" if (file / "spec.toml").exists() else "A spec is a TOML file."
        raise InputError(f"{file} is a folder, not a spec", hint=hint)
    near = [path.name for path in file.parent.glob("*.toml")] if file.parent.is_dir() else []
    if not file.exists():
        hint = suggest_name(file.name, near) if near else "splitrelay new NAME writes a spec to start with."
        raise InputError(f"there is no spec {file}", hint=hint)


def expand_arguments(command: str, arguments: Sequence[str]) -> tuple[Path | None, dict[str, list[str]]]:
    """Separate the spec file from the settings, and expand lists (a,b,c) and ranges (from:to[:log|lin][:points]).

    Returns:
        The file or None, and the values of each key.
    """
    from splitrelay.runs.spec import get_key

    file, settings = split_arguments(command, arguments, lists=True)
    values = {}
    for name, text in settings.items():
        parts = [part.strip() for part in text.split(",")]
        if get_key(name).path in PATH_KEYS and Path(text).exists():
            values[name] = [text]
            continue
        if len(parts) > 1 and not all(parts):
            raise InputError(f"{name} has an empty value", value=repr(text))
        values[name] = [value for part in parts for value in _expand_range(name, part)]
    return file, values


def _expand_range(name: str, text: str) -> list[str]:
    """Return the values of a range, with six digits, for keys that take numbers; else the text itself."""
    from splitrelay.runs.spec import get_key

    number_type = get_key(name).number_type
    if ":" not in text or number_type is None:
        return [text]
    whole = seed if name.endswith("seed") else count
    values = parse_settings([f"{name}={text}"], [Key(name, whole if number_type is int else number)], RANGE_POINTS)[
        name
    ]
    return [f"{value:.6g}" if number_type is float else str(value) for value in values]
