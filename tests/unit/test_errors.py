"""Errors keep their fields between processes; wrong names, types and nested texts are errors of one line."""

import ast
import copy
import json
import os
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import splitrelay
from splitrelay.deploy.client_usage import read_usage as read_usage
from splitrelay.deploy.lease_limits import UsedVisits, derive_allowed_visits
from splitrelay.deploy.quarantine import read_record
from splitrelay.errors import Diverged, InputError, OutOfRange, SplitrelayError, UnknownName
from splitrelay.runs.run_directory import RunDirectory
from splitrelay.runs.spec import load_spec, read_toml
from splitrelay.security.encryption import load_secrets
from splitrelay.structured_text import parse_json, parse_toml
from splitrelay.tensor_types import TensorType
from splitrelay.user_functions import check_takes_no_arguments, load_user_function


@pytest.mark.parametrize(
    "error",
    [
        UnknownName("algorithm", "fedagv", ["fedavg", "ssl"]),
        OutOfRange("eta", limit="eta > 0", value=-1.0),
        Diverged("NaN", hint="Lower eta."),
    ],
)
def test_an_error_comes_home_as_it_left(error: SplitrelayError) -> None:
    back = copy.copy(error)  # by the same method as between processes: __reduce_ex__
    assert type(back) is type(error) and str(back) == str(error) and vars(back) == vars(error)


@pytest.mark.parametrize("name", [":", "x:", ":f", "../../x:y", ".x:y", "a..b:c", "a\0b:c", "no_such_module:f", "os:f"])
def test_a_name_that_cannot_be_imported_is_wrong_input(name: str) -> None:
    with pytest.raises(InputError) as found:
        load_user_function("model", name)
    assert found.value.hint


def test_a_name_of_a_function_is_imported() -> None:
    assert load_user_function("model", "os.path:join") is os.path.join


@pytest.mark.parametrize("target", [3, lambda shape: None, dict.fromkeys])
def test_a_model_function_that_needs_arguments_is_wrong_input(target: object) -> None:
    with pytest.raises(InputError) as found:
        check_takes_no_arguments("model", "own:net", target)
    assert found.value.hint


@pytest.mark.parametrize("target", [dict, lambda size=3: None, lambda *more: None])
def test_a_model_function_may_have_defaults(target: object) -> None:
    check_takes_no_arguments("model", "own:net", target)


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        TensorType((3,), "complex64")
    assert caught.value.value == "complex64"


def test_only_real_numbers_are_floats() -> None:
    assert TensorType((3,)).is_float
    assert TensorType((3,), "float64").is_float
    assert not TensorType((3,), "int64").is_float


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
