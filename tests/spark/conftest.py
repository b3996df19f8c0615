"""Spark's tests may take their time: a JVM that starts on a busy machine needs a minute alone."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

_PATIENCE: Final = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_PATIENCE))
