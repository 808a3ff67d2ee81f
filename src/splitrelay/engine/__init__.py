"""Engines: the local steps of a visit, in this process."""

from splitrelay.engine.vector import InProcess, take_local_steps
from splitrelay.engine.wrappers import CostCounter, Flaky, VisitRecorder

__all__ = ["CostCounter", "Flaky", "InProcess", "VisitRecorder", "take_local_steps"]
