"""A run is a directory that explains itself: what was asked, what was seen, where to go on."""

from splitrelay.records.checkpoint import Checkpoint, Checkpoints
from splitrelay.records.directory import RunDirectory

__all__ = ["Checkpoint", "Checkpoints", "RunDirectory"]
