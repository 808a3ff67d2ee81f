"""Somebody in the middle, with the keys of both ends: every message between a client and the server can be changed.

Only a rehearsal has both keys. What is made here could come from a client whose software is wrong or hostile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import grpc

from splitrelay.network.client_session import channel
from splitrelay.network.grpc_options import OPTIONS, SERVICE

STREAMS = 16  # at once: one is in use, others may not know yet that they have ended
Frames = Callable[[bytes], list[bytes]]


class MessageProxy:
    """Carries the frames of one client to a server and back, through `up` and `down`."""

    def __init__(self, to: Callable[[], str], near: Any, far: Any, up: Frames, down: Frames) -> None:
        self.to, self.far, self.up, self.down = to, far, up, down
        methods = {"Join": grpc.stream_stream_rpc_method_handler(self._join)}
        self.server: Any = grpc.server(ThreadPoolExecutor(STREAMS), options=OPTIONS)
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        address = "0.0.0.0:0"
        add = self.server.add_insecure_port
        self.port = int(add(address) if near is None else self.server.add_secure_port(address, near))
        self.server.start()

    def close(self) -> None:
        """No more."""
        self.server.stop(0)

    def _join(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        line = channel(self.to(), self.far)
        call: Any = line.stream_stream(f"/{SERVICE}/Join")(self._upward(requests))
        context.add_callback(call.cancel)  # the client hung up
        try:
            for frame in call:
                yield from self.down(frame)
        except grpc.RpcError as error:
            if context.is_active():
                context.abort(grpc.StatusCode.UNAVAILABLE, str(getattr(error, "details", lambda: "")()))
        finally:
            call.cancel()
            line.close()

    def _upward(self, requests: Iterator[bytes]) -> Iterator[bytes]:
        with suppress(grpc.RpcError):  # the client is gone
            for frame in requests:
                yield from self.up(frame)
