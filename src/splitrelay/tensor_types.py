"""The type of one tensor: its shape without the batch, and its dtype. It describes inputs of models and data sets."""

from __future__ import annotations

from dataclasses import dataclass

from splitrelay.errors import InputError

DTYPES = ("float32", "float64", "int64", "int32", "uint8", "bool")


@dataclass(frozen=True)
class TensorType:
    """The type of one input of a model, or of one column of a data set.

    Attributes:
        shape: The shape of one sample, without the batch: (C, H, W) of an image, (n,) of a row of a table.
        dtype: The type of its numbers. "float32" stands for the dtype of the model, which may be float64.

    Example:
        >>> str(TensorType((16,), "int64"))
        'int64 (16,)'
    """

    shape: tuple[int, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InputError("this type of numbers is not supported", value=self.dtype, limit=", ".join(DTYPES))

    @property
    def is_float(self) -> bool:
        """Whether the numbers are real numbers."""
        return self.dtype.startswith("float")

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"
