"""What the broker refuses is left out of the suite, by the name that it gives itself; whatever else fails, fails."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from remuda.model.errors import Unsupported

REFUSED = frozenset(
    {
        "auto_destroy", "commit_when", "confirmations", "delay_between_messages", "expired_queue", "group",
        "limit_exceeded", "message_limit", "message_timeout", "newest", "persistence", "routers", "type", "unique_ids",
        "waiting",
    }
)  # fmt: skip
"""As in the table of docs/rabbitmq.md."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    if "test_conformance" not in item.nodeid:
        return (yield)
    try:
        return (yield)
    except Unsupported as refusal:
        if refusal.feature not in REFUSED:
            raise
        pytest.skip(f"refused: {refusal.feature}")
