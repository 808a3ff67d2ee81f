"""Partitions come back from disk as they went; what is no partition is refused in one line."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from splitrelay.data.partition import Partition
from splitrelay.data.partition_io import export_partition, get_client_folder, load_partition, save_partition
from splitrelay.data.partition_schemes import draw_partition
from splitrelay.errors import InputError, OutputError
from tests.support.error_fields import expect_error

LABELS = np.tile(np.arange(4), 30)


def drawn(M: int = 6, alpha: float = 0.5) -> Partition:
    return draw_partition("exdir", LABELS, M=M, C=2, alpha=alpha, seed=2)


@pytest.mark.parametrize("name", ["p.npz", "p.json", "p.txt"])
def test_it_comes_back(name: str, tmp_path: Path) -> None:
    assert load_partition(save_partition(drawn(), tmp_path / name)) == drawn()


def test_empty_clients_come_back(tmp_path: Path) -> None:
    partition = draw_partition("dirichlet", LABELS, M=50, alpha=0.01)
    assert partition.empty
    for name in ("p.npz", "p.json"):
        assert load_partition(save_partition(partition, tmp_path / name)).empty == partition.empty


def test_npz_keeps_labels_kind_and_settings(tmp_path: Path) -> None:
    back = load_partition(save_partition(drawn(), tmp_path / "p.npz"))
    assert np.array_equal(back.counts, drawn().counts)
    assert (back.kind, back.settings) == ("exdir", drawn().settings)


def test_json_is_the_authors_form_and_nothing_else(tmp_path: Path) -> None:
    written = json.loads(save_partition(drawn(), tmp_path / "p.json").read_text())
    assert written == {str(m): held.tolist() for m, held in enumerate(drawn().indices)}


def test_a_file_of_the_authors_is_read_in_its_own_order(tmp_path: Path) -> None:
    path = tmp_path / "mnist_M3_exdir2,10.0.txt"
    path.write_text('{"0": [4, 1], "1": [], "2": [0, 5, 3, 2]}')
    partition = load_partition(path, np.array([0, 1, 0, 1, 0, 1]))
    assert [held.tolist() for held in partition.indices] == [[4, 1], [], [0, 5, 3, 2]]
    assert partition.empty == (1,)
    assert partition.counts.tolist() == [[1, 1], [0, 0], [2, 2]]


def test_the_same_partition_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("p.npz", "p.json"):
        first = save_partition(drawn(), tmp_path / name).read_bytes()
        assert save_partition(drawn(), tmp_path / "again" / name).read_bytes() == first


NO_PARTITIONS = [
    '{"0": [0, 1], "1": [1]}',
    '{"0": [0], "1": [2]}',
    '{"0": [0], "2": [1]}',
    '{"0": [0.5]}',
    '{"0": [true]}',
    '{"0": 3}',
    '{"0": [99999999999999999999]}',
    "{}",
    "[[0], [1]]",
    "hello",
    "",
]


@pytest.mark.parametrize("text", NO_PARTITIONS)
def test_invalid_json_partition_is_rejected(text: str, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with expect_error(InputError, what=str(path)):
        load_partition(path)


def npz(path: Path, **arrays: object) -> Path:
    whole = {"positions": np.arange(4), "sizes": np.array([2, 2]), "about": np.array('{"kind": "x", "settings": {}}')}
    np.savez(path, **{**whole, **arrays})
    return path


@pytest.mark.parametrize(
    "arrays",
    [
        {"sizes": np.array([2, 3])},
        {"sizes": np.array([5, -1])},
        {"sizes": np.array([], dtype=int)},
        {"positions": np.array([0, 1, 2, 2])},
        {"positions": np.arange(4.0)},
        {"about": np.array("no json")},
        {"about": np.array("[1]")},
        {"about": np.array("{}")},
        {"labels": np.array([0, 1])},
        {"positions": np.array([None, 1, 2, 3])},  # would need pickle
    ],
)
def test_damaged_npz_is_rejected(arrays: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(InputError):
        load_partition(npz(tmp_path / "p.npz", **arrays))


class Bomb:
    """What unpickles into a folder on somebody's disk."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("bombed",)


def test_reading_does_not_execute_pickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError):
        load_partition(npz(tmp_path / "p.npz", positions=np.array([Bomb()], dtype=object)))
    assert not Path("bombed").exists()


def test_truncated_or_overwritten_npz_is_rejected(tmp_path: Path) -> None:
    path = save_partition(drawn(), tmp_path / "p.npz")
    content = path.read_bytes()
    for damaged in (b"", content[:100], content[:-30], content[:90] + b"damage" + content[96:]):
        path.write_bytes(damaged)
        with pytest.raises(InputError):
            load_partition(path)


def test_a_missing_file_and_a_wrong_ending_are_named(tmp_path: Path) -> None:
    with expect_error(InputError, what="p.json", value=os.strerror(errno.ENOENT)):
        load_partition(tmp_path / "p.json")
    for act in (lambda path: save_partition(drawn(), path), load_partition):
        with expect_error(InputError, what=(".npz", ".json", ".txt"), value="p.csv"):
            act(tmp_path / "p.csv")


def test_an_unwritable_place_is_named_and_nothing_stays(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        save_partition(drawn(), tmp_path / "file" / "p.npz")
    (tmp_path / "p.npz").mkdir()
    with pytest.raises(OutputError):
        save_partition(drawn(), tmp_path / "p.npz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "p.npz"]


def test_labels_of_another_set_are_rejected(tmp_path: Path) -> None:
    path = save_partition(drawn(), tmp_path / "p.npz")
    with expect_error(InputError, what=("120", "119"), hint="data=NAME"):
        load_partition(path, LABELS[:-1])
    with pytest.raises(InputError):
        load_partition(path, LABELS[::-1])


def images() -> np.ndarray:
    return np.arange(120 * 4, dtype=np.uint8).reshape(120, 1, 2, 2)


def test_export_gives_each_client_its_own_samples(tmp_path: Path) -> None:
    to = export_partition(drawn(), images(), LABELS, tmp_path / "clients")
    for m, held in enumerate(drawn().indices):
        with np.load(to / get_client_folder(m, 6) / "data.npz", allow_pickle=False) as data:
            assert np.array_equal(data["x"], images()[held])
            assert np.array_equal(data["y"], LABELS[held])
        meta = json.loads((to / get_client_folder(m, 6) / "meta.json").read_text())
        assert (meta["client"], meta["samples"], sum(meta["classes"].values())) == (m, len(held), len(held))
    assert load_partition(to / "partition.npz") == drawn()


def test_export_writes_no_folder_for_an_empty_client(tmp_path: Path) -> None:
    partition = draw_partition("dirichlet", LABELS, M=50, alpha=0.01)
    to = export_partition(partition, images(), LABELS, tmp_path / "clients")
    assert sorted(to.glob("client-*")) == [to / get_client_folder(m, 50) for m in partition.clients]


def test_folders_sort_like_their_clients() -> None:
    names = [get_client_folder(3, M) for M in (10, 10_000, 10_001)]
    assert names == ["client-0003", "client-0003", "client-00003"]


def test_export_uses_an_empty_folder_and_rejects_a_full_one(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("years of work")
    with pytest.raises(OutputError):
        export_partition(drawn(), images(), LABELS, tmp_path / "full")
    (tmp_path / "empty").mkdir()
    export_partition(drawn(), images(), LABELS, tmp_path / "empty")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "full"]
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.tex"]


def test_file_that_is_not_an_npz_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "p.npz").write_bytes(bytes(range(255, 0, -1)))
    with pytest.raises(InputError):
        load_partition(tmp_path / "p.npz")
