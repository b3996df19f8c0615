"""A clock that stands still, and failures inside the conformance suite that show what was compared."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.conformance", "tests.broker.kit")

from tests.broker.kit import ManualClock  # noqa: E402


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()
