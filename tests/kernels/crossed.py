"""The same bits on another CPU: python tests/kernels/crossed.py [NETS] [KIND ...]

Random nets are written to a file; a small program with the kernels inside is built by zig for each KIND (aarch64 and
x86_64_v3 unless said), run on them, and their checksums are compared. Where this CPU is another kind, qemu-user runs it
(aarch64) or an emulated PC with AVX-512 (x86_64_v4; booted.py).
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import booted
import numpy as np

from splitrelay.algorithms.base import Step
from splitrelay.kernels import build, convert_net
from splitrelay.kernels.batches import Table
from splitrelay.kernels.local_steps import convert_step
from splitrelay.kernels.seeded_draws import Root
from splitrelay.kernels.workspace import Workspace
from splitrelay.randomness import Purpose
from tests.kernels.random_nets import Case, case

HERE = Path(__file__).parent
STEP = Step[Any](0.05, weight_decay=1e-2, clip=1.0, momentum=0.9)
NAME = (2, 3, 1)
K = 3


def block(content: Any) -> bytes:
    """Its length, then its bytes."""
    found = content if isinstance(content, bytes) else bytes(content)
    return len(found).to_bytes(8, "little") + found


def written(one: Case) -> bytes:
    """A visit of a few steps with the same batch, as crossed.cpp reads it."""
    plan, draw = convert_net(one.model_spec.net(), one.model_spec.input_shape), one.draw
    batch, table, root = len(draw.at), Table(one.images, plan), Root(5)
    work = Workspace(plan, 0, len(plan.layers), batch)
    crops = draw.crops
    sizes = [work.arena.size, work.marks.size, work.found.size, work.sums.size, work.x.size, plan.classes]
    numbers = np.array(
        [*sizes, len(work.layers), len(work.slots), len(table), *plan.shape, crops.pad if crops else 0, root.number,
         *NAME, K, Purpose.DROPOUT, plan.size, batch, work.positions.size], np.int64,
    )  # fmt: skip
    corners = [b"" if crops is None else np.tile(side, K).astype(np.int64).tobytes() for side in _corners(crops)]
    flip = b"" if crops is None else np.tile(crops.flip, K).astype(np.uint8).tobytes()
    arrays = [table.x, table.y, table.levels, np.tile(draw.at, K).astype(np.int64)]
    blocks = [numbers.tobytes(), work.layers, work.slots, work.positions.tobytes(), *(a.tobytes() for a in arrays)]
    ends = [convert_step(STEP), root.words, one.x.numpy().tobytes(), np.full(K, batch, np.int32).tobytes()]
    return b"".join(map(block, [*blocks, *corners, flip, *ends]))


def _corners(crops: Any) -> list[Any]:
    return [None, None] if crops is None else [crops.top, crops.left]


def checksum(kind: str, nets: bytes, folder: Path) -> str:
    """What the kernels make of the nets on that CPU."""
    program, family = folder / kind, "aarch64" if kind == "aarch64" else "x86_64"
    cpu = [] if kind == "aarch64" else [f"-mcpu={kind}"]
    flags = [flag for flag in build.FLAGS if flag not in ("-shared", "-fPIC")]
    line = [sys.executable, "-m", "ziglang", "c++", "-target", f"{family}-linux-gnu", *cpu, *flags, "-DSOURCES=0"]
    line += ["-nostdlib", "-static", "-fno-builtin"]
    subprocess.run([*line, f"-I{build.SOURCE.parent}", "-o", program, HERE / "crossed.cpp"], check=True)
    if kind == "x86_64_v4" and "avx512vl" not in Path("/proc/cpuinfo").read_text():
        return booted.printed(program, nets, folder)
    emulator = [] if platform.machine() == family else [f"qemu-{family}"]
    if emulator and not shutil.which(emulator[0]):
        sys.exit(f"{emulator[0]} is not here: install qemu-user")
    return subprocess.run([*emulator, program], input=nets, check=True, capture_output=True).stdout.decode().strip()


def main(number: int, kinds: list[str]) -> int:
    nets = block(np.array([number], np.int64).tobytes()) + b"".join(written(case(j)) for j in range(number))
    with tempfile.TemporaryDirectory() as folder:
        found = {kind: checksum(kind, nets, Path(folder)) for kind in kinds}
    for kind, digest in found.items():
        print(f"{kind:<10} {digest}")
    return int(len(set(found.values())) > 1)


if __name__ == "__main__":
    words = sys.argv[1:]
    wanted = int(words.pop(0)) if words and words[0].isdigit() else 20
    sys.exit(main(wanted, words or ["x86_64_v3", "aarch64"]))
