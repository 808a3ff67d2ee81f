"""Check which error occurred: its class and its fields, never its sentence.

The fields `value` and `limit` are data. The fields `what` and `hint` are sentences, of which a test may know only the
names: files, options, keys, numbers.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
from click.testing import CliRunner

from splitrelay.cli.main import app

E = TypeVar("E", bound=BaseException)


def check_error(error: BaseException | None, kind: type[E], /, **fields: Any) -> E:
    """Check the class of an error and some of its fields, and return the error.

    Args:
        error: The error. It must have exactly the class `kind`.
        kind: The class.
        fields: The expected fields. A string must occur in the field, not inside a longer word. All strings of a tuple
            of strings must occur. True stands for any content. Everything else must be equal to the field.
    """
    assert type(error) is kind, f"{type(error).__name__} instead of {kind.__name__}: {error!r}"
    for name, expected in fields.items():
        found = getattr(error, name)
        assert _is_in_field(expected, found), f"{name} is {found!r}, which is not {expected!r}: {error!r}"
    return error


@contextmanager
def expect_error(kind: type[E], /, **fields: Any) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect an error with exactly this class and these fields. See check_error."""
    with pytest.raises(kind) as found:
        yield found
    check_error(found.value, kind, **fields)


def fail_command(words: Sequence[object], kind: type[E], /, **fields: Any) -> E:
    """Run `splitrelay WORDS` in this process and check the error that it ends with. See check_error."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code != 0, result.output
    return check_error(result.exception, kind, **fields)


def _is_in_field(expected: object, found: object) -> bool:
    if isinstance(expected, str):
        return re.search(rf"(?<!\w){re.escape(expected)}(?!\w)", str(found)) is not None
    if isinstance(expected, tuple) and expected and all(isinstance(part, str) for part in expected):
        return all(_is_in_field(part, found) for part in expected)
    return found not in (None, "") if expected is True else found == expected
