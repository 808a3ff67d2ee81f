"""Images in memory: gathered, normalised, refused where they are not what they say."""

import numpy as np
import pytest
import torch

from splitrelay.data import ImageSet
from splitrelay.data.images import compute_moments
from splitrelay.errors import InputError
from splitrelay.objectives.network import DeviceImages
from splitrelay.randomness import Purpose, rng

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def pixels(*shape: int) -> np.ndarray:
    return rng(3, Purpose.INSTANCES).integers(0, 256, shape).astype(np.uint8)


def images(N: int = 40, peak: int = 255) -> ImageSet:
    return ImageSet(pixels(N, 3, 5, 7), np.arange(N) % 4, ("a", "b", "c", "d"), MEAN, STD, peak)


def test_a_batch_is_the_images_at_its_positions() -> None:
    data, where = images(), np.array([7, 0, 39, 7])
    x, y = data.batch(where)
    assert np.array_equal(x, data.normalize(data.x[where])) and np.array_equal(y, [3, 0, 3, 3])


def test_a_batch_can_use_a_buffer_again() -> None:
    data, buffer = images(), np.full((2, 3, 5, 7), np.nan, dtype=np.float32)
    x, _ = data.batch(np.array([7, 3]), out=buffer)
    assert x is buffer and np.array_equal(buffer, data.batch(np.array([7, 3]))[0])


@pytest.mark.parametrize("peak", [255, 16])
def test_normalisation_is_the_formula_rounded_once(peak: int) -> None:
    data = images(peak=peak)
    wanted = (data.x / peak - np.array(MEAN)[:, None, None]) / np.array(STD)[:, None, None]
    assert np.array_equal(data.normalize(data.x), wanted.astype(np.float32))


def test_a_position_beyond_the_end_is_no_image() -> None:
    with pytest.raises(IndexError):
        images().batch(np.array([40]))


def test_a_part_holds_its_images_and_keeps_the_normalisation() -> None:
    data = images()
    part = data.part(np.array([5, 2]))
    assert np.array_equal(part.x, data.x[[5, 2]]) and np.array_equal(part.y, [1, 2]) and part.mean == data.mean


def test_moments_are_those_of_all_pixels() -> None:
    x = pixels(30, 3, 4, 4)
    mean, std = compute_moments(x)
    assert np.allclose(mean, (x / 255).mean(axis=(0, 2, 3)), rtol=1e-12)
    assert np.allclose(std, (x / 255).std(axis=(0, 2, 3)), rtol=1e-12)


def test_a_constant_channel_becomes_zero() -> None:
    x = np.full((4, 1, 2, 2), 80, dtype=np.uint8)
    data = ImageSet(x, np.zeros(4, dtype=np.int64), ("a",), *compute_moments(x))
    assert np.abs(data.normalize(x)).max() < 1e-6


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"x": pixels(40, 5, 7)}, "uint8 (N, C, H, W)"),
        ({"x": pixels(40, 3, 5, 7).astype(np.float32)}, "float32"),
        ({"y": np.zeros(39, dtype=np.int64)}, "int64 (40,)"),
        ({"y": np.full(40, 4)}, "0 <= y < 4; got 4 to 4"),
        ({"y": np.full(40, -1)}, "got -1 to -1"),
        ({"mean": (0.5,)}, "one number per channel"),
        ({"std": (0.5, 0.0, 0.5)}, "std above 0"),
    ],
)
def test_a_set_that_is_not_what_it_says_is_refused(change: dict[str, object], says: str) -> None:
    right = {"x": pixels(40, 3, 5, 7), "y": np.arange(40) % 4, "classes": tuple("abcd"), "mean": MEAN, "std": STD}
    with pytest.raises(InputError) as error:
        ImageSet(**{**right, **change})  # type: ignore[arg-type]
    assert says in str(error.value)


def test_float64_pixels_are_not_rounded_to_float32() -> None:
    x = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16)
    images = ImageSet(x, np.zeros(1, np.int64), ("a",), (0.1307,), (0.3081,))
    exact = (x.astype(np.float64) / 255 - 0.1307) / 0.3081
    double, single = (
        DeviceImages(images, dtype).normalize(torch.from_numpy(x)) for dtype in (torch.float64, torch.float32)
    )
    np.testing.assert_array_equal(double.numpy(), exact)
    np.testing.assert_array_equal(single.numpy(), exact.astype(np.float32))
