"""B8: what a process leaves on the slate, and how its parent reads it."""

from __future__ import annotations

import pickle
import time

import pytest

from remuda.bus import slate
from remuda.bus.outcome import DONE, Outcome
from remuda.bus.progress import Limit, Progress
from remuda.bus.slate import Slate
from remuda.core.effects import Answer
from remuda.model.durations import MILLISECOND

FAILED = Outcome(Answer.NEGATIVE, "ValueError: no")


@pytest.fixture
def page() -> Slate:
    return Slate(bytearray(1000), 100)


def fail(page: Slate, rows: list[int]) -> None:
    page.write(pickle.dumps((rows, FAILED)))
    page.mark(rows, slate.TOLD)


class TestSlate:
    def test_keeps_texts_until_it_is_full(self, page: Slate) -> None:
        assert page.write(b"a" * 400)
        assert page.write(b"")
        assert not page.write(b"b" * 480)
        assert page.write(b"c" * 400)
        assert list(page.texts()) == [b"a" * 400, b"", b"c" * 400]

    def test_is_clean_after_wiping(self, page: Slate) -> None:
        page.begin([0, 7])
        page.write(b"x")
        page.wipe(100)
        assert page.marks(100) == bytes(100)
        assert page.began == 0
        assert list(page.texts()) == []


class TestProgress:
    def test_tells_what_ended_what_runs_and_what_waits(self, page: Slate) -> None:
        page.begin([0])
        page.mark([0], slate.DONE)
        page.begin([1, 2])
        fail(page, [1, 2])
        page.begin([3])
        rest = Progress(page, 6).take()
        assert rest.ended == [([1, 2], FAILED), ([0], DONE)]
        assert rest.running == [3]
        assert rest.waiting == [4, 5]

    def test_tells_everything_once(self, page: Slate) -> None:
        progress = Progress(page, 5)
        page.mark([0], slate.DONE)
        fail(page, [1])
        page.begin([2])
        progress.take()
        fail(page, [2])
        rest = progress.take()
        assert (rest.ended, rest.running, rest.waiting) == ([([2], FAILED)], [], [])

    def test_knows_outcomes_that_came_by_the_line(self, page: Slate) -> None:
        progress = Progress(page, 2)
        progress.hear(pickle.dumps(([0], FAILED)))
        page.mark([0], slate.TOLD)
        assert progress.take().ended == [([0], FAILED)]

    def test_takes_a_call_as_ended_that_had_no_time_to_mark_it(self, page: Slate) -> None:
        page.begin([0])
        page.write(pickle.dumps(([0], FAILED)))
        rest = Progress(page, 1).take()
        assert (rest.ended, rest.running) == ([([0], FAILED)], [])

    def test_takes_a_call_as_running_whose_outcome_is_lost(self, page: Slate) -> None:
        page.mark([0], slate.TOLD)
        rest = Progress(page, 1).take()
        assert (rest.ended, rest.running) == ([], [0])


class TestLimit:
    """B6"""

    def test_holds_for_each_call(self, page: Slate) -> None:
        progress, limit = Progress(page, 2), Limit(20 * MILLISECOND)
        page.begin([0])
        time.sleep(0.015)
        page.mark([0], slate.DONE)
        page.begin([1])
        assert not limit.is_broken(progress, limit.look)
        assert limit.look == pytest.approx(page.began / 1e9 + 0.02)
        assert limit.is_broken(progress, limit.look)
        assert limit.broken == page.began
        assert limit.look == float("inf")

    def test_blames_nobody_between_calls(self, page: Slate) -> None:
        progress, limit = Progress(page, 2), Limit(20 * MILLISECOND)
        page.begin([0])
        page.mark([0], slate.DONE)
        now = limit.look
        assert not limit.is_broken(progress, now)
        assert limit.look == now + 0.02
        assert limit.broken is None

    def test_that_one_call_breaks_is_not_charged_to_the_next(self, page: Slate) -> None:
        progress, limit = Progress(page, 2), Limit(20 * MILLISECOND)
        assert limit.verdict(progress) is None
        page.begin([0])
        assert limit.is_broken(progress, limit.look + 1)
        late = limit.verdict(progress)
        page.mark([0], slate.DONE)
        page.begin([1])
        spared = limit.verdict(progress)
        assert late == Outcome(Answer.NEGATIVE, "timed out after 20ms; its process was killed")
        assert spared is not None
        assert spared.answer is Answer.RELEASE

    def test_may_be_none(self) -> None:
        assert Limit(None).look == float("inf")
