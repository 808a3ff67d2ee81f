"""Crops and flips: named, whole or batch by batch the same, and equal to a plain way of writing them."""

import numpy as np

from splitrelay.data import Augmentation, Crops
from splitrelay.errors import OutOfRange
from splitrelay.randomness import Purpose, rng
from tests.support.error_fields import expect_error


def drawn(r: int = 0, n: int = 200, flip: bool = True) -> Crops:
    return Augmentation(pad=4, flip=flip).draw(rng(1, Purpose.AUGMENT, r, 3, 0), n)


def pixels(n: int = 200) -> np.ndarray:
    return rng(3, Purpose.INSTANCES).integers(0, 256, (n, 3, 32, 32)).astype(np.uint8)


def numbers(crops: Crops) -> list[list[int]]:
    return [crops.top.tolist(), crops.left.tolist(), crops.flip.tolist()]


def test_the_same_name_draws_the_same_numbers() -> None:
    assert numbers(drawn()) == numbers(drawn())


def test_these_numbers_are_part_of_every_result() -> None:
    # PCG64 named (1, AUGMENT, 0, 3, 0): six corners (top, left), then six flips. A change here changes all runs.
    wanted = [[2, 3, 5, 6, 6, 3], [2, 7, 1, 3, 3, 0], [True, False, False, True, True, False]]
    assert numbers(drawn(n=6)) == wanted


def test_another_round_draws_others() -> None:
    assert numbers(drawn(r=0)) != numbers(drawn(r=1))


def test_every_shift_and_both_flips_occur() -> None:
    crops = drawn()
    assert set(crops.top.tolist()) == set(crops.left.tolist()) == set(range(9)) and set(crops.flip.tolist()) == {0, 1}


def test_crops_are_those_of_a_padded_picture() -> None:
    x, crops = pixels(), drawn()
    for b, image in enumerate(crops.apply(x)):
        padded = np.pad(x[b], ((0, 0), (4, 4), (4, 4)))
        window = padded[:, crops.top[b] : crops.top[b] + 32, crops.left[b] : crops.left[b] + 32]
        assert np.array_equal(image, np.flip(window, axis=2) if crops.flip[b] else window)


def test_batch_by_batch_is_the_whole_visit() -> None:
    x, crops = pixels(), drawn()
    batches = [crops[k : k + 20].apply(x[k : k + 20]) for k in range(0, 200, 20)]
    assert np.array_equal(np.concatenate(batches), crops.apply(x))


def test_the_middle_crop_is_the_picture() -> None:
    x = pixels(2)
    middle = Crops(4, np.array([4, 4]), np.array([4, 4]), np.array([False, False]))
    assert np.array_equal(middle.apply(x), x)


def test_without_flips_the_shifts_stay() -> None:
    plain = drawn(flip=False)
    assert not plain.flip.any() and np.array_equal(plain.top, drawn().top)


def test_crops_for_another_number_of_images_are_refused() -> None:
    with expect_error(OutOfRange, value=200, limit="7"):
        drawn().apply(pixels(7))
