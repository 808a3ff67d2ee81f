"""The compiled kernels: which build suits this CPU, and its doors."""

from __future__ import annotations

import ctypes as c
import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from splitrelay.errors import InputError
from splitrelay.kernels.ctypes_structs import SIZES, f64, i32, i64, pointer
from splitrelay.kernels.seeded_draws import agree

HERE = Path(__file__).parent
BY_HAND = "SPLITRELAY_KERNELS"  # a build by path, for sanitizers and comparisons
V3 = {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"}
V4 = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
DOORS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "check_net": (i64, (pointer,)),
    "begin_visit": (i32, (pointer, pointer)),
    "save_x": (i32, (pointer, pointer, i64)),
    "save_gradient": (i32, (pointer, pointer, i64)),
    "draw": (i64, (pointer, i32, i32, pointer, i64, i32, i32, pointer, pointer, i64)),
    "draw_order": (i32, (pointer, i64, i32, i64, i64, pointer, i64)),
    "draw_uniform": (i32, (pointer, i32, pointer, i32, i64, pointer)),
    "visit": (i32, (pointer, pointer)),
    "bottom_forward": (i32, (pointer, pointer, i32, i64, i32, pointer, i64)),
    "bottom_backward": (i32, (pointer, pointer, i32, pointer, i64, i32)),
    "top_step": (i32, (pointer, pointer, i32, i32, pointer, i64, i32, pointer, pointer, i32)),
    "top_learn": (i32, (pointer, i32)),
    "apply": (i32, (pointer, pointer, f64)),
    "top_predict": (i32, (pointer, i32, pointer, i64, i32, pointer, i64)),
    "evaluate": (i32, (pointer, pointer, pointer, i32, pointer, i64, pointer, pointer, i64)),
}


def level() -> str:
    """What this CPU can do, in the words of the builds: x86_64_v3, x86_64_v4, aarch64, or its plain name."""
    machine = platform.machine().lower()
    if machine in ("arm64", "aarch64"):
        return "aarch64"
    flags = _flags()
    if machine in ("x86_64", "amd64") and flags >= V3:
        return "x86_64_v4" if flags >= V4 else "x86_64_v3"
    return machine


def _flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:  # without it nothing is assumed
        return set()
    return set(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), []))


def build_name(kind: str) -> str:
    """The file of one build."""
    return f"splitrelay-{platform.system().lower()}-{kind}.so"


def built() -> Path | None:
    """The best build for this CPU, if there is one."""
    if BY_HAND in os.environ:
        return Path(os.environ[BY_HAND])
    kinds = ["x86_64_v4", "x86_64_v3"] if level() == "x86_64_v4" else [level()]
    return next((path for kind in kinds if (path := HERE / build_name(kind)).exists()), None)


def missing() -> str | None:
    """Why there is no fast engine here, or None where there is one."""
    try:
        library()
    except InputError as error:
        return error.what
    return None


@cache
def library() -> c.CDLL:
    """The kernels, loaded; calls release the interpreter's lock."""
    path, hint = built(), "engine=reference needs none. To build: python -m splitrelay.kernels.build"
    if path is None:
        raise InputError(f"the fast engine has no build for {level()} here", hint=hint)
    try:
        found = c.CDLL(str(path))
    except OSError as error:
        raise InputError(f"the fast engine cannot be loaded from {path.name}", value=error, hint=hint) from None
    from splitrelay.kernels import build  # noqa: PLC0415 - python -m wants to be the first to import it

    found.sizes.restype = found.sources.restype = i64
    if found.sizes() != SIZES or found.sources() != build.sources():
        raise InputError(f"{path.name} was built from other sources", hint="python -m splitrelay.kernels.build")
    for name, (result, arguments) in DOORS.items():
        door = getattr(found, name)
        door.restype, door.argtypes = result, arguments
    if not agree(found):
        raise InputError(f"numpy {np.__version__} draws other numbers than the fast engine", hint=hint)
    return found
