"""Serve and call the two methods that take no part in training: fetch the status, and fetch the model.

Both are unary for the caller. At the server they are streams, so that a caller without permission, a slow caller and a
caller that does not read the answer are refused at once, and hold nothing for longer than their time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from splitrelay.errors import WorkError
from splitrelay.network import control_pb2, limits
from splitrelay.network.grpc_channel import SERVICE, explain_distrust
from splitrelay.network.limits import Limits, Timeouts
from splitrelay.network.messages import Chunk
from splitrelay.network.tensor_transfer import Assembly, compute_sha256

PB: Any = control_pb2
ANSWER = 30.0  # seconds for a status
AdmissionCheck = Callable[[Any], str | None]  # a reason to refuse, or None


class NoAnswer(WorkError):
    """Nobody answers there, or not in time."""


def status_handler(report: Callable[[], str], admit: AdmissionCheck, timeouts: Timeouts = Timeouts()) -> Any:
    """Answer admitted callers with the report."""

    async def status(_: Any, context: Any) -> None:
        async with _accept_request(context, admit, timeouts):
            await context.write(PB.StatusReply(json=report()))

    return grpc.stream_stream_rpc_method_handler(status, PB.StatusRequest.FromString, PB.StatusReply.SerializeToString)


def collect_handler(
    model: Callable[[], bytes | str],
    admit: AdmissionCheck,
    timeouts: Timeouts = Timeouts(),
    most: int = Limits.collectors,
) -> Any:
    """Answers with the model in pieces, or with why there is none; to so many at once."""
    here = set[int]()  # each of them holds the model in memory

    async def collect(_: Any, context: Any) -> None:
        async with _accept_request(context, admit, timeouts):
            if len(here) >= most:
                why = f"too many clients download the model; needs <= {most} at once. Ask again later."
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, why)
            here.add(id(context))
            try:
                await _send_model(context, model())
            finally:
                here.discard(id(context))

    return grpc.stream_stream_rpc_method_handler(
        collect, PB.CollectRequest.FromString, PB.CollectReply.SerializeToString
    )


@asynccontextmanager
async def _accept_request(context: Any, admit: AdmissionCheck, timeouts: Timeouts) -> AsyncIterator[None]:
    """Admit the caller, read its request, and limit the time of the answer."""
    why = admit(context)
    if why is not None:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, why)
    try:
        async with asyncio.timeout(timeouts.rpc):
            await asyncio.wait_for(context.read(), timeouts.handshake)
            yield
    except TimeoutError:
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the question took too long")


async def _send_model(context: Any, found: bytes | str) -> None:
    if isinstance(found, str):
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, found)
        return
    for start in range(0, len(found), limits.CHUNK):
        await context.write(PB.CollectReply(data=found[start : start + limits.CHUNK]))
    await context.write(PB.CollectReply(sha256=compute_sha256(found)))


def fetch_status(channel: grpc.Channel, patience: float = ANSWER, address: str = "") -> str:
    """The server's report, as JSON."""
    ask = channel.unary_unary(f"/{SERVICE}/Status", PB.StatusRequest.SerializeToString, PB.StatusReply.FromString)
    try:
        report: str = ask(PB.StatusRequest(), timeout=patience).json
    except grpc.RpcError as error:
        raise _explain_error(error, address) from None
    if len(report) > limits.REPORT:
        raise WorkError("the server's report is too long", value=len(report), limit=f"<= {limits.REPORT} characters")
    return report


def fetch_model(channel: grpc.Channel, address: str = "", seconds: float = Timeouts.rpc) -> bytes:
    """The final model, whole."""
    ask = channel.unary_stream(f"/{SERVICE}/Collect", PB.CollectRequest.SerializeToString, PB.CollectReply.FromString)
    assembly, length, digest = Assembly(limits.HALF), 0, b""
    try:
        for k, piece in enumerate(ask(PB.CollectRequest(), timeout=seconds)):
            digest = piece.sha256
            if piece.data:
                length = assembly.add(Chunk(0, k, piece.data))
    except grpc.RpcError as error:
        raise _explain_error(error, address) from None
    return assembly.blob(length, digest)


REFUSALS = (
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)


def _explain_error(error: grpc.RpcError, address: str) -> WorkError:
    """gRPC's error in one line."""
    if not isinstance(error, grpc.Call):
        return WorkError("the server cannot be asked", value=str(error))
    if error.code() in REFUSALS:
        return WorkError(f"the server refused: {error.details()}")
    distrust = explain_distrust(error.details(), address)
    if distrust is not None:
        return distrust
    hint = "Is it running, at this address, and do the keys belong to the same authority?"
    return NoAnswer("the server does not answer", value=str(error.details())[:200], hint=hint)
