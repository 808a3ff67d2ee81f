"""What all tests share: kernels that are not built are not tested, and nothing is flushed to the disk."""

import os
from collections.abc import Iterator

import pytest

from splitrelay.kernels import find_obstacle

collect_ignore_glob = [] if find_obstacle() is None else ["kernels/test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def no_flush() -> Iterator[None]:
    """Do not wait for the disk. A flush matters only if the power fails; tests that check flushes record the calls."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield
