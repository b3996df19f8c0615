"""What a report is asked to be about."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from remuda.model.values.urls import parse_url
from remuda.report.figures import Report
from remuda.report.formatting import clock, listed
from remuda.report.windows import moment

Tell = Callable[[str], None]
"""Called with what is being done."""


class ReportRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A log or a lake, and which part of it to report on."""

    url: str | None = None
    """The directory of a log."""
    lake: str | None = None
    """The folder of a lake whose table of lives is read instead of a log."""
    since: int | None = None
    """Messages published at this time (microseconds) or later."""
    until: int | None = None
    """Messages published before."""
    queues: tuple[str, ...] = ()
    """All of them unless some are named."""
    window: str = "auto"
    detailed: int = 12
    """How many queues are shown in detail; the busiest ones."""

    @property
    def source(self) -> str:
        return self.lake or (str(parse_url(self.url)) if self.url else "")

    def selection(self) -> str:
        """What was asked for, in words."""
        parts = []
        if self.queues:
            parts.append(f"queue {listed(self.queues)}" if len(self.queues) == 1 else f"queues {listed(self.queues)}")
        if self.since is not None:
            parts.append(f"since {clock(moment(self.since))}")
        if self.until is not None:
            parts.append(f"until {clock(moment(self.until))}")
        return ", ".join(parts)


def empty(request: ReportRequest) -> Report:
    """A report without any message."""
    return Report(source=request.source, selection=request.selection(), written=datetime.now(UTC))
