import pytest

from splitrelay.errors import InputError
from splitrelay.tensor_types import TensorType


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        TensorType((3,), "complex64")
    assert caught.value.value == "complex64"


def test_only_real_numbers_are_floats() -> None:
    assert TensorType((3,)).is_float
    assert TensorType((3,), "float64").is_float
    assert not TensorType((3,), "int64").is_float
