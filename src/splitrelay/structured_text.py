"""Parse JSON from files and peers, so that every text that cannot be parsed is the same kind of error."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes | bytearray, **options: Any) -> Any:
    """Return the value of a JSON text; `options` are those of json.loads.

    Raises ValueError where the text is not JSON. This includes a text that is nested too deeply: json.loads raises
    RecursionError for it, which callers that read damaged files do not expect.
    """
    try:
        return json.loads(text, **options)
    except RecursionError:
        raise ValueError("the JSON text is nested too deeply") from None
