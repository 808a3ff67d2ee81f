"""The words of a command that takes a spec: told apart, and for a sweep, comma lists and ranges spread out."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from splitrelay.cli.key_values import Key, count, number, parsed, seed
from splitrelay.errors import InputError, UnknownName, suggest_name

POINTS = 5  # of a range that does not say how many: every point is a run
PATHS = ("data", "data.name", "init", "model.init")  # a comma may be part of one


def spread(command: str, settings: Sequence[str]) -> tuple[Path | None, dict[str, list[str]]]:
    """(the spec, if one is named; every key with its values)."""
    file, words = told_apart(command, settings, lists=True)
    return file, {name: _values(_known(name), text) for name, text in words.items()}


def told_apart(command: str, settings: Sequence[str], *, lists: bool = False) -> tuple[Path | None, dict[str, str]]:
    """(the spec, if one is named; every key with its text): one spec, and each key once by whichever of its names."""
    from splitrelay.runs.spec import SHORT

    files = [word for word in settings if "=" not in word]
    if len(files) > 1:
        raise InputError(f"{command} takes one spec", value=" ".join(files), hint="Settings are KEY=VALUE.")
    for file in files:
        _seen(Path(file))
    found: dict[str, str] = {}
    given: dict[str, str] = {}  # by a key's full name: the word that gave it
    for word in (word for word in settings if "=" in word):
        name, _, found[name] = word.partition("=")
        full = SHORT.get(name, name)
        if full in given:
            hint = f"Give a list instead: {name}=a,b." if lists else "Give it once."
            raise InputError(f"{name} is given twice", value=f"{given[full]} {word}", hint=hint)
        given[full] = word
    return Path(files[0]) if files else None, found


def _seen(file: Path) -> None:
    """A folder is no spec, though it may hold one; a file that is not there may be near another."""
    if file.is_dir():
        inside = shlex.join(["splitrelay", "run", str(file / "spec.toml"), "--out", str(file)])
        hint = f"Go on with its run: {inside}" if (file / "spec.toml").exists() else "A spec is a TOML file."
        raise InputError(f"{file} is a folder, not a spec", hint=hint)
    near = [path.name for path in file.parent.glob("*.toml")] if file.parent.is_dir() else []
    if not file.exists():
        hint = suggest_name(file.name, near) if near else "splitrelay new NAME writes one to begin with."
        raise InputError(f"there is no spec {file}", hint=hint)


def _known(name: str) -> str:
    from splitrelay.runs.spec import SHORT, keys

    if name not in (*keys(), *SHORT.values()):
        raise UnknownName("key", name, keys())
    return name


def _values(name: str, text: str) -> list[str]:
    if name in PATHS and Path(text).exists():
        return [text]
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > 1 and not all(parts):
        raise InputError(f"{name} has an empty value", value=repr(text))
    return [value for part in parts for value in _range(name, part)]


def _range(name: str, text: str) -> list[str]:
    """from:to[:log|lin][:points], for keys that take numbers; six digits of each."""
    from splitrelay.sweeps.points import kind_of

    kind = kind_of(name)
    if ":" not in text or kind is None:
        return [text]
    whole = seed if name.endswith("seed") else count
    values = parsed([f"{name}={text}"], [Key(name, whole if kind is int else number)], POINTS)[name]
    return [f"{value:.6g}" if kind is float else str(value) for value in values]
