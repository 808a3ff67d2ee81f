"""The clients' side of a visit: local steps, in this process."""

from splitrelay.clients.inprocess import InProcess
from splitrelay.clients.local import descend
from splitrelay.clients.wrappers import Flaky, Metered, Tallied

__all__ = ["Flaky", "InProcess", "Metered", "Tallied", "descend"]
