"""A client that is told to stop leaves soon, also if the server withholds what it waits for."""

import threading
from collections.abc import Callable

import pytest

from splitrelay.network.client_session import HeldVisit, Session
from splitrelay.network.grpc_channel import ClientStopped, open_channel
from splitrelay.network.limits import Timeouts
from splitrelay.network.messages import Accept, Lease, Ready
from tests.support.bare_server import BareServer, lease, run_bare_server, step, wait_until

FAR = 30.0  # seconds
# A server that withholds a reply can still send heartbeats: silence does not end the connection.
TIMEOUTS = Timeouts(silence=600.0, grace=0.0)


def join(here: BareServer, stop: threading.Event) -> Session:
    """Join as client 0, and begin a visit."""
    session = Session(
        0,
        lambda: open_channel(f"127.0.0.1:{here.port}", None),
        lambda terms: Accept("h", "fast", "cpu", 5),
        stop=stop,
        timeouts=TIMEOUTS,
    )
    session.connect()
    wait_until(lambda: 0 in here.network.connections.get_clients())
    here.say(0, lease(1))
    assert isinstance(session.receive(FAR), Lease)
    session.holding = HeldVisit(1)
    session.send(Ready(1))
    return session


WAITS: list[Callable[[Session], object]] = [
    lambda session: session.exchange([step(1)], 300.0),
    lambda session: session.receive(300.0),
]


@pytest.mark.parametrize("wait", WAITS, ids=["reply", "half"])
def test_a_server_that_withholds_a_message_cannot_keep_a_client_that_is_told_to_stop(
    wait: Callable[[Session], object],
) -> None:
    with run_bare_server() as here:
        stop, ended = threading.Event(), list[BaseException]()
        session = join(here, stop)

        def visit() -> None:
            try:
                wait(session)
            except Exception as error:
                ended.append(error)

        thread = threading.Thread(target=visit, daemon=True)
        thread.start()
        stop.set()
        thread.join(FAR)
        assert not thread.is_alive() and len(ended) == 1
        with pytest.raises(ClientStopped):
            session.connect()  # nor does it connect again
        session.disconnect()
