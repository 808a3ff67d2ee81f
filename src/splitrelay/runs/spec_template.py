"""A spec to begin with: every key with its meaning beside it, made from the spec's own fields."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from splitrelay.runs.spec import Spec

SHOWN = 34  # columns before the comment


def starter(name: str) -> str:
    """The text of a spec that runs as it is, in seconds: digits, 10 clients."""
    head = (
        f"# {name}: a training run, all that decides its numbers.",
        f"#   splitrelay run {name}.toml                    train; taken up where it stopped, if it did",
        f"#   splitrelay run {name}.toml algorithm=fedavg   words go on top of the file",
        f"#   splitrelay sweep {name}.toml eta=.03,.1,.3 seed=1,2,3",
        "# Lines that begin with # show what may be set, and its default.",
        "",
    )
    return "\n".join((*head, *_section(Spec), ""))


def schema() -> dict[str, Any]:
    """The JSON schema of a spec, for editors that check and complete TOML."""
    found = Spec.model_json_schema()
    for name, words in (("preset", "settings of the paper"), ("protocol", "paper or authors")):
        found["properties"][name] = {"type": "string", "description": words}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found, "title": "Splitrelay spec"}


def _section(part: type[BaseModel], title: str = "") -> Iterator[str]:
    if title:
        yield f"\n[{title}]  # {(part.__doc__ or '').rstrip('.').lower()}"
    inner = []
    for name, field in part.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            inner.append((name, field.annotation))
        else:
            yield _line(name, field.default, field.description or "")
    for name, kind in inner:
        yield from _section(kind, f"{title}.{name}" if title else name)


def _line(name: str, default: Any, words: str) -> str:
    if default is None:
        return f"{f'# {name} =':<{SHOWN}} # {words}".rstrip()
    return f"{f'{name} = {json.dumps(default)}':<{SHOWN}} # {words}".rstrip()
