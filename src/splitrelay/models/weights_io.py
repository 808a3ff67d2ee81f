"""Read and write weights as safetensors files with torch's own names, so that plain torch can load them. No pickle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save

from splitrelay.atomic_files import replace_atomically
from splitrelay.errors import InputError
from splitrelay.models.layout import Layout


def save_weights(path: Path, layout: Layout, x: torch.Tensor) -> None:
    """Write x atomically."""
    with replace_atomically(path) as temporary:
        temporary.write_bytes(save(layout.unpack(x.cpu())))  # save_file would hide the operating system's error


def load_weights(path: Path, layout: Layout) -> torch.Tensor:
    """Read x from a file whose names and shapes are those of the layout."""
    with _report_unreadable(path):
        return layout.pack(load_file(path))


def read_precision(path: Path) -> str:
    """Return "float64" if the file contains such numbers, else "float32"."""
    with _report_unreadable(path), safe_open(path, "pt") as file:
        kinds = {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118  # it is no dict
    return "float64" if "F64" in kinds else "float32"


@contextmanager
def _report_unreadable(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"there are no weights at {path}", hint="Give the path of a .safetensors file.") from None
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is not a safetensors file", value=str(error)) from None
