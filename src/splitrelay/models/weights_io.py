"""Weights on disk: safetensors under torch's own names, so that plain torch loads them. No pickle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save

from splitrelay.atomic_files import replacing
from splitrelay.errors import InputError
from splitrelay.models.layout import Layout


def save_weights(path: Path, layout: Layout, x: torch.Tensor) -> None:
    """Write x whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_bytes(save(layout.unpack(x.cpu())))  # save_file would hide what the system said


def load_weights(path: Path, layout: Layout) -> torch.Tensor:
    """x from a file of weights; names and shapes must be those of the model."""
    with _readable(path):
        return layout.pack(load_file(path))


def precision_of(path: Path) -> str:
    """float64 where the file holds such numbers, else float32."""
    with _readable(path), safe_open(path, "pt") as file:
        kinds = {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118  # it is no dict
    return "float64" if "F64" in kinds else "float32"


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"no weights at {path}", hint="Name a .safetensors file.") from None
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is no safetensors file", value=str(error)) from None
