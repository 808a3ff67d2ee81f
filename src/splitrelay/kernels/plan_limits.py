"""The limits of a plan, and the checks that refuse a number outside them.

A plan may come from another host, and the kernels compute addresses from its numbers. Every plan therefore passes
these checks, wherever it was made. The limits keep all sizes of one image within 32 bits and all sizes of a batch
within 64 bits. The kernels check the structures that are made from a plan once more (native/checks.h).
"""

from __future__ import annotations

from ctypes import c_float

from splitrelay.errors import InputError, OutOfRange

LAYERS = 1000
NAME = 200  # characters of a layer's name
CHANNELS = 2**20  # channels of an input, outputs of a layer
SIDE = 2**14  # height and width of an input
KERNEL = 2**10
STRIDE = 2**10
PADDING = 2**10  # of a convolution; that of a pool is at most half its kernel
LARGEST = 2**29  # numbers of x, and of one image between two layers, each with its padding
BATCH = 2**24  # images
ROOM = 2**38  # numbers of all activations of a workspace
TEXT = 2**20  # characters of a plan as JSON
SHOWN = 60  # characters of a refused value in an error


def get_brief(value: object) -> object:
    """Return a value as an error may show it: short, on one line, and without control characters.

    Numbers of usual size stay numbers.
    """
    if isinstance(value, bool) or value is None:
        return repr(value)
    if isinstance(value, int):
        return value if value.bit_length() <= 128 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, float):
        return value
    if isinstance(value, str):
        return ascii(value[:SHOWN])
    if (
        isinstance(value, list | tuple)
        and len(value) <= 4
        and not any(isinstance(v, list | tuple | dict) for v in value)
    ):
        return "[" + ", ".join(str(get_brief(v)) for v in value) + "]"
    return f"a {type(value).__name__}"


def check_integer(what: str, value: object, low: int, high: int) -> None:
    """Refuse what is not an int (a bool is none) from low to high."""
    limit = f"an integer from {low} to {high}"
    if type(value) is not int:
        raise InputError(what, value=get_brief(value), limit=limit)
    if not low <= value <= high:
        raise OutOfRange(what, value=get_brief(value), limit=limit)


def check_pair(what: str, value: object, low: int, high: int) -> None:
    """Refuse what is not a tuple of two ints from low to high."""
    if type(value) is not tuple or len(value) != 2:
        raise InputError(what, value=get_brief(value), limit=f"two integers from {low} to {high}")
    for number in value:
        check_integer(what, number, low, high)


def check_flag(what: str, value: object) -> None:
    """Refuse what is neither True nor False."""
    if type(value) is not bool:
        raise InputError(what, value=get_brief(value), limit="true or false")


def check_probability(what: str, value: object) -> None:
    """Refuse a number outside 0 <= p < 1, NaN included. The kernels hold p in 32 bits: there, too, it is below 1."""
    limit = "a number 0 <= p < 1"
    if type(value) not in (int, float):
        raise InputError(what, value=get_brief(value), limit=limit)
    assert isinstance(value, int | float)
    if not 0 <= value < 1 or c_float(value).value >= 1:
        raise OutOfRange(what, value=get_brief(value), limit=limit)


def check_name(what: str, value: object) -> None:
    """Refuse a layer's name that is empty, too long, or not printable: names appear in errors and logs."""
    if type(value) is not str or not 0 < len(value) <= NAME or not value.isprintable():
        raise InputError(what, value=get_brief(value), limit=f"1 to {NAME} printable characters")


def check_largest(what: str, numbers: int) -> None:
    """Refuse a tensor that is larger than the kernels can address."""
    if numbers > LARGEST:
        raise OutOfRange(what, value=get_brief(numbers), limit=f"<= {LARGEST} numbers, padding included")
