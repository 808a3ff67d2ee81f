"""The clients' side of a visit: local steps, in this process."""

from splitrelay.engine.vector import InProcess
from splitrelay.engine.vector_steps import descend
from splitrelay.engine.wrappers import Flaky, Metered, Tallied

__all__ = ["Flaky", "InProcess", "Metered", "Tallied", "descend"]
