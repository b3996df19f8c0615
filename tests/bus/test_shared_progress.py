"""B8: what a process leaves in shared memory, and how its parent reads it."""

from __future__ import annotations

import pickle
import time

import pytest

from remuda.bus.broker_api import Outcome
from remuda.bus.execution.processes import shared_progress as shared
from remuda.bus.execution.processes.batch_tracker import BatchTracker, CallDeadline
from remuda.bus.execution.processes.shared_progress import SharedProgress
from remuda.bus.handlers.result import DONE, CallResult
from remuda.model.values.durations import MILLISECOND

FAILED = CallResult(Outcome.NACK, "ValueError: no")


@pytest.fixture
def page() -> SharedProgress:
    return SharedProgress(bytearray(1000), 100)


def fail(page: SharedProgress, rows: list[int]) -> None:
    page.write(pickle.dumps((rows, FAILED)))
    page.mark(rows, shared.TOLD)


class TestSharedProgress:
    def test_keeps_texts_until_it_is_full(self, page: SharedProgress) -> None:
        assert page.write(b"a" * 400)
        assert page.write(b"")
        assert not page.write(b"b" * 480)
        assert page.write(b"c" * 400)
        assert list(page.texts()) == [b"a" * 400, b"", b"c" * 400]

    def test_is_clean_after_wiping(self, page: SharedProgress) -> None:
        page.begin([0, 7])
        page.write(b"x")
        page.wipe(100)
        assert page.marks(100) == bytes(100)
        assert page.began == 0
        assert list(page.texts()) == []


class TestProgress:
    def test_tells_what_ended_what_runs_and_what_waits(self, page: SharedProgress) -> None:
        page.begin([0])
        page.mark([0], shared.DONE)
        page.begin([1, 2])
        fail(page, [1, 2])
        page.begin([3])
        rest = BatchTracker(page, 6).take()
        assert rest.finished == [([1, 2], FAILED), ([0], DONE)]
        assert rest.running == [3]
        assert rest.waiting == [4, 5]

    def test_tells_everything_once(self, page: SharedProgress) -> None:
        tracker = BatchTracker(page, 5)
        page.mark([0], shared.DONE)
        fail(page, [1])
        page.begin([2])
        tracker.take()
        fail(page, [2])
        rest = tracker.take()
        assert (rest.finished, rest.running, rest.waiting) == ([([2], FAILED)], [], [])

    def test_knows_outcomes_that_came_by_the_line(self, page: SharedProgress) -> None:
        tracker = BatchTracker(page, 2)
        tracker.hear(pickle.dumps(([0], FAILED)))
        page.mark([0], shared.TOLD)
        assert tracker.take().finished == [([0], FAILED)]

    def test_takes_a_call_as_ended_that_had_no_time_to_mark_it(self, page: SharedProgress) -> None:
        page.begin([0])
        page.write(pickle.dumps(([0], FAILED)))
        rest = BatchTracker(page, 1).take()
        assert (rest.finished, rest.running) == ([([0], FAILED)], [])

    def test_takes_a_call_as_running_whose_outcome_is_lost(self, page: SharedProgress) -> None:
        page.mark([0], shared.TOLD)
        rest = BatchTracker(page, 1).take()
        assert (rest.finished, rest.running) == ([], [0])


class TestLimit:
    """B6"""

    def test_holds_for_each_call(self, page: SharedProgress) -> None:
        tracker, limit = BatchTracker(page, 2), CallDeadline(20 * MILLISECOND)
        page.begin([0])
        time.sleep(0.015)
        page.mark([0], shared.DONE)
        page.begin([1])
        assert not limit.is_broken(tracker, limit.look)
        assert limit.look == pytest.approx(page.began / 1e9 + 0.02)
        assert limit.is_broken(tracker, limit.look)
        assert limit.broken == page.began
        assert limit.look == float("inf")

    def test_blames_nobody_between_calls(self, page: SharedProgress) -> None:
        tracker, limit = BatchTracker(page, 2), CallDeadline(20 * MILLISECOND)
        page.begin([0])
        page.mark([0], shared.DONE)
        now = limit.look
        assert not limit.is_broken(tracker, now)
        assert limit.look == now + 0.02
        assert limit.broken is None

    def test_that_one_call_breaks_is_not_charged_to_the_next(self, page: SharedProgress) -> None:
        tracker, limit = BatchTracker(page, 2), CallDeadline(20 * MILLISECOND)
        assert limit.result_of_kill(tracker) is None
        page.begin([0])
        assert limit.is_broken(tracker, limit.look + 1)
        late = limit.result_of_kill(tracker)
        page.mark([0], shared.DONE)
        page.begin([1])
        spared = limit.result_of_kill(tracker)
        assert late == CallResult(Outcome.NACK, "timed out after 20ms; its process was killed")
        assert spared is not None
        assert spared.outcome is Outcome.RELEASE

    def test_may_be_none(self) -> None:
        assert CallDeadline(None).look == float("inf")
