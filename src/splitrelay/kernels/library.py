"""Load the compiled kernels: the build for this CPU and its functions."""

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
FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
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


def get_cpu_level() -> str:
    """Return the level of this CPU: x86_64_v3, x86_64_v4, aarch64, or another name, for which there is no build."""
    machine = platform.machine().lower()
    if machine in ("arm64", "aarch64"):
        return "aarch64"
    flags = _read_cpu_flags()
    if machine in ("x86_64", "amd64") and flags >= V3:
        return "x86_64_v4" if flags >= V4 else "x86_64_v3"
    return machine


def _read_cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:  # without the file, assume nothing
        return set()
    return set(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), []))


def find_build() -> Path | None:
    """Return the best build for this CPU, or None."""
    if BY_HAND in os.environ:
        return Path(os.environ[BY_HAND])
    kinds = ["x86_64_v4", "x86_64_v3"] if get_cpu_level() == "x86_64_v4" else [get_cpu_level()]
    paths = (HERE / f"splitrelay-{platform.system().lower()}-{kind}.so" for kind in kinds)
    return next((path for path in paths if path.exists()), None)


def find_obstacle() -> str | None:
    """Return why the fast engine cannot run on this machine, or None."""
    try:
        load_library()
    except InputError as error:
        return error.what
    return None


@cache
def load_library() -> c.CDLL:
    """Load the kernels. Calls into them release the interpreter's lock."""
    path, hint = find_build(), "engine=reference needs none. To build: python -m splitrelay.kernels.build"
    if path is None:
        raise InputError(f"the fast engine has no build for {get_cpu_level()} here", hint=hint)
    try:
        kernels = c.CDLL(str(path))
    except OSError as error:
        raise InputError(f"the fast engine cannot be loaded from {path.name}", value=error, hint=hint) from None
    from splitrelay.kernels import build  # noqa: PLC0415 - python -m wants to be the first to import it

    kernels.sizes.restype = kernels.sources.restype = i64
    if kernels.sizes() != SIZES or kernels.sources() != build.compute_checksum():
        raise InputError(f"{path.name} was built from other sources", hint="python -m splitrelay.kernels.build")
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(kernels, name)
        function.restype, function.argtypes = result, arguments
    if not agree(kernels):
        raise InputError(f"numpy {np.__version__} draws other numbers than the fast engine", hint=hint)
    return kernels
