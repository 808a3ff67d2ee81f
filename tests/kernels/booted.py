"""A program run on a machine that is not here: a whole PC with AVX-512, emulated by bochs.

It boots a Linux of its own from a CD made here, with nothing on it but the program and its input. Debian has all of it:
bochs bochs-term isolinux xorriso busybox-static linux-image-cloud-amd64.
"""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
import sys
from pathlib import Path

PARTS = {
    "isolinux": Path("/usr/lib/ISOLINUX/isolinux.bin"),
    "syslinux-common": Path("/usr/lib/syslinux/modules/bios/ldlinux.c32"),
    "busybox-static": Path("/bin/busybox"),
    "bochs": Path("/usr/bin/bochs"),
    "bochs-term": Path("/usr/lib/x86_64-linux-gnu/bochs/plugins/libbx_rfb_gui.so"),
    "xorriso": Path("/usr/bin/xorriso"),
    "cpio": Path("/bin/cpio"),
}
INIT = """#!/bin/busybox sh
/bin/busybox mount -t devtmpfs none /dev
exec > /dev/ttyS0 2>&1
/program < /input
echo "ended with $?"
/bin/busybox sleep 3
/bin/busybox poweroff -f
"""
# bochs and the kernel disagree on the size of a compacted XSAVE area; without it the kernel uses the plain one
MENU = """default only
prompt 0
label only
 kernel vmlinuz
 append initrd=initrd.gz console=ttyS0 quiet mitigations=off tsc=reliable lpj=1000000 nosmp noapic \
clearcpuid=xsaves,xsavec
"""
MACHINE = """cpu: model=corei7_skylake_x, count=1, ips=50000000, reset_on_triple_fault=0
memory: guest=1536, host=1536
romimage: file=/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=/usr/share/vgabios/vgabios.bin
ata0-master: type=cdrom, path={folder}/cd.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev={folder}/said
display_library: rfb, options="timeout=0"
log: {folder}/bochs.log
clock: sync=none
panic: action=fatal
"""


def printed(program: Path, given: bytes, folder: Path) -> str:
    """What the program prints there; about a minute on a quiet core."""
    kernel = _kernel()
    _write_cd(program, given, kernel, folder)
    (folder / "machine").write_text(MACHINE.format(folder=folder))
    line = ["bochs", "-q", "-f", str(folder / "machine")]
    subprocess.run(line, input=b"c\n", capture_output=True, timeout=1800)  # "c": Debian's bochs asks before it starts
    said = folder / "said"
    text = said.read_text(errors="replace") if said.exists() else "nothing"
    found = re.search(r"^(\S+)\s+ended with 0\s*$", text, re.MULTILINE)
    return found.group(1) if found else sys.exit(f"the emulated machine did not run {program.name}; it said:\n{text}")


def _kernel() -> Path:
    missing = [package for package, part in PARTS.items() if not part.exists()]
    kernels = sorted(Path("/boot").glob("vmlinuz-*amd64"))
    missing += [] if kernels else ["linux-image-cloud-amd64"]
    if missing:
        sys.exit(f"this CPU has no AVX-512, and to emulate one that has needs, from Debian: {' '.join(missing)}")
    return kernels[-1]


def _write_cd(program: Path, given: bytes, kernel: Path, folder: Path) -> None:
    cd, disk = folder / "cd", folder / "disk"
    for place in (cd, disk / "bin", disk / "dev"):
        place.mkdir(parents=True, exist_ok=True)
    shutil.copy(PARTS["busybox-static"], disk / "bin" / "busybox")
    shutil.copy(program, disk / "program")
    (disk / "input").write_bytes(given)
    (disk / "init").write_text(INIT)
    (disk / "init").chmod(0o755)
    names = "\n".join(str(each.relative_to(disk)) for each in sorted(disk.rglob("*"))).encode()
    packed = subprocess.run(["cpio", "-o", "-H", "newc"], cwd=disk, input=names, capture_output=True, check=True).stdout
    (cd / "initrd.gz").write_bytes(gzip.compress(packed, 1))
    (cd / "isolinux.cfg").write_text(MENU)
    for part in (PARTS["isolinux"], PARTS["syslinux-common"]):
        shutil.copy(part, cd)
    shutil.copy(kernel, cd / "vmlinuz")
    boot = ["-b", "isolinux.bin", "-c", "boot.cat", "-no-emul-boot", "-boot-load-size", "4", "-boot-info-table"]
    line = ["xorriso", "-as", "mkisofs", "-quiet", "-o", str(folder / "cd.iso"), *boot, str(cd)]
    subprocess.run(line, check=True, capture_output=True)
