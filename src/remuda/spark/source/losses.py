"""What is missing from a log: it stops a query, or is counted and logged, but never passes in silence."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

import msgspec

from remuda.model.errors import DataLost

_log: Final = logging.getLogger("remuda.spark")
_MOST: Final = 5
_MOST_GONE: Final = 1000
"""Ranges that a checkpoint keeps: some 20 KB of it, until they are read past."""
_said: set[tuple[str, str]] = set()


class Gap(msgspec.Struct, frozen=True):
    """Neighbouring numbers whose rows are not there: removed by the collector, or lost to damage."""

    start: int
    stop: int
    damaged: bool

    def clip(self, start: int, stop: int) -> Gap:
        return Gap(max(self.start, start), min(self.stop, stop), self.damaged)

    def __len__(self) -> int:
        return max(self.stop - self.start, 0)


def losses(gaps: Iterable[Gap], gone: Sequence[range] | None) -> list[Gap]:
    """The gaps that are a loss to a query: damage, and rows that were collected after it had begun.

    `gone` is what had been collected by then, in order; None where collected rows are no loss.
    """
    found: list[Gap] = []
    for gap in gaps:
        if gap.damaged:
            found.append(gap)
        elif gone is not None:
            found += [Gap(one.start, one.stop, False) for one in subtracted(range(gap.start, gap.stop), gone)]
    return found


def collected(gaps: Iterable[Gap], most: int = _MOST_GONE) -> list[range]:
    """What was collected, as at most `most` ranges in order: where there are more, the shortest runs of rows between
    gaps count as collected too."""
    gone = [range(gap.start, gap.stop) for gap in gaps if not gap.damaged]
    if len(gone) <= most:
        return gone
    between = [after.start - before.stop for before, after in pairwise(gone)]
    apart = {at for at, _ in sorted(enumerate(between), key=lambda one: -one[1])[: most - 1]}
    joined = [gone[0]]
    for at, one in enumerate(gone[1:]):
        if at in apart:
            joined.append(one)
        else:
            joined[-1] = range(joined[-1].start, one.stop)
    return joined


def report(url: str, number: str, lost: Sequence[Gap], *, fail: bool, choice: str = "failOnDataLoss=false") -> None:
    """Stop the query, or log it once for each log. `choice` is how a caller continues without what is lost."""
    if not lost:
        return
    listed = ", ".join(
        f"{gap.start} to {gap.stop - 1} ({'damaged or removed' if gap.damaged else 'collected before they were read'})"
        for gap in lost[:_MOST]
    )
    more = f" and {len(lost) - _MOST} more ranges" if len(lost) > _MOST else ""
    text = f"rows are missing from the log at {url!r}: {number} {listed}{more}, {sum(map(len, lost))} numbers in all"
    if fail:
        raise DataLost(
            f"{text}. Nothing of this batch was taken. Restore the files from a copy, or continue without: {choice}"
        )
    if (url, number) not in _said:
        _said.add((url, number))
        _log.warning("%s. The query continues without them (%s)", text, choice)


def tell_losses(url: str, missing: Iterable[Gap]) -> None:
    """Say once what a report could not count. What the collector has taken is no loss there."""
    report(url, "offsets or positions", losses(missing, None), fail=False, choice="a report counts what can be read")


def subtracted(whole: range, covered: Iterable[range]) -> list[range]:
    """What of a range is not covered by ranges, which come in order."""
    left: list[range] = []
    cursor = whole.start
    for one in covered:
        if one.start > cursor:
            left.append(range(cursor, min(one.start, whole.stop)))
        cursor = max(cursor, one.stop)
    if cursor < whole.stop:
        left.append(range(cursor, whole.stop))
    return [one for one in left if one]
