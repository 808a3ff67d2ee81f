"""A run is a directory that explains itself: what was asked, what was seen, where to go on (records.checkpoint)."""

from splitrelay.records.directory import RunDirectory

__all__ = ["RunDirectory"]
