"""The codes that the kernels return instead of touching memory that is not theirs (native/checks.h), as errors."""

from __future__ import annotations

from splitrelay.errors import InputError, SplitrelayError, WorkError

NO_IMAGE, NO_NET, BAD_BATCH, BAD_LABEL, BAD_SIZE, NOT_FOR, NO_POINTER, BAD_SET, BAD_DRAW = range(-1, -10, -1)
CALLS = {
    NO_NET: "the kernels got a net that was not checked, or that changed since",
    BAD_BATCH: "the kernels got a batch that is empty, or larger than their buffers",
    BAD_LABEL: "the kernels got a label outside the net's classes",
    BAD_SIZE: "the kernels got a buffer of another size",
    NOT_FOR: "the kernels got a net that cannot do this: it has no gradients or no outputs",
    NO_POINTER: "the kernels got a null pointer",
    BAD_SET: "the kernels got images of another shape, or crops out of range",
    BAD_DRAW: "the kernels have nothing to draw from, or no room for what they draw",
}
FROM_OUTSIDE = (BAD_BATCH, BAD_LABEL, BAD_SIZE, BAD_SET)  # codes that data can cause
NETS = {
    10: "header", 11: "kind", 12: "tensor", 13: "chain", 14: "arena", 15: "weights", 16: "marks", 17: "window",
    18: "table", 19: "room", 20: "probability", 21: "slot",
}  # fmt: skip


def check_call(code: int) -> None:
    """Raise the error that an entry point of the kernels returned. A code from 0 up is an answer, not an error."""
    if code < 0:
        raise get_error(code)


def get_error(code: int) -> Exception:
    """Return the error of a negative code: IndexError for an image, InputError for data, else WorkError."""
    if code == NO_IMAGE:
        return IndexError("a visit names an image that is not there")
    what = CALLS.get(code, "the kernels returned an unknown code")
    kind: type[SplitrelayError] = InputError if code in FROM_OUTSIDE else WorkError
    return kind(what, value=f"code {code}")


def check_net(code: int) -> None:
    """Raise the error that check_net returned: which part of a net is wrong, and the number of its layer or slot."""
    if code < 0:
        number, kind = divmod(-code, 100)
        part = NETS.get(kind, f"code {kind}")
        raise WorkError("the kernels refuse a net", value=f"{part} of pass {number}", limit="sizes within its buffers")
