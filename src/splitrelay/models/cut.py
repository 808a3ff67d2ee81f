"""The cut of a flat vector: an index."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class FlatCut:
    """x = [bottom; top]: the first `boundary` numbers are the clients' half."""

    boundary: int

    def halves(self, x: torch.Tensor, /) -> tuple[torch.Tensor, torch.Tensor]:
        """Two vectors of their own: who keeps one half, as SplitFed V3's clients do, does not keep the other alive."""
        return x[: self.boundary].clone(), x[self.boundary :].clone()

    def join(self, bottom: torch.Tensor, top: torch.Tensor, /) -> torch.Tensor:
        """A fresh whole."""
        return torch.cat([bottom, top])
