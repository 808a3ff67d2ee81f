"""The table of keys in docs/experiments.md is generated from the fields of Spec.

Run `python tests/docs/test_key_table.py` to write it again.
"""

import re
from pathlib import Path

from splitrelay.runs.spec import KEYS, SpecKey

PAGE = Path(__file__).parents[2] / "docs/experiments.md"
TABLE = re.compile(r"(?<=<!-- keys -->\n).*?(?=<!-- end of keys -->)", re.S)


def format_default(key: SpecKey) -> str:
    if key.default in (None, ()):
        return ""
    return f"`{str(key.default).lower() if isinstance(key.default, bool) else key.default}`"


def format_key_table() -> str:
    rows = [f"| `{key.name}` | {key.description} | {format_default(key)} |\n" for key in KEYS.values()]
    return "| key | meaning | default |\n|---|---|---|\n" + "".join(rows)


def test_the_table_of_keys_is_that_of_the_spec() -> None:
    assert TABLE.findall(PAGE.read_text(encoding="utf-8")) == [format_key_table()]


if __name__ == "__main__":
    PAGE.write_text(TABLE.sub(lambda _: format_key_table(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
