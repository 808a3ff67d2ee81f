"""A client's own images in every format of the data package, checked against the terms of a small run."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from splitrelay.data import load_user_dataset, save
from splitrelay.data.images import DataSet, ImageSet, compute_moments
from splitrelay.data.user_datasets import Raw
from splitrelay.deploy.client_data import convert_images, convert_labels, read_raw
from splitrelay.deploy.handshake import build_terms
from splitrelay.errors import InputError
from splitrelay.network.messages import Terms
from splitrelay.randomness import Purpose, rng
from splitrelay.runs.spec import load_spec
from tests.support.error_fields import expect_error

N = 12
Y = np.repeat(np.arange(3), 4)  # class by class, as folders come
NUMBERS = ("1", "2", "3")  # each is another's position
PADDED = ("08", "09", "10")
WORDS = ("cat", "dog", "eel")
CUBE = (3, 3, 3)  # colour first cannot be told from colour last
SHAPES = ((1, 4, 7), (3, 4, 7), CUBE)
FORMS = ("ints.npz", "floats.npz", "words.npz", "bytes.npz", "d.csv", "d.csv.gz", "lists.parquet", "named.parquet")
FORMS += ("pictures", "saved")


def images_of(shape: tuple[int, int, int], peak: int = 255) -> np.ndarray:
    x = rng(3, Purpose.INSTANCES).integers(0, peak + 1, (N, *shape)).astype(np.uint8)
    x[0, 0, 0, 0] = peak
    return x


def set_of(classes: tuple[str, ...], shape: tuple[int, int, int] = (1, 4, 7), peak: int = 255) -> DataSet:
    x = images_of(shape, peak)
    whole = ImageSet(x, Y.astype(np.int64), classes, *compute_moments(x, peak), peak)
    return DataSet("small", whole, whole.part(np.arange(0, N, 4)))


def terms_for(data: DataSet) -> Terms:
    spec = load_spec(None, ["data=digits", "engine=reference", "M=2", "R=1", "model=mlp"])
    return build_terms(spec, data)


def small_terms(*classes: str, **given: Any) -> Terms:
    return replace(terms_for(set_of(WORDS)), classes=classes, **given)


def brought(folder: Path, form: str, data: DataSet) -> Path:
    """The training part of a set, as a client might have it."""
    path, x, classes = folder / form, data.train.x, data.train.classes
    names, last = [classes[y] for y in data.train.y], x.transpose(0, 2, 3, 1)
    numbers = [int(name) if name.isdecimal() else classes.index(name) for name in names]
    if form == "saved":
        return save(data, path)
    if form == "pictures":
        return pictures(path, last, names)
    if form.endswith(".parquet"):
        return parquet(path, x, numbers, None) if form == "lists.parquet" else parquet(path, x, data.train.y, classes)
    if ".csv" in form:
        rows = [",".join(map(str, [name, *row])) for name, row in zip(names, x.reshape(N, -1).tolist(), strict=True)]
        np.savetxt(path, rows, fmt="%s")
        return path
    y = names if form in ("words.npz", "bytes.npz") else numbers
    dtype = {"floats.npz": float, "bytes.npz": "S"}.get(form)
    np.savez(path, x=last if form == "floats.npz" and data.train.shape != CUBE else x, y=np.array(y, dtype))
    return path


def pictures(path: Path, x: np.ndarray, names: list[str]) -> Path:
    for n, (image, name) in enumerate(zip(x, names, strict=True)):
        (path / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image).save(path / name / f"{n:03}.png")
    return path


def parquet(path: Path, x: np.ndarray, y: Any, classes: tuple[str, ...] | None) -> Path:
    arrow = pytest.importorskip("pyarrow", reason="parquet needs pyarrow")
    table = arrow.table({"pixels": x.reshape(len(x), -1).tolist(), "label": list(y)})
    if classes:
        words = {"info": {"features": {"label": {"names": classes}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(words)})
    pytest.importorskip("pyarrow.parquet").write_table(table, path)
    return path


def refusal(raw: Raw, terms: Terms) -> str:
    with pytest.raises(InputError) as refused:
        convert_images(raw, terms)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def flat(x: np.ndarray) -> Raw:
    """Images without surprises in their labels."""
    return Raw(x, np.zeros(len(x), dtype=np.int64), "mine")


# --- every form -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=["grey", "colour", "cube"])
@pytest.mark.parametrize("classes", [NUMBERS, PADDED, WORDS], ids=["numbers", "padded", "words"])
@pytest.mark.parametrize("form", FORMS)
def test_the_same_images_in_every_form(tmp_path: Path, form: str, classes: tuple[str, ...], shape: Any) -> None:
    data = set_of(classes, shape)
    found = convert_images(read_raw(brought(tmp_path, form, data)), terms_for(data))
    assert np.array_equal(found.x, data.train.x) and np.array_equal(found.y, data.train.y)
    assert (found.classes, found.mean, found.std, found.peak) == (classes, data.train.mean, data.train.std, 255)


@pytest.mark.parametrize("form", FORMS)
def test_the_same_images_up_to_another_white(tmp_path: Path, form: str) -> None:
    data = set_of(NUMBERS, peak=16)
    found = convert_images(read_raw(brought(tmp_path, form, data)), terms_for(data))
    assert np.array_equal(found.x, data.train.x) and np.array_equal(found.y, data.train.y) and found.peak == 16


@pytest.mark.parametrize("form", [form for form in FORMS if form not in ("pictures", "saved", "named.parquet")])
def test_a_client_that_holds_only_some_classes(tmp_path: Path, form: str) -> None:
    data = set_of(NUMBERS)
    some = replace(data, train=data.train.part(np.repeat(np.arange(4, 8), 3)))
    found = convert_images(read_raw(brought(tmp_path, form, some)), terms_for(data))
    assert set(found.y.tolist()) == {1}


def test_what_a_server_and_a_client_read_in_the_same_file_is_the_same(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.repeat(images_of((1, 4, 7)), 5, axis=0), y=np.repeat(Y + 1, 5))
    data = load_user_dataset(tmp_path / "d.npz")
    found = convert_images(read_raw(tmp_path / "d.npz"), terms_for(data))
    assert data.train.classes == NUMBERS and found.y.tolist() == np.repeat(Y, 5).tolist()


def test_a_saved_folder_is_its_training_part(tmp_path: Path) -> None:
    data = set_of(WORDS)
    raw = read_raw(save(data, tmp_path / "saved"))
    assert len(raw.x) == N and raw.classes == WORDS and raw.of == str(tmp_path / "saved")


def test_a_saved_folder_may_have_its_classes_in_another_order(tmp_path: Path) -> None:
    data = set_of(WORDS)
    found = convert_images(read_raw(save(data, tmp_path / "saved")), replace(terms_for(data), classes=WORDS[::-1]))
    assert found.y.tolist() == (2 - Y).tolist()


def test_a_damaged_saved_folder_is_one_line(tmp_path: Path) -> None:
    (save(set_of(WORDS), tmp_path / "saved") / "train-y.npy").write_bytes(b"junk")
    with expect_error(InputError, what="train-y.npy", hint=True) as refused:
        read_raw(tmp_path / "saved")
    assert "\n" not in str(refused.value)


# --- labels -----------------------------------------------------------------------------------------------------------

TEN = tuple(map(str, range(1, 11)))


@pytest.mark.parametrize(
    ("y", "classes", "positions"),
    [
        (np.array([1, 2]), TEN, [0, 1]),
        (np.array([1, 2], dtype=np.uint8), TEN, [0, 1]),
        (np.array([10.0, 7.0]), TEN, [9, 6]),
        (np.array(["10", "07"]), TEN, [9, 6]),
        (np.array([b"10", b"07"]), TEN, [9, 6]),
        (np.array([3, 10]), ("3", "10"), [0, 1]),
        (np.array([1, -1]), ("-1", "1"), [1, 0]),
        (np.array(["1", "-1"]), ("-1", "1"), [1, 0]),
        (np.array([1, 2]), ("1.0", "2.0", "3.0"), [0, 1]),
        (np.array([7, 8]), ("07", "08"), [0, 1]),
        (np.array([True, False]), ("0", "1"), [1, 0]),
        (np.array([True, False]), ("False", "True"), [1, 0]),
        (np.array([1, 2]), WORDS, [1, 2]),
        (np.array([1.0, 2.0]), WORDS, [1, 2]),
        (np.array(["1", "2"]), WORDS, [1, 2]),
        (np.array(["eel", "cat"]), WORDS, [2, 0]),
        (np.array([2, 1]), ("1", "2", "many"), [1, 0]),  # a number among words is a name
        (np.array(["many", "1"]), ("1", "2", "many"), [2, 0]),
    ],
)
def test_numbers_are_names_where_classes_are_and_else_positions(y: Any, classes: Any, positions: list[int]) -> None:
    found = convert_labels(Raw(np.zeros((2, 4)), y, "mine"), classes)
    assert found.tolist() == positions and found.dtype == np.int64


def test_folders_named_by_numbers_are_names(tmp_path: Path) -> None:
    raw = Raw(np.zeros((2, 4)), np.array([0, 1]), "mine", ("02", "3"))
    assert convert_labels(raw, NUMBERS).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("y", "classes", "says"),
    [
        ([0, 1], TEN, "needs one of 1, 2, 3, 4, 5, 6, 7, 8, 9, 10; got 0"),
        ([1, 11], TEN, "got 11"),
        ([1.0, 11.0], TEN, "got 11"),
        (["01", "11"], TEN, "got 11"),
        (["1", "cat"], TEN, "needs one of 1, 2, 3, 4, 5, 6, 7, 8, 9, 10; got cat"),
        ([b"1", b"cat"], TEN, "got cat"),
        (["1", "9" * 30], TEN, f"got {'9' * 30}"),
        ([0, 3], WORDS, "needs whole numbers from 0 to 2; got 3"),
        ([0, -1], WORDS, "needs whole numbers from 0 to 2; got -1"),
        (["0", "3"], WORDS, "needs whole numbers from 0 to 2; got 3"),
        (["0", "cat"], WORDS, "needs one of cat, dog, eel; got 0"),
        (["cow", "cat"], WORDS, "needs one of cat, dog, eel; got cow"),
        (np.array([2**64 - 1, 0], np.uint64), WORDS, f"got {2**64 - 1}"),
        ([0, 1], ("1", "2", "many"), "needs one of 1, 2, many; got 0"),
        ([0.5, 1.0], WORDS, "neither whole numbers nor names; got float64"),
        ([np.nan, 1.0], WORDS, "neither whole numbers nor names; got float64"),
        ([np.inf, 1.0], TEN, "neither whole numbers nor names; got float64"),
    ],
)
def test_labels_that_are_no_class_are_one_line(tmp_path: Path, y: list[Any], classes: Any, says: str) -> None:
    np.savez(tmp_path / "d.npz", x=images_of((1, 4, 7))[:2], y=np.array(y))
    assert says in refusal(read_raw(tmp_path / "d.npz"), small_terms(*classes))


@pytest.mark.parametrize("form", FORMS)
def test_a_stranger_is_one_line_in_every_form(tmp_path: Path, form: str) -> None:
    path = brought(tmp_path, form, set_of(NUMBERS))
    assert "are not this run's classes; needs one of 1, 2; got 3" in refusal(read_raw(path), small_terms("1", "2"))


def test_labels_that_nobody_gave_are_one_line(tmp_path: Path) -> None:
    path = parquet(tmp_path / "d.parquet", images_of((1, 4, 7))[:2], [0, None], None)
    assert "neither whole numbers nor names" in refusal(read_raw(path), small_terms(*WORDS))


@pytest.mark.parametrize("stranger", [-1, 3])
def test_labels_outside_the_names_that_a_table_brings_are_one_line(tmp_path: Path, stranger: int) -> None:
    path = parquet(tmp_path / "d.parquet", images_of((1, 4, 7))[:2], [0, stranger], WORDS)
    says = refusal(read_raw(path), small_terms(*WORDS))
    assert f"labels outside its own classes; needs whole numbers from 0 to 2; got {stranger}" in says


# --- pixels -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(16, 4), (4, 4, 4), (8, 8), (1, 64), (64, 1), (1, 16, 4), (16, 4, 1), (63,)])
def test_images_of_another_shape_are_one_line(shape: tuple[int, ...]) -> None:
    x = np.zeros((2, *shape), dtype=np.uint8)
    says = refusal(flat(x), small_terms(*WORDS, shape=(1, 4, 16)))
    assert f"do not have this shape; needs (1, 4, 16), (4, 16, 1), (4, 16) or flat rows of 64; got {shape}" in says


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32])
def test_pixels_beyond_the_white_of_the_run_are_one_line(dtype: type) -> None:
    x = np.array([[0, 3, 16, 17]], dtype=dtype)
    says = refusal(flat(x), small_terms(*WORDS, shape=(1, 2, 2), peak=16))
    assert "needs pixels from 0 to 16; got 17. Bring them to" in says


@pytest.mark.parametrize("peak", [16, 255])
def test_fractions_are_parts_of_the_white_of_the_run(peak: int) -> None:
    x = np.array([[0, 1, peak // 2, peak]])
    found = convert_images(flat(x / peak), small_terms(*WORDS, shape=(1, 2, 2), peak=peak))
    assert found.x.ravel().tolist() == x.ravel().tolist()


@pytest.mark.parametrize("x", [[0, 1 / 255, 0.5, 1], [0, 1.5, 3, 16], [-1, 0, 0, 1], [0, 0, 0, 300]])
def test_numbers_that_are_no_pixels_are_one_line_with_the_limits_of_the_run(x: list[float]) -> None:
    says = refusal(flat(np.array([x], float)), small_terms(*WORDS, shape=(1, 2, 2), peak=16))
    assert "needs whole numbers from 0 to 16, or multiples of 1/16 from 0 to 1; got float64 from" in says


def test_an_evaluator_takes_the_test_part_where_there_is_one(tmp_path: Path) -> None:
    x, y = np.arange(4 * 4, dtype=np.uint8).reshape(4, 2, 2), np.array([0, 1, 0, 1])
    both, one = tmp_path / "both.npz", tmp_path / "one.npz"
    np.savez(both, x_train=x, y_train=y, x_test=x[:1] + 100, y_test=y[:1])
    np.savez(one, x=x, y=y)
    assert [len(read_raw(both, test=test).y) for test in (False, True)] == [4, 1]
    assert read_raw(both, test=True).x.min() == 100
    assert [len(read_raw(one, test=test).y) for test in (False, True)] == [4, 4]
