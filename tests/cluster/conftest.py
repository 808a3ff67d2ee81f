"""Two raylets take about a minute: these tests run where they are asked for, `./go test tests/cluster`."""

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    asked = any("cluster" in word for word in config.invocation_params.args)
    return None if asked or collection_path.is_dir() else True
