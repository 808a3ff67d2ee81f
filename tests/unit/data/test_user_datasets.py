"""The user's own images: every form gives the same set, and every wrong one a line that says what is wrong."""

import gzip
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from splitrelay.data import load, load_user_dataset
from splitrelay.data.user_datasets import Raw, to_bytes
from splitrelay.errors import InputError, UnknownName
from splitrelay.randomness import Purpose, rng
from tests.support.error_fields import expect_error

N = 20
GREY = rng(1, Purpose.INSTANCES).integers(0, 256, (N, 6, 6)).astype(np.uint8)
COLOUR = rng(2, Purpose.INSTANCES).integers(0, 256, (N, 6, 5, 3)).astype(np.uint8)
Y = np.arange(N) % 2  # every fifth image of each of two classes: 4 in all
HELD = [8, 9, 18, 19]
KEPT = [n for n in range(N) if n not in HELD]


def npz(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


def csv(path: Path, x: np.ndarray = GREY, y: Any = Y, titles: list[str] | None = None, last: bool = False) -> Path:
    rows = [
        [*image, label] if last else [label, *image]
        for image, label in zip(x.reshape(len(x), -1).tolist(), y, strict=True)
    ]
    text = "\n".join(",".join(map(str, row)) for row in ([titles] if titles else []) + rows) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def pictures(folder: Path, x: np.ndarray = GREY, y: Any = Y, names: dict[int, str] | None = None) -> Path:
    for n, (image, label) in enumerate(zip(x, y, strict=True)):
        place = folder / (names or {}).get(int(label), f"class-{label}")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{n:03}.png")
    return folder


def grouped(x: np.ndarray) -> np.ndarray:
    """In the order of a folder: class by class."""
    return np.concatenate([x[::2], x[1::2]])


# --- every form -------------------------------------------------------------------------------------------------------


def test_an_npz_with_x_and_y(tmp_path: Path) -> None:
    data = load_user_dataset(npz(tmp_path / "d.npz", x=GREY, y=Y))
    assert np.array_equal(data.train.x[:, 0], GREY[KEPT]) and np.array_equal(data.test.x[:, 0], GREY[HELD])
    assert data.train.classes == ("0", "1") and data.test.y.tolist() == [0, 1, 0, 1]


def test_an_npz_with_its_own_test_part(tmp_path: Path) -> None:
    data = load_user_dataset(npz(tmp_path / "d.npz", x_train=GREY, y_train=Y, x_test=GREY[:3], y_test=Y[:3]))
    assert (len(data.train), len(data.test)) == (20, 3)


def test_a_second_source_is_the_test_part(tmp_path: Path) -> None:
    data = load_user_dataset(csv(tmp_path / "train.csv"), test=csv(tmp_path / "test.csv", GREY[:3], Y[:3]))
    assert (len(data.train), len(data.test)) == (20, 3)


@pytest.mark.parametrize("name", ["d.csv", "d.csv.gz"])
@pytest.mark.parametrize("titled", [True, False])
def test_a_table_of_pixels(tmp_path: Path, name: str, titled: bool) -> None:
    titles = ["label", *(f"pixel{n}" for n in range(36))] if titled else None
    data = load_user_dataset(csv(tmp_path / name, titles=titles))
    assert np.array_equal(data.train.x[:, 0], GREY[KEPT]) and np.array_equal(data.train.y, Y[KEPT])


@pytest.mark.parametrize("last", [True, False])
def test_a_table_with_numbers_for_titles(tmp_path: Path, last: bool) -> None:
    numbers = list(map(str, range(36)))
    data = load_user_dataset(
        csv(tmp_path / "d.csv", titles=[*numbers, "target"] if last else ["target", *numbers], last=last)
    )
    assert np.array_equal(data.train.x[:, 0], GREY[KEPT]) and np.array_equal(data.train.y, Y[KEPT])


def test_a_table_with_an_index_left_behind(tmp_path: Path) -> None:
    titles = ["label", "", *(f"pixel{n}" for n in range(36))]
    x = np.concatenate([np.arange(N)[:, None], GREY.reshape(N, -1)], axis=1)
    assert np.array_equal(load_user_dataset(csv(tmp_path / "d.csv", x, titles=titles)).train.x[:, 0], GREY[KEPT])


def test_a_table_with_words_for_labels(tmp_path: Path) -> None:
    data = load_user_dataset(csv(tmp_path / "d.csv", y=np.array(["dog", "cat"])[Y]))
    assert data.train.classes == ("cat", "dog") and np.array_equal(data.train.y, 1 - Y[KEPT])


@pytest.mark.parametrize("scale", [1.0, 255.0])
def test_a_table_of_fractions_that_are_bytes(tmp_path: Path, scale: float) -> None:
    assert np.array_equal(load_user_dataset(csv(tmp_path / "d.csv", GREY * 1.0 / scale)).train.x[:, 0], GREY[KEPT])


def test_a_table_in_three_planes(tmp_path: Path) -> None:
    x = np.ascontiguousarray(COLOUR[:, :5].transpose(0, 3, 1, 2))
    assert np.array_equal(load_user_dataset(csv(tmp_path / "d.csv", x)).train.x, x[KEPT])


def test_a_table_of_oblong_images_with_their_shape(tmp_path: Path) -> None:
    x = COLOUR.transpose(0, 3, 1, 2)
    assert np.array_equal(load_user_dataset(csv(tmp_path / "d.csv", x), shape=(3, 6, 5)).train.x, x[KEPT])


@pytest.mark.parametrize("form", ["first", "last", "flat"])
def test_images_in_every_form_of_the_shape_that_is_told(tmp_path: Path, form: str) -> None:
    first = np.ascontiguousarray(COLOUR.transpose(0, 3, 1, 2))
    x = {"first": first, "last": COLOUR, "flat": first.reshape(N, -1)}[form]
    assert np.array_equal(load_user_dataset(npz(tmp_path / "d.npz", x=x, y=Y), shape=(3, 6, 5)).train.x, first[KEPT])


def test_grey_images_need_no_colour_in_the_shape_that_is_told(tmp_path: Path) -> None:
    data = load_user_dataset(npz(tmp_path / "d.npz", x=GREY[:, :4], y=Y), shape=(1, 4, 6))
    assert np.array_equal(data.train.x[:, 0], GREY[KEPT, :4])


def test_a_cube_has_its_colour_first(tmp_path: Path) -> None:
    x = COLOUR[:, :3, :3]
    assert np.array_equal(load_user_dataset(npz(tmp_path / "d.npz", x=x, y=Y), shape=(3, 3, 3)).train.x, x[KEPT])


def test_fractions_of_another_white() -> None:
    x = np.arange(17).reshape(1, 17)
    assert np.array_equal(to_bytes(Raw(x / 16, Y[:1], "mine"), peak=16), x)


@pytest.mark.parametrize("x", [GREY, COLOUR], ids=["grey", "colour"])
def test_a_folder_of_pictures(tmp_path: Path, x: np.ndarray) -> None:
    data = load_user_dataset(pictures(tmp_path / "d", x))
    planes = x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2)
    assert data.train.classes == ("class-0", "class-1")
    assert np.array_equal(data.test.x, grouped(planes)[[4, 9, 14, 19]]) and data.test.y.tolist() == [0, 0, 1, 1]


def test_grey_among_colours_becomes_colour(tmp_path: Path) -> None:
    pictures(tmp_path / "d", COLOUR)
    Image.fromarray(COLOUR[0, :, :, 0]).save(tmp_path / "d" / "class-0" / "000.png")
    assert load_user_dataset(tmp_path / "d").train.shape == (3, 6, 5)


def test_a_folder_with_a_test_part_keeps_the_classes_of_the_training(tmp_path: Path) -> None:
    pictures(tmp_path / "d" / "train", y=np.arange(N) % 3, names={0: "a", 1: "b", 2: "c"})
    pictures(tmp_path / "d" / "test", GREY[:2], [0, 0], names={0: "c"})
    data = load_user_dataset(tmp_path / "d")
    assert data.test.y.tolist() == [2, 2] and data.test.classes == ("a", "b", "c")


def test_folders_named_by_numbers_are_in_the_order_of_numbers(tmp_path: Path) -> None:
    names = {n: str(n) for n in range(11)}
    data = load_user_dataset(
        pictures(tmp_path / "d", np.repeat(GREY[:11], 5, axis=0), np.repeat(np.arange(11), 5), names)
    )
    assert data.train.classes == tuple(map(str, range(11)))


def test_other_files_beside_the_pictures_do_not_count(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "d")
    (folder / "class-0" / "readme.txt").write_text("hello")
    (folder / "class-0" / ".hidden.png").write_text("hello")
    (folder / ".git").mkdir()
    assert len(load_user_dataset(folder).train) + len(load_user_dataset(folder).test) == N


@pytest.mark.parametrize("x", [GREY, COLOUR, COLOUR.transpose(0, 3, 1, 2)], ids=["NHW", "NHWC", "NCHW"])
def test_an_object_with_data_and_targets(x: np.ndarray) -> None:
    data = load_user_dataset(SimpleNamespace(data=x, targets=Y.tolist(), classes=["no", "yes"]))
    planes = GREY[:, None] if x.ndim == 3 else COLOUR.transpose(0, 3, 1, 2)
    assert np.array_equal(data.train.x, planes[KEPT]) and data.train.classes == ("no", "yes")


def test_words_in_bytes_are_words(tmp_path: Path) -> None:
    data = load_user_dataset(npz(tmp_path / "d.npz", x=GREY, y=np.array([b"no", b"yes"])[Y]))
    assert data.train.classes == ("no", "yes") and np.array_equal(data.train.y, Y[KEPT])


def test_numbers_too_long_for_numbers_are_words(tmp_path: Path) -> None:
    long = ("1" * 30, "2" * 30)
    assert load_user_dataset(npz(tmp_path / "d.npz", x=GREY, y=np.array(long)[Y])).train.classes == long


def test_labels_with_gaps_keep_their_names(tmp_path: Path) -> None:
    data = load_user_dataset(npz(tmp_path / "d.npz", x=GREY, y=np.array([3, 10])[Y]))
    assert data.train.classes == ("3", "10") and np.array_equal(data.train.y, Y[KEPT])


def test_the_normalisation_is_that_of_the_training_part(tmp_path: Path) -> None:
    data = load_user_dataset(npz(tmp_path / "d.npz", x=GREY, y=Y))
    x = data.train.normalize(data.train.x)
    assert abs(float(x.mean())) < 1e-5 and abs(float(x.std()) - 1) < 1e-5 and data.test.mean == data.train.mean


def test_a_path_is_loaded_like_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npz(tmp_path / "d.npz", x=GREY, y=Y)
    monkeypatch.chdir(tmp_path)
    assert len(load("d.npz").train) == 16 and len(load(tmp_path / "d.npz").train) == 16


# --- parquet ----------------------------------------------------------------------------------------------------------


def parquet(path: Path, columns: dict[str, Any], classes: list[str] | None = None) -> Path:
    arrow = pytest.importorskip("pyarrow", reason="parquet needs pyarrow")
    table = arrow.table(columns)
    if classes:
        words = {"info": {"features": {"label": {"names": classes, "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(words)})
    pytest.importorskip("pyarrow.parquet").write_table(table, path)
    return path


def png(image: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def test_parquet_with_encoded_pictures_and_names(tmp_path: Path) -> None:
    column = [{"bytes": png(image), "path": None} for image in COLOUR]
    data = load_user_dataset(parquet(tmp_path / "d.parquet", {"image": column, "label": Y.tolist()}, ["cat", "dog"]))
    assert np.array_equal(data.train.x, COLOUR.transpose(0, 3, 1, 2)[KEPT]) and data.train.classes == ("cat", "dog")


@pytest.mark.parametrize("form", ["bytes", "lists", "columns"])
def test_parquet_in_other_forms(tmp_path: Path, form: str) -> None:
    flat = GREY.reshape(N, -1)
    x: dict[str, Any] = {
        "bytes": {"img": [png(image) for image in GREY]},
        "lists": {"pixels": flat.tolist()},
        "columns": {f"pixel{n}": flat[:, n] for n in range(36)},
    }[form]
    data = load_user_dataset(parquet(tmp_path / "d.parquet", {"label": Y.tolist(), **x}))
    assert np.array_equal(data.train.x[:, 0], GREY[KEPT])


def test_parquet_without_labels_says_what_it_has(tmp_path: Path) -> None:
    with expect_error(InputError, what="d.parquet", value=["image", "other"], limit="'label'"):
        load_user_dataset(parquet(tmp_path / "d.parquet", {"image": [[1, 2]], "other": [1]}))


def test_what_is_no_parquet_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="parquet needs pyarrow")
    (tmp_path / "d.parquet").write_bytes(b"PAR1")
    with expect_error(InputError, what="d.parquet", value=None):
        load_user_dataset(tmp_path / "d.parquet")


# --- what is wrong ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arrays", "fields"),
    [
        ({"x": GREY}, {"what": "y", "value": ["x"], "limit": ("x", "y")}),
        ({"a": GREY, "b": Y}, {"what": ("x", "y"), "value": ["a", "b"], "limit": ("x", "y")}),
        ({"x": GREY, "y": Y[:5]}, {"value": "(20, 6, 6), (5,)", "limit": "(N, ...), (N,)"}),
        ({"x": GREY, "y": np.eye(2)[Y]}, {"value": "(20, 6, 6), (20, 2)", "limit": "(N, ...), (N,)"}),
        ({"x": GREY[:0], "y": Y[:0]}, {"value": None, "limit": None, "hint": True}),
        ({"x": GREY[:2], "y": Y[:2]}, {"value": "2", "limit": "5"}),
        ({"x": GREY - 300.0, "y": Y}, {"value": "float64 from -300 to -45", "limit": "0 to 255", "hint": "uint8"}),
        (
            {"x": GREY.astype(np.int64) * 2, "y": Y},
            {"value": "int64 from 0 to 510", "limit": "0 to 255", "hint": "uint8"},
        ),
        (
            {"x": np.linspace(0, 1, N * 36).reshape(N, 36), "y": Y},
            {"value": "float64 from 0 to 0.899861", "limit": "0 to 255", "hint": "uint8"},
        ),
        ({"x": np.full((N, 36), np.nan), "y": Y}, {"what": "images", "value": np.dtype(float)}),
        ({"x": np.full((N, 36), "a"), "y": Y}, {"what": "images", "value": np.dtype("<U1")}),
        ({"x": GREY, "y": Y + 0.5}, {"what": "labels", "value": np.dtype(float)}),
        ({"x": GREY, "y": np.where(Y, np.inf, 0)}, {"what": "labels", "value": np.dtype(float)}),
        ({"x": np.zeros((N, 7, 7, 7), dtype=np.uint8), "y": Y}, {"value": (7, 7, 7), "hint": "shape=(C, H, W)"}),
        ({"x": np.zeros((N, 3, 7, 3), dtype=np.uint8), "y": Y}, {"value": (3, 7, 3), "hint": "shape=(C, H, W)"}),
        ({"x": np.zeros((N, 37), dtype=np.uint8), "y": Y}, {"value": (37,), "hint": "shape=(C, H, W)"}),
        ({"x": np.array([{}] * N), "y": Y}, {"what": "allow_pickle=False"}),
        ({"x": GREY, "y": Y, "x_test": GREY[:, :5], "y_test": Y}, {"what": "test", "value": "(1, 6, 6) and (1, 5, 6)"}),
    ],
)
def test_a_wrong_npz_is_one_line(tmp_path: Path, arrays: dict[str, np.ndarray], fields: dict[str, Any]) -> None:
    with expect_error(InputError, **fields) as error:
        load_user_dataset(npz(tmp_path / "d.npz", **arrays))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("", {"what": "d.csv", "value": None}),
        ("1\n2\n", {"what": "d.csv", "value": "1 column"}),
        ("0,1,2,3,4\n1,1,2,3\n", {"what": ("d.csv", "row 2")}),
        ("label,a,b,c,d\n0,1,,3,4\n", {"what": ("d.csv", "row 0", "column 3")}),
        ("0,1,2,3,400\n" * 9, {"value": "float32 from 1 to 400", "limit": "0 to 255", "hint": "uint8"}),
        ("0,1,2,3,4,5\n" * 9, {"value": (5,), "hint": "shape=(C, H, W)"}),
    ],
)
def test_a_wrong_table_is_one_line(tmp_path: Path, text: str, fields: dict[str, Any]) -> None:
    (tmp_path / "d.csv").write_text(text)
    with expect_error(InputError, **fields) as error:
        load_user_dataset(tmp_path / "d.csv")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("shape", [(5, 6, 3), (3, 5, 6), (6, 3, 5), (30, 3), (3, 30), (90, 1), (89,), (6, 5)])
def test_images_that_are_not_of_the_shape_that_is_told_are_one_line(tmp_path: Path, shape: tuple[int, ...]) -> None:
    with expect_error(InputError, value=shape, limit=("(3, 6, 5)", "(6, 5, 3)", "90")) as error:
        load_user_dataset(npz(tmp_path / "d.npz", x=np.zeros((N, *shape), dtype=np.uint8), y=Y), shape=(3, 6, 5))
    assert "\n" not in str(error.value)


def test_pictures_of_two_sizes_are_named(tmp_path: Path) -> None:
    pictures(tmp_path / "d")
    Image.fromarray(GREY[0, :3]).save(tmp_path / "d" / "class-1" / "999.png")
    with expect_error(InputError, value=("6x6", "000.png", "6x3", "999.png"), hint=True):
        load_user_dataset(tmp_path / "d")


def test_a_picture_that_is_none_is_named(tmp_path: Path) -> None:
    pictures(tmp_path / "d")
    (tmp_path / "d" / "class-1" / "999.png").write_text("hello")
    with expect_error(InputError, what="class-1/999.png", value=None):
        load_user_dataset(tmp_path / "d")


def test_sixteen_bits_a_pixel_are_refused(tmp_path: Path) -> None:
    pictures(tmp_path / "d")
    Image.fromarray(GREY[0].astype(np.uint16)).save(tmp_path / "d" / "class-1" / "999.png")
    with expect_error(InputError, what="class-1/999.png", value="I;16", hint="8"):
        load_user_dataset(tmp_path / "d")


def test_a_class_without_pictures_is_named(tmp_path: Path) -> None:
    (pictures(tmp_path / "d") / "empty").mkdir()
    with expect_error(InputError, what="empty", limit=".png"):
        load_user_dataset(tmp_path / "d")


def test_a_test_folder_with_a_new_class_is_refused(tmp_path: Path) -> None:
    pictures(tmp_path / "d" / "train")
    pictures(tmp_path / "d" / "test", names={0: "stranger"})
    with expect_error(InputError, what="d/test", value="stranger"):
        load_user_dataset(tmp_path / "d")


@pytest.mark.parametrize(
    ("source", "fields"),
    [
        ("nowhere/d.npz", {"what": "nowhere/d.npz", "limit": ".parquet"}),
        ("d.xyz", {"what": "d.xyz", "limit": ".parquet"}),
        ("empty", {"what": "empty", "limit": ".parquet"}),
        ("broken.npz", {"what": "broken.npz", "hint": "numpy.savez"}),
        (object(), {"what": ("object", "'data'"), "limit": ("data", "targets")}),
        (SimpleNamespace(data=GREY), {"what": ("SimpleNamespace", "'targets'"), "limit": ("data", "targets")}),
    ],
)
def test_a_wrong_source_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Any, fields: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d.xyz").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.npz").write_text("PK")
    with expect_error(InputError, **fields) as error:
        load(source)
    assert "\n" not in str(error.value)


def test_a_name_that_nobody_carries_gets_the_nearest() -> None:
    with expect_error(UnknownName, name="mnst", hint="mnist"):
        load("mnst")


@pytest.mark.parametrize("name", ["junk.npz", "junk.csv", "junk.csv.gz"])
def test_junk_is_named_and_nobody_is_told_to_unpickle_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(bytes(range(255, 0, -1)))
    with expect_error(InputError, what=name) as refused:
        load_user_dataset(tmp_path / name)
    assert "pickle" not in str(refused.value)
