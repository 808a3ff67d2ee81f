"""A client that computes for long keeps its link: one that is lost meanwhile is made anew, and the visit goes on."""

from __future__ import annotations

import threading
from types import TracebackType

from splitrelay.errors import SplitrelayError
from splitrelay.network.client_session import Ended, LinkLost, Refused, Session, TakenBack, hopeless

TICK = 1.0  # seconds between two looks at the link


class Tended:
    """While this is entered another thread has the session; whoever computes leaves it alone."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._tending, name="tending", daemon=True)
        self._failure: SplitrelayError | None = None

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()
        if error is None and self._failure is not None:
            raise self._failure

    def _tending(self) -> None:
        try:
            while not self._done.wait(TICK):
                self._look()
        except SplitrelayError as error:  # told to whoever computes, when it is done
            self._failure = error

    def _look(self) -> None:
        """Before the half is deposited the server says only what ends the visit, or the link."""
        try:
            if self.session.link is not None:
                if self.session.link.waits(0.0):
                    self.session.link.receive()
                return
        except (LinkLost, Ended, Refused) as error:
            if hopeless(error):
                raise
            self.session.note(f"{error}; connecting again")
            self.session.hang_up()
        if not self.session.connect():
            raise TakenBack("the visit was taken back while the link was lost")
