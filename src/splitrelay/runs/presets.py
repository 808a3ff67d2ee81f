"""Presets and protocols: spec keys that stand for several others (`preset=...`, `protocol=...`).

This package defines no presets. A provider does: a module with a function `expand(content)` that replaces both keys by
the settings they stand for. The command line sets `splitrelay.paper.presets` as the provider. In a Python program,
`import splitrelay.paper.presets` does the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from splitrelay.errors import InputError

Content = dict[str, Any]
PRESET_KEYS = ("preset", "protocol")
_provider: list[str] = []  # at most one module name; imported only when a spec uses one of the keys


def set_preset_provider(module: str) -> None:
    """Use `module.expand` for the keys `preset` and `protocol` in this process."""
    _provider[:] = [module]


def expand_presets(content: Mapping[str, Any]) -> Content:
    """Return the content of a spec with its preset and protocol replaced by the settings they stand for.

    Raises:
        InputError: The content has one of the keys, and no provider is set.
    """
    used = [key for key in PRESET_KEYS if content.get(key) is not None]
    if not used:
        return {key: value for key, value in content.items() if key not in PRESET_KEYS}
    if not _provider:
        hint = "Import splitrelay.paper.presets first."
        raise InputError(f"no presets are available for the key {used[0]}", value=content[used[0]], hint=hint)
    expanded: Content = import_module(_provider[0]).expand(content)
    return expanded
