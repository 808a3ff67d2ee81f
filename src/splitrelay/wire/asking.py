"""Two questions that take no part in training: how does it go, and may I have the model?"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from splitrelay.errors import WorkError
from splitrelay.wire import control_pb2, limits
from splitrelay.wire.halves import Assembly, sha256
from splitrelay.wire.messages import Chunk
from splitrelay.wire.server import SERVICE

PB: Any = control_pb2
ANSWER = 30.0  # seconds for a status
COLLECT = 600.0  # seconds for a model
Admit = Callable[[Any, None], str | None]


def status_handler(report: Callable[[], str], admit: Admit) -> Any:
    """Answers with the report, to whoever is admitted."""

    async def status(_: Any, context: Any) -> Any:
        await _refused(context, admit(context, None))
        return PB.StatusReply(json=report())

    return grpc.unary_unary_rpc_method_handler(status, PB.StatusRequest.FromString, PB.StatusReply.SerializeToString)


def collect_handler(model: Callable[[], bytes | str], admit: Admit) -> Any:
    """Answers with the model in pieces, or with why there is none."""

    async def collect(_: Any, context: Any) -> AsyncIterator[Any]:
        await _refused(context, admit(context, None))
        found = model()
        if isinstance(found, str):
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, found)
            return
        for start in range(0, len(found), limits.CHUNK):
            yield PB.CollectReply(data=found[start : start + limits.CHUNK])
        yield PB.CollectReply(sha256=sha256(found))

    return grpc.unary_stream_rpc_method_handler(
        collect, PB.CollectRequest.FromString, PB.CollectReply.SerializeToString
    )


def status_of(channel: grpc.Channel, patience: float = ANSWER) -> str:
    """The server's report, as JSON."""
    ask = channel.unary_unary(f"/{SERVICE}/Status", PB.StatusRequest.SerializeToString, PB.StatusReply.FromString)
    try:
        report: str = ask(PB.StatusRequest(), timeout=patience).json
    except grpc.RpcError as error:
        raise _told(error) from None
    return report


def collected(channel: grpc.Channel) -> bytes:
    """The final model, whole."""
    ask = channel.unary_stream(f"/{SERVICE}/Collect", PB.CollectRequest.SerializeToString, PB.CollectReply.FromString)
    assembly, length, digest = Assembly(limits.HALF), 0, b""
    try:
        for k, piece in enumerate(ask(PB.CollectRequest(), timeout=COLLECT)):
            digest = piece.sha256
            if piece.data:
                length = assembly.add(Chunk(0, k, piece.data))
    except grpc.RpcError as error:
        raise _told(error) from None
    return assembly.blob(length, digest)


async def _refused(context: Any, why: str | None) -> None:
    if why is not None:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, why)


def _told(error: grpc.RpcError) -> WorkError:
    """gRPC's error in one line."""
    if not isinstance(error, grpc.Call):
        return WorkError("the server cannot be asked", value=str(error))
    code = error.code()
    if code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.FAILED_PRECONDITION):
        return WorkError(f"the server refused: {error.details()}")
    way_out = "Is it running, at this address, and do the keys belong to the same authority?"
    return WorkError("the server does not answer", value=str(error.details())[:200], way_out=way_out)
