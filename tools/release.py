"""Build and check everything that a release publishes: python tools/release.py [--out DIR]

It writes into DIR (default: dist), and uploads nothing:

    splitrelay-VERSION.tar.gz                          the source distribution
    splitrelay-VERSION-...-manylinux_2_17_x86_64.whl   with the fast engine for AVX2 and AVX-512
    splitrelay-VERSION-...-manylinux_2_17_aarch64.whl  with the fast engine for 64-bit ARM
    splitrelay-VERSION-py3-none-any.whl                for all other systems, without the fast engine
    splitrelay-VERSION.cdx.json                        SBOM (CycloneDX) of the package with the extra `deploy`
    SHA256SUMS                                         checksums of all files

All wheels are built from the source distribution. `auditwheel show` must accept the tag of each Linux wheel, and
`twine check` the description. The tools are installed into an environment of their own (build, auditwheel, twine,
cyclonedx-bom). tools/try_wheels.sh then installs the files on fresh systems.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("build==1.6.1", "auditwheel==6.8.2", "twine==7.0.0", "cyclonedx-bom==7.5.0")
TARGETS = ("x86_64", "aarch64", "any")
KERNELS = {"x86_64": 2, "aarch64": 1, "any": 0}  # shared libraries in each wheel


class ReleaseError(Exception):
    """A check of the release failed."""


def main(arguments: list[str]) -> int:
    """Build, check, and list the files."""
    parser = argparse.ArgumentParser(
        prog="tools/release.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="an empty or new folder (default: dist)")
    parser.add_argument("--allow-changes", action="store_true", help="build although git shows uncommitted changes")
    options = parser.parse_args(arguments)
    try:
        check_clean(options.out, options.allow_changes)
        with tempfile.TemporaryDirectory(prefix="splitrelay-release-") as folder:
            build_release(Path(folder), options.out)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        print(f"release: this command failed with code {error.returncode}: {' '.join(error.cmd)}", file=sys.stderr)
        return 1
    return 0


def check_clean(out: Path, allow_changes: bool) -> None:
    """Refuse a folder with other files, and sources that are in no commit."""
    if out.exists() and any(out.iterdir()):
        raise ReleaseError(f"{out} is not empty. Remove it, or choose another folder with --out.")
    changed = subprocess.run(
        ["git", "status", "--porcelain"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    if changed and not allow_changes:
        raise ReleaseError(f"{len(changed.splitlines())} files are not committed. Commit them, or use --allow-changes.")


def build_release(work: Path, out: Path) -> None:
    """Build in `work`. The files appear in `out` only when all checks have passed."""
    python = make_environment(work / "tools", TOOLS)
    made = work / "dist"
    say("building the source distribution")
    run(python, "-m", "build", "--sdist", "--outdir", str(made), str(ROOT))
    source = unpack(next(made.glob("*.tar.gz")), work)
    for target in TARGETS:
        say(f"building the wheel for {target}")
        run(python, "-m", "build", "--wheel", "--outdir", str(made), str(source), SPLITRELAY_WHEEL=target)
    wheels = {target: next(made.glob(f"*{target}.whl")) for target in TARGETS}
    say("checking")
    for target, wheel in wheels.items():
        check_wheel(python, target, wheel)
    run(python, "-m", "twine", "check", "--strict", *map(str, sorted(made.iterdir())))
    say("writing the SBOM")
    write_sbom(python, wheels["any"], work, made)
    write_checksums(made)
    out.mkdir(parents=True, exist_ok=True)
    for path in sorted(made.iterdir()):
        shutil.copyfile(path, out / path.name)
        print(f"{path.stat().st_size:>10,}  {path.name}")


def make_environment(folder: Path, packages: tuple[str, ...]) -> str:
    """Make a virtual environment with these packages and return its Python."""
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
    return python


def unpack(archive: Path, work: Path) -> Path:
    """Unpack the source distribution and return its folder."""
    with tarfile.open(archive) as tar:
        tar.extractall(work / "source", filter="data")
    return work / "source" / archive.name.removesuffix(".tar.gz")


def check_wheel(python: str, target: str, wheel: Path) -> None:
    """Check the shared libraries and the page of a wheel, and that auditwheel agrees with its tag."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    libraries = [name for name in names if name.endswith(".so")]
    missing = list_page_files() - names
    if missing:
        raise ReleaseError(f"{wheel.name} lacks files of the page: {', '.join(sorted(missing))}")
    if len(libraries) != KERNELS[target]:
        raise ReleaseError(f"{wheel.name} has {len(libraries)} shared libraries; it needs {KERNELS[target]}")
    if target == "any":
        return
    report = run(python, "-m", "auditwheel", "show", str(wheel))
    tag = f"manylinux_2_17_{target}"
    consistent = re.search(r'is consistent\s+with\s+the\s+following\s+platform\s+tag:\s*"([^"]+)"', report)
    if consistent is None or not is_accepted(consistent[1], tag):
        raise ReleaseError(f"auditwheel does not accept {tag} for {wheel.name}:\n{report}")


def list_page_files() -> set[str]:
    """Return the static files of the page, as they are named in a wheel."""
    source = ROOT / "src"
    static = source / "splitrelay" / "web" / "static"
    return {path.relative_to(source).as_posix() for path in static.rglob("*") if path.is_file()}


def is_accepted(found: str, tag: str) -> bool:
    """Return whether a wheel that auditwheel rates `found` may carry `tag`: an older C library is accepted too."""
    versions = [re.fullmatch(r"manylinux_(\d+)_(\d+)_(\w+)", name) for name in (found, tag)]
    if versions[0] is None or versions[1] is None or versions[0][3] != versions[1][3]:
        return False
    ours, theirs = ((int(match[1]), int(match[2])) for match in (versions[1], versions[0]))
    return theirs <= ours


def write_sbom(python: str, wheel: Path, work: Path, made: Path) -> None:
    """Install the wheel with its extra `deploy`, with the versions of constraints.txt, and list what was installed."""
    environment = work / "installed"
    constraints = ("--constraint", str(ROOT / "constraints.txt"))
    installed = make_environment(environment, (*constraints, f"splitrelay[deploy] @ {wheel.as_uri()}"))
    version = wheel.name.split("-")[1]
    out = made / f"splitrelay-{version}.cdx.json"
    options = ("--output-reproducible", "--pyproject", str(ROOT / "pyproject.toml"), "--output-file", str(out))
    run(python, "-m", "cyclonedx_py", "environment", *options, installed)
    out.write_text(re.sub(r"file://[^\"]*/", "", out.read_text()))  # paths of this machine


def write_checksums(made: Path) -> None:
    """Write SHA256SUMS in the format of sha256sum."""
    files = sorted(path for path in made.iterdir() if path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (made / "SHA256SUMS").write_text("".join(lines))


def run(*command: str, **environment: str) -> str:
    """Run a command and return its output; show the output only if the command fails."""
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stdout + done.stderr, file=sys.stderr)
        done.check_returncode()
    return done.stdout


def say(text: str) -> None:
    """Show the progress."""
    print(f"release: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
