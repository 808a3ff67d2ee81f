"""Compile the kernels: python -m splitrelay.kernels.build [KIND...] [--compiler zig|g++|...] [--sanitize]

Without a KIND, build all kinds that machines of this family can use. Zig (the wheel `ziglang`) is preferred, because it
needs nothing on the system and builds for other systems; then the compiler of the system.
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
    "-ffp-contract=off", "-fno-math-errno",  # the sources decide the bits, not the compiler
    "-fno-exceptions", "-fno-rtti", "-fno-stack-protector",  # nothing that needs a library
]  # fmt: skip
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "-g"]
FAMILIES = {"x86_64": ("x86_64_v3", "x86_64_v4"), "amd64": ("x86_64_v3", "x86_64_v4"), "aarch64": ("aarch64",)}
KINDS = ("x86_64_v3", "x86_64_v4", "aarch64")
GLIBC = "2.17"  # the oldest C library that zig builds for; wheels are tagged with it (manylinux_2_17)


def get_kinds(machine: str = "") -> tuple[str, ...]:
    """Return the kinds of builds that Linux machines of a family can use. Without `machine`, use this machine's."""
    if not machine and platform.system() != "Linux":
        return ()
    return FAMILIES.get((machine or platform.machine()).lower(), ())


def find_compiler(choice: str | None = None) -> list[str] | None:
    """Return the command of the chosen compiler, or of zig's wheel, or of the system's compiler, or None."""
    if choice not in (None, "zig"):
        return choice.split()
    if choice == "zig" or importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "c++"]
    named = os.environ.get("CXX", "").split()
    found = next((name for name in (*named[:1], "c++", "g++", "clang++") if shutil.which(name)), None)
    return None if found is None else [found]


def get_target_options(command: Sequence[str], kind: str) -> list[str]:
    """Return the options of a compiler for one kind of CPU."""
    family = "aarch64" if kind == "aarch64" else "x86_64"
    if "ziglang" in command:
        cpu = [] if kind == "aarch64" else [f"-mcpu={kind}"]
        return ["-target", f"{family}-linux-gnu.{GLIBC}", *cpu]
    if kind == "aarch64":
        return ["-mno-outline-atomics"]  # else g++ wants a library for them
    return [f"-march={kind.replace('_v', '-v').replace('_', '-', 1)}"]


def build(kind: str, command: Sequence[str], out: Path, *more: str, sanitize: bool = False) -> None:
    """Compile one build. The output file is replaced atomically, and the cache of zig is removed."""
    part = out.with_name(f".{out.name}.{os.getpid()}")
    extra = [*(SANITIZE if sanitize else ["-nostdlib"]), f"-DSOURCES={compute_checksum()}", *more]
    with tempfile.TemporaryDirectory(prefix="splitrelay-") as cache:
        caches = {"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}
        line = [*command, *get_target_options(command, kind), *FLAGS, *extra, "-o", str(part), str(SOURCE)]
        try:
            subprocess.run(line, check=True, env={**os.environ, **caches})
            part.replace(out)
        finally:
            part.unlink(missing_ok=True)


def compute_checksum() -> int:
    """Return a checksum of all sources."""
    checksum = 0
    for path in sorted(SOURCE.parent.iterdir()):
        checksum = zlib.crc32(path.read_bytes(), checksum)
    return checksum


def get_file_name(kind: str) -> str:
    """Return the file name of one build; kernels.library searches for the same."""
    return f"splitrelay-linux-{kind}.so"


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m splitrelay.kernels.build", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=" ".join(KINDS))
    parser.add_argument("--compiler", help="zig, or a command; zig or the system's unless given")
    parser.add_argument("--sanitize", action="store_true", help="with address and undefined-behaviour checks (g++)")
    parser.add_argument("--out", type=Path, default=HERE, help="folder")
    options = parser.parse_args(arguments)
    command = find_compiler(options.compiler)
    if command is None:
        print("no compiler: pip install ziglang, or install g++", file=sys.stderr)
        return 1
    unknown = [kind for kind in options.kinds if kind not in KINDS]
    if unknown:
        parser.error(f"unknown kind '{unknown[0]}'. Known: {', '.join(KINDS)}.")
    options.out.mkdir(parents=True, exist_ok=True)
    for kind in options.kinds or get_kinds():
        path = options.out / get_file_name(kind)
        try:
            build(kind, command, path, sanitize=options.sanitize)
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
