"""Parse JSON and TOML from files and peers, so that every text that cannot be parsed is the same kind of error.

The parsers of the standard library raise RecursionError for a text that is nested too deeply. Callers that read damaged
or hostile files do not expect it, so here it is the error of a text that cannot be parsed.
"""

from __future__ import annotations

import json
import tomllib
from typing import Any


def parse_json(text: str | bytes | bytearray, **options: Any) -> Any:
    """Return the value of a JSON text; `options` are those of json.loads.

    Raises json.JSONDecodeError, which is a ValueError.
    """
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise json.JSONDecodeError("nested too deeply", "", 0) from None


def parse_toml(text: str) -> dict[str, Any]:
    """Return the content of a TOML text. Raises tomllib.TOMLDecodeError, which is a ValueError."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise tomllib.TOMLDecodeError("nested too deeply") from None
