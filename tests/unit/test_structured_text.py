"""Texts that are nested too deeply are texts that cannot be parsed, wherever they come from."""

import ast
import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import splitrelay
from splitrelay.deploy.client_usage import read_usage as read_usage
from splitrelay.deploy.quarantine import read_record
from splitrelay.deploy.visit_limits import UsedVisits, derive_allowed_visits
from splitrelay.errors import InputError, SplitrelayError
from splitrelay.runs.run_directory import RunDirectory
from splitrelay.runs.spec import load_spec, read_toml
from splitrelay.security.encryption import load_secrets
from splitrelay.structured_text import parse_json, parse_toml

DEEP = "[" * 100_000
INNER = {"structured_text.py", "worker.py", "process_backend.py"}  # itself, and pipes between our own processes


def test_deep_nesting_is_an_error_of_the_parser() -> None:
    with pytest.raises(json.JSONDecodeError):
        parse_json(DEEP)
    with pytest.raises(tomllib.TOMLDecodeError):
        parse_toml("a = " + DEEP)


def test_no_module_parses_texts_in_another_way() -> None:
    found = []
    for path in Path(splitrelay.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and path.name not in INNER:
                found += [path] * ((node.value.id, node.attr) in {("json", "loads"), ("tomllib", "loads")})
    assert not found


def write(path: Path, text: str = DEEP) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


READERS: dict[str, Callable[[Path], object]] = {
    "usage": lambda folder: UsedVisits(derive_allowed_visits(load_spec(None, []), 0), write(folder / "u.json"), 0),
    "paid": lambda folder: read_usage(write(folder / "paid.json")),
    "quarantine": lambda folder: read_record(write(folder / "quarantine.json").parent),
    "sealing": lambda folder: load_secrets(write(folder / "sealing.json").parent),
    "spec": lambda folder: read_toml(write(folder / "spec.toml", "a = " + DEEP)),
    "rows": lambda folder: RunDirectory(write(folder / "rounds.jsonl", DEEP + "\n").parent).read_rows(),
}


@pytest.mark.parametrize("kind", READERS)
def test_a_file_that_is_nested_too_deeply_is_an_error_of_one_line(kind: str, tmp_path: Path) -> None:
    with pytest.raises(SplitrelayError) as found:
        READERS[kind](tmp_path)
    assert "\n" not in str(found.value)
    assert isinstance(found.value, InputError) or kind == "rows"
