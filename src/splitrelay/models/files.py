"""Weights on disk: safetensors under torch's own names, so that plain torch loads them. No pickle."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from splitrelay.errors import InputError, OutputError
from splitrelay.models.layout import Layout


def save_weights(path: Path, layout: Layout, x: torch.Tensor) -> None:
    """Write x whole or not at all."""
    with _replacing(path) as temporary:
        save_file(layout.unpack(x.cpu()), temporary)


def save_text(path: Path, text: str) -> None:
    """Write text whole or not at all."""
    with _replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A temporary name beside the file, renamed when all is written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise OutputError(f"cannot write {path}", value=error.strerror, way_out="Choose another place.") from None
    finally:
        with suppress(OSError):
            temporary.unlink()


def load_weights(path: Path, layout: Layout) -> torch.Tensor:
    """x from a file of weights; names and shapes must be those of the model."""
    try:
        return layout.pack(load_file(path))
    except FileNotFoundError:
        raise InputError(f"no weights at {path}", way_out="Name a .safetensors file.") from None
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is no safetensors file", value=str(error)) from None
