"""An engine that begins no further visit once it is told to stop; the one it is at is finished."""

from __future__ import annotations

from threading import Event
from typing import Generic

from splitrelay.algorithms.base import Done, Visit
from splitrelay.engine.thread_pool import Engine
from splitrelay.vectors import X


class Stoppable(Generic[X]):
    """Ctrl-C sets the event: state is then the one before the visit that was not begun."""

    def __init__(self, engine: Engine[X], stop: Event) -> None:
        self.engine, self.stop = engine, stop

    def run(self, visit: Visit[X], /) -> Done[X]:
        """K local steps, unless we are to stop."""
        if self.stop.is_set():
            raise KeyboardInterrupt
        return self.engine.run(visit)
