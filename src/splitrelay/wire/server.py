"""The server's end of all links: gRPC on an event loop of its own, and an inbox for the one thread that trains."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import grpc

from splitrelay.errors import InputError, WorkError
from splitrelay.wire import limits
from splitrelay.wire.control import BadMessage
from splitrelay.wire.frames import VERSION, Bounds, decode, encode
from splitrelay.wire.halves import Assembly
from splitrelay.wire.messages import (
    Accept,
    Bye,
    Chunk,
    Deposit,
    Heartbeat,
    Hello,
    Leave,
    Message,
    Refuse,
    Resume,
    Terms,
    Welcome,
)
from splitrelay.wire.protocol import OVER, Conversation, End, State, Verdict

SERVICE = "splitrelay.Relay"
OPTIONS = (
    ("grpc.max_receive_message_length", limits.MESSAGE),
    ("grpc.max_send_message_length", limits.MESSAGE),
    ("grpc.so_reuseport", 0),  # a second server on the same port must fail, not share it
)


class Unwelcome(WorkError):
    """A client that cannot take part, however often it asks."""


@dataclass(frozen=True)
class Arrived:
    """Client m is here; `resumed` where it goes on with the visit that it holds."""

    m: int
    link: int
    accept: Accept
    resumed: bool


@dataclass(frozen=True)
class Gone:
    """The link is lost, or was refused."""

    m: int
    link: int
    why: str


@dataclass(frozen=True, eq=False)
class Heard:
    """Client m said something in its visit; `half` is what it deposited."""

    m: int
    link: int
    message: Message
    half: bytes = b""


Event = Arrived | Gone | Heard


@dataclass(eq=False)
class Link:
    """One connection, as the event loop sees it."""

    number: int
    context: Any
    task: asyncio.Task[None]
    peer: str
    began: float
    heard: float
    m: int = -1
    hello: Hello | None = None
    answered: int = 0  # steps of a resumed visit
    talk: Conversation = field(default_factory=lambda: Conversation(End.SERVER))
    half: Assembly | None = None
    outgoing: asyncio.Queue[Message | None] = field(default_factory=asyncio.Queue)
    received: int = 0
    sent: int = 0


@dataclass(frozen=True)
class House:
    """What the server stands for: its terms, who may come, what it expects of buffers."""

    terms: Terms
    bounds: Bounds
    half: int  # bytes that a deposit may have
    clients: int  # M
    admitted: Callable[[Any, Hello], str | None] = lambda context, hello: None  # a reason to refuse, or None
    agreed: Callable[[Hello, Accept], str | None] = lambda hello, accept: None


class Hub:
    """All links. The training thread reads `inbox`, calls grant, send and release; the rest is the loop's."""

    def __init__(self, house: House, said: Callable[..., None] = lambda event, **facts: None) -> None:
        self.house, self.said = house, said
        self.inbox: SimpleQueue[Event] = SimpleQueue()
        self.links: dict[int, Link] = {}  # by client
        self._all: dict[int, Link] = {}  # by number, strangers too
        self._grants: dict[int, tuple[int, int]] = {}  # client: (fence, steps answered)
        self._lock = threading.Lock()
        self._count = 0
        self.spent = (0, 0)  # bytes of links that are closed
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wire", daemon=True)
        self._server: Any = None
        self._unary: dict[str, Any] = {}

    # The training thread's side

    def answering(self, name: str, handler: Any) -> None:
        """One more method of the service, such as Status."""
        self._unary[name] = handler

    def start(self, address: str, credentials: Any = None) -> int:
        """Listen, and say on which port."""
        self._thread.start()
        return asyncio.run_coroutine_threadsafe(self._listen(address, credentials), self._loop).result()

    def grant(self, m: int, fence: int, answered: int = 0) -> None:
        """Whoever comes back holding this fence goes on where it was."""
        with self._lock:
            self._grants[m] = (fence, answered)

    def release(self, m: int) -> None:
        """The visit is over: whoever comes back holding it starts afresh."""
        with self._lock:
            self._grants.pop(m, None)

    def send(self, link: int, *messages: Message) -> None:
        """Say something on a link; nothing happens where it is gone, as its Gone is on the way."""
        self._loop.call_soon_threadsafe(self._put, link, messages)

    def here(self) -> dict[int, int]:
        """Clients that are here, and the number of their link."""
        return {m: link.number for m, link in list(self.links.items())}

    def traffic(self) -> tuple[int, int]:
        """Bytes of all frames so far, up and down, handshakes and repetitions included."""
        links = list(self._all.values())
        up, down = self.spent
        return up + sum(link.received for link in links), down + sum(link.sent for link in links)

    def close(self, why: str, *, again: bool) -> None:
        """Say goodbye to all, and end."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._end(Bye(why[: limits.TEXT], again)), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    # The loop's side

    async def _listen(self, address: str, credentials: Any) -> int:
        server = grpc.aio.server(options=OPTIONS)
        methods = {"Join": grpc.stream_stream_rpc_method_handler(self._join), **self._unary}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        try:
            if credentials is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, credentials)
        except RuntimeError:
            raise InputError(
                f"cannot listen on {address}", way_out="Choose another --listen, or end who is there."
            ) from None
        await server.start()
        self._server = server
        self._watch = asyncio.ensure_future(self._watching())
        return int(port)

    async def _join(self, _: Any, context: Any) -> None:
        now = time.monotonic()
        self._count += 1
        task = asyncio.current_task()
        assert task is not None
        link = Link(self._count, context, task, context.peer(), now, now)
        self._all[link.number] = link
        writer = asyncio.ensure_future(self._writing(link))
        why = "the link was lost"
        try:
            if sum(other.m < 0 for other in self._all.values()) > limits.STRANGERS:
                raise BadMessage("too many handshakes at once", limit=f"<= {limits.STRANGERS}")
            if len(self.links) >= limits.CLIENTS:
                raise BadMessage("too many clients at once", limit=f"<= {limits.CLIENTS}")
            why = await self._reading(link)
        except (BadMessage, Unwelcome) as error:
            why = str(error)
            self._refuse(link, why, final=isinstance(error, Unwelcome))
        except (asyncio.CancelledError, grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
            pass
        finally:
            await self._parted(link, why, writer)

    async def _reading(self, link: Link) -> str:
        while link.talk.state not in OVER:
            frame = await link.context.read()
            if frame is grpc.aio.EOF:
                return "the client hung up"
            link.heard = time.monotonic()
            link.received += len(frame)
            self._hear(link, decode(frame, self.house.bounds))
        return "the client left" if link.talk.state is State.LEFT else "refused"

    def _hear(self, link: Link, message: Message) -> None:
        verdict = link.talk.hear(message)
        if verdict is Verdict.STALE:
            self.said("stale", client=link.m, word=message.event)
        elif isinstance(message, Heartbeat):
            link.outgoing.put_nowait(message)
        elif isinstance(message, Hello):
            self._greet(link, message)
        elif isinstance(message, Accept):
            self._accept(link, message)
        elif isinstance(message, Leave):
            self.said("left", client=link.m, why=message.why)
        elif isinstance(message, Chunk):
            link.half = link.half if message.k else Assembly(self.house.half)
            if link.half is None:
                raise BadMessage("chunks out of order", value=message.k, limit=0)
            link.half.add(message)
        elif isinstance(message, Deposit):
            half = (link.half or Assembly(0)).blob(message.bytes, message.sha256)
            link.half = None
            self.inbox.put(Heard(link.m, link.number, message, half))
        else:
            self.inbox.put(Heard(link.m, link.number, message))

    def _greet(self, link: Link, hello: Hello) -> None:
        why = self.house.admitted(link.context, hello)
        if hello.version != VERSION:
            why = f"this server speaks version {VERSION} of the protocol, not {hello.version}"
        elif hello.client >= self.house.clients:
            why = f"there is no client {hello.client}: this run has clients 0 to {self.house.clients - 1}"
        if why is not None:
            raise Unwelcome(why)
        link.hello = hello
        link.outgoing.put_nowait(self.house.terms)

    def _accept(self, link: Link, accept: Accept) -> None:
        assert link.hello is not None  # the table has seen it
        why = self.house.agreed(link.hello, accept)
        if why is not None:
            raise Unwelcome(why)
        link.m = link.hello.client
        if accept.check:
            link.outgoing.put_nowait(Welcome("all is well"))
            return
        before = self.links.pop(link.m, None)
        if before is not None:  # its end may not have been noticed yet
            self._refuse(before, "the client came back on another link", final=False)
            self.inbox.put(Gone(before.m, before.number, "the client came back on another link"))
        self.links[link.m] = link
        with self._lock:
            fence, answered = self._grants.get(link.m, (0, 0))
        resumed = 0 < fence == accept.fence and accept.k in (answered, answered - 1)
        link.answered = answered
        link.outgoing.put_nowait(Resume(fence) if resumed else Welcome())
        self.inbox.put(Arrived(link.m, link.number, accept, resumed))

    def _put(self, number: int, messages: Sequence[Message]) -> None:
        link = self._all.get(number)
        for message in messages if link is not None else ():
            link.outgoing.put_nowait(message)  # type: ignore[union-attr]

    async def _writing(self, link: Link) -> None:
        """Whatever is to be said on a link, in order; None ends it."""
        with suppress(grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError):
            while (message := await link.outgoing.get()) is not None:
                if not isinstance(message, Refuse):  # which may be said whatever the table thinks
                    if link.talk.state in OVER:
                        continue
                    link.talk.say(message)
                if isinstance(message, Resume):
                    link.talk.take_up(link.answered)
                frame = encode(message)
                link.sent += len(frame)
                await link.context.write(frame)

    def _refuse(self, link: Link, why: str, *, final: bool = False) -> None:
        """The last word on a link. The table is not asked: it may be the reason."""
        self.said("refused", client=link.m, peer=link.peer, why=why)
        link.talk.state = State.REFUSED
        link.outgoing.put_nowait(Refuse(why[: limits.TEXT], final))
        link.outgoing.put_nowait(None)

    async def _parted(self, link: Link, why: str, writer: asyncio.Future[None]) -> None:
        link.outgoing.put_nowait(None)
        with suppress(asyncio.TimeoutError, asyncio.CancelledError):
            await asyncio.wait_for(writer, 2.0)
        self._all.pop(link.number, None)
        self.spent = self.spent[0] + link.received, self.spent[1] + link.sent
        if self.links.get(link.m) is link:
            del self.links[link.m]
            self.inbox.put(Gone(link.m, link.number, why))

    async def _watching(self) -> None:
        """Links that have fallen silent, or are still shaking hands, are cut; who is revoked meanwhile is refused."""
        while True:
            await asyncio.sleep(1.0)
            now = time.monotonic()
            for link in list(self.links.values()):
                why = self.house.admitted(link.context, link.hello) if link.hello else None
                if why is not None and link.talk.state not in OVER:
                    self._refuse(link, why, final=True)
                    link.task.cancel()
            for link in list(self._all.values()):
                young = link.talk.state in (State.CONNECTED, State.GREETED, State.OFFERED, State.AGREED)
                if now - link.heard > limits.SILENCE or (young and now - link.began > limits.HANDSHAKE):
                    self.said("silent", client=link.m, peer=link.peer)
                    link.task.cancel()

    async def _end(self, bye: Bye) -> None:
        self._watch.cancel()
        for link in list(self._all.values()):
            link.outgoing.put_nowait(bye)
            link.outgoing.put_nowait(None)
        await self._server.stop(1.0)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait(others, timeout=2.0) if others else None
