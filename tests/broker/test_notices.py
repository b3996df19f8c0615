"""The notice board tells handlers in order and waits for none of them (Q19)."""

from __future__ import annotations

import threading

import pytest

from remuda.broker.embedded.delivering import notices
from remuda.broker.embedded.delivering.notices import NoticeBoard
from remuda.model.queues.notices import Notice, NoticeKind


def notice(number: int) -> Notice:
    return Notice(NoticeKind.PRODUCED, "orders", number)


def test_every_handler_hears_everything_in_order() -> None:
    board, first, second = NoticeBoard(), list[Notice](), list[Notice]()
    board.add(first.append)
    board.add(second.append)
    board.post(notice(number) for number in range(50))
    assert board.flush(60)
    board.close()
    assert [one.time for one in first] == list(range(50))
    assert first == second


def test_a_failing_handler_is_logged_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    board, heard = NoticeBoard(), list[Notice]()

    def fail(one: Notice) -> None:
        raise ValueError("boom")

    board.add(fail)
    board.add(heard.append)
    board.post([notice(0), notice(1)])
    assert board.flush(60)
    board.close()
    assert len(heard) == 2
    assert caplog.text.count("a handler failed on notice 'produced' of queue orders") == 2


def test_posting_never_waits_for_a_handler() -> None:
    board, go_on = NoticeBoard(), threading.Event()

    def linger(one: Notice) -> None:
        go_on.wait(60)

    board.add(linger)
    for number in range(1000):
        board.post([notice(number)])
    assert not board.flush(0.01)
    go_on.set()
    assert board.flush(60)
    board.close()


def test_a_full_board_drops_the_oldest_and_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "_LIMIT", 10)
    board, heard, go_on, entered = NoticeBoard(), list[int](), threading.Event(), threading.Event()

    def linger(one: Notice) -> None:
        entered.set()
        go_on.wait(60)
        heard.append(one.time)

    board.add(linger)
    board.post([notice(0)])
    assert entered.wait(60)
    board.post(notice(number) for number in range(1, 16))
    assert board.dropped == 5
    go_on.set()
    assert board.flush(60)
    board.close()
    assert heard == [0, *range(6, 16)]


def test_a_removed_handler_hears_no_more() -> None:
    board, heard = NoticeBoard(), list[Notice]()
    hear = heard.append
    board.add(hear)
    assert board.wanted
    board.remove(hear)
    assert not board.wanted
    board.post([notice(0)])
    assert board.flush(60)
    board.close()
    assert heard == []


def test_closing_tells_what_was_posted_before() -> None:
    board, heard = NoticeBoard(), list[Notice]()
    board.add(heard.append)
    board.post([notice(0), notice(1)])
    board.close()
    assert len(heard) == 2
