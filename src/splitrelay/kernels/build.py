"""Compile the kernels: python -m splitrelay.kernels.build [KIND...] [--compiler zig|g++|...] [--sanitize]

Without a KIND, all that this machine's family can use. Zig (the wheel `ziglang`) is asked first, for it needs nothing
on the system and builds for others; then the system's compiler.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE / "native" / "engine.cpp"
FLAGS = [
    "-std=c++17", "-O3", "-fPIC", "-shared", "-s", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden",
    "-ffp-contract=off", "-fno-math-errno",  # the bits are ours, not the compiler's
    "-fno-exceptions", "-fno-rtti", "-fno-stack-protector",  # nothing that would need a library
]  # fmt: skip
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "-g"]
FAMILIES = {"x86_64": ("x86_64_v3", "x86_64_v4"), "amd64": ("x86_64_v3", "x86_64_v4"), "aarch64": ("aarch64",)}
KINDS = ("x86_64_v3", "x86_64_v4", "aarch64")


def kinds_here() -> tuple[str, ...]:
    """The builds that machines of this family can use."""
    return FAMILIES.get(platform.machine().lower(), ()) if platform.system() == "Linux" else ()


def compiler(asked: str | None = None) -> list[str] | None:
    """What was asked for (zig: its wheel); else zig's wheel, else the compiler of the system, else nothing."""
    if asked not in (None, "zig"):
        return asked.split()
    if asked == "zig" or importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "c++"]
    named = os.environ.get("CXX", "").split()
    found = next((name for name in (*named[:1], "c++", "g++", "clang++") if shutil.which(name)), None)
    return None if found is None else [found]


def target(command: Sequence[str], kind: str) -> list[str]:
    """How a compiler is told for which CPU it builds."""
    family = "aarch64" if kind == "aarch64" else "x86_64"
    if "ziglang" in command:
        cpu = [] if kind == "aarch64" else [f"-mcpu={kind}"]
        return ["-target", f"{family}-linux-gnu", *cpu]
    if kind == "aarch64":
        return ["-mno-outline-atomics"]  # else g++ wants a library for them
    return [f"-march={kind.replace('_v', '-v').replace('_', '-', 1)}"]


def build(kind: str, command: Sequence[str], out: Path, *more: str, sanitize: bool = False) -> None:
    """One build; the file appears whole or not at all, and zig leaves no cache behind."""
    half = out.with_name(f".{out.name}.{os.getpid()}")
    extra = [*(SANITIZE if sanitize else ["-nostdlib"]), f"-DSOURCES={sources()}", *more]
    with tempfile.TemporaryDirectory(prefix="splitrelay-") as cache:
        caches = {"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}
        line = [*command, *target(command, kind), *FLAGS, *extra, "-o", str(half), str(SOURCE)]
        try:
            subprocess.run(line, check=True, env={**os.environ, **caches})
            half.replace(out)
        finally:
            half.unlink(missing_ok=True)


def sources() -> int:
    """A checksum of all that is compiled."""
    checksum = 0
    for path in sorted(SOURCE.parent.iterdir()):
        checksum = zlib.crc32(path.read_bytes(), checksum)
    return checksum


def name(kind: str) -> str:
    """The file of one build (kernels.library looks for the same)."""
    return f"splitrelay-linux-{kind}.so"


def main(words: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m splitrelay.kernels.build", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=" ".join(KINDS))
    parser.add_argument("--compiler", help="zig, or a command; zig or the system's unless given")
    parser.add_argument("--sanitize", action="store_true", help="with address and undefined-behaviour checks (g++)")
    parser.add_argument("--out", type=Path, default=HERE, help="folder")
    given = parser.parse_args(words)
    command = compiler(given.compiler)
    if command is None:
        print("no compiler: pip install ziglang, or install g++", file=sys.stderr)
        return 1
    unknown = [kind for kind in given.kinds if kind not in KINDS]
    if unknown:
        parser.error(f"unknown kind '{unknown[0]}'. Known: {', '.join(KINDS)}.")
    given.out.mkdir(parents=True, exist_ok=True)
    for kind in given.kinds or kinds_here():
        path = given.out / name(kind)
        try:
            build(kind, command, path, sanitize=given.sanitize)
        except (OSError, subprocess.CalledProcessError) as error:
            why = error.strerror if isinstance(error, OSError) else f"code {error.returncode}"
            print(
                f"{' '.join(command)} did not build {kind}: {why}. Another: pip install ziglang, or g++",
                file=sys.stderr,
            )
            return 1
        print(f"{path.name}: {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
