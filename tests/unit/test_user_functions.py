"""Names of the user's functions that are no names are wrong input."""

import os

import pytest

from splitrelay.errors import InputError
from splitrelay.user_functions import check_takes_no_arguments, load_user_function


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
