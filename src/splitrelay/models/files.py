"""Weights on disk: safetensors under torch's own names, so that plain torch loads them. No pickle."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from splitrelay.errors import InputError
from splitrelay.files import replacing
from splitrelay.models.layout import Layout


def save_weights(path: Path, layout: Layout, x: torch.Tensor) -> None:
    """Write x whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_bytes(save(layout.unpack(x.cpu())))  # save_file would hide what the system said


def load_weights(path: Path, layout: Layout) -> torch.Tensor:
    """x from a file of weights; names and shapes must be those of the model."""
    try:
        return layout.pack(load_file(path))
    except FileNotFoundError:
        raise InputError(f"no weights at {path}", way_out="Name a .safetensors file.") from None
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is no safetensors file", value=str(error)) from None
