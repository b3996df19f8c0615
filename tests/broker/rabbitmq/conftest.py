"""What the broker refuses is left out of the suite, by the name that it gives itself; whatever else fails, fails."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from remuda.model.errors import Unsupported
from tests.broker.rabbitmq.differences import REFUSED, reason_to_skip

SUITE = "rabbitmq/test_conformance.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if SUITE in item.nodeid and isinstance(item, pytest.Function) and item.cls is not None:
            reason = reason_to_skip(item.cls.__name__, item.name)
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    if SUITE not in item.nodeid:
        return (yield)
    try:
        return (yield)
    except Unsupported as refusal:
        if refusal.feature not in REFUSED:
            raise
        pytest.skip(f"refused: {refusal.feature}")
