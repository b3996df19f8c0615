"""Calls that are made one after the other without an object for each: they come to what other calls come to."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from remuda import Bus, Context
from remuda.bus.execution import thread_pool
from remuda.bus.execution.active_delivery import LINGER, ActiveDelivery
from remuda.bus.execution.thread_pool import ThreadWorker, ThreadWorkerPool
from remuda.bus.execution.watchdog import Watchdog
from remuda.bus.handlers.exceptions import NotInterested, NotNow, Reject, Retry
from remuda.bus.handlers.result import DONE, CallResult
from remuda.model.settlement import Outcome

ANSWERS: dict[bytes, Callable[[], object]] = {
    b"fails": lambda: 1 // 0,
    b"again": lambda: (_ for _ in ()).throw(Retry("later", after="1h")),
    b"not now": lambda: (_ for _ in ()).throw(NotNow("busy", after="1h")),
    b"wrong": lambda: (_ for _ in ()).throw(Reject("nonsense")),
    b"not mine": lambda: (_ for _ in ()).throw(NotInterested("no")),
    b"ends": lambda: (_ for _ in ()).throw(SystemExit(3)),
}


def outcome(plainly: bool, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What becomes of a delivery with all kinds of messages."""
    if not plainly:
        monkeypatch.setattr(thread_pool, "plain_handler", lambda dispatcher, attempts: None)
    with Bus("memory://") as bus:

        @bus.subscribe("x", queue="q")
        def handle(body: bytes) -> object:
            bus.publish("seen", {"body": body.decode()})
            answer = ANSWERS.get(body, lambda: None)
            return answer()

        bus.broker.create_queue("seen", patterns=["seen"])
        broker = bus.broker
        ids = bus.publish_many("x", [b"one", *ANSWERS, b"last"])
        worker = ThreadWorker(ThreadWorkerPool(next(one for one in bus.processors() if one.queue == "q"), Watchdog()))
        delivery = broker.pull("q", 100)
        assert delivery is not None
        assert len(delivery) == 2 + len(ANSWERS)
        assert worker._handle(delivery)
        seen = broker.pull("seen", 100)
        assert seen is not None
        parents = [ids.index(message.headers["cap-corr-id"]) for message in seen]
        views = [broker.message(own).queues[0] for own in ids]
        return [parents, [(view.state, view.reason, view.attempts) for view in views], bodies_of(seen)]


def bodies_of(delivery: Any) -> list[bytes]:
    return list(delivery.bodies)


def test_every_answer_is_the_same_one_by_one_and_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """B4, B9, B12: also which message caused what a handler publishes."""
    plainly = outcome(True, monkeypatch)
    assert plainly == outcome(False, monkeypatch)
    assert plainly[0] == list(range(2 + len(ANSWERS)))


def test_a_body_is_given_by_name_to_whoever_takes_names_alone() -> None:
    """B2: a decorator shows the signature of what it wraps, and may take less."""
    got: list[object] = []

    def by_name(function: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(function)
        def wrapper(**given: object) -> object:
            return function(**given)

        return wrapper

    class Shop:
        def sell(self, order: dict[str, int]) -> None:
            got.append(order)

    with Bus("memory://") as bus:

        @bus.subscribe("wrapped")
        @by_name
        def wrapped(body: str) -> None:
            got.append(body)

        @bus.subscribe("behind")
        def behind(context: Context, *, body: str) -> None:
            got.append((context.message.body, body))

        @bus.subscribe("second")
        def second(limit: int = 3, *rest: int, body: str) -> None:
            got.append((limit, body))

        bus.subscribe("method")(Shop().sell)
        for topic, value in [("wrapped", "a"), ("behind", "b"), ("second", "c"), ("method", {"id": 1})]:
            bus.publish(topic, value)
            bus.run(until_idle=True)
    assert got == ["a", (b'"b"', "b"), (3, "c"), {"id": 1}]


class Rows:
    """As many rows as a delivery has."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def begin(self, rows: list[int]) -> None: ...


def test_who_answers_for_a_worker_knows_what_it_has_begun() -> None:
    """B16: of rows that are taken out one by one, those whose calls ended, the one that runs, and the rest."""
    active: ActiveDelivery[Any] = ActiveDelivery(Rows(6))
    bad = CallResult(Outcome.NACK, "no")
    active.ended_rows = 0
    for row in (0, 1, 2):
        assert active.waiting.popleft() == row
        if row == 1:
            active.note(row, bad)
        if row < 2:
            active.ended_rows = row + 1
    state = active.close()
    assert state is not None
    assert (sorted(state.finished), state.running, state.waiting) == ([([0], DONE), ([1], bad)], [2], [3, 4, 5])
    assert active.close() is None
    assert not active.waiting


def test_the_first_call_is_running_before_any_has_ended() -> None:
    """B16"""
    active: ActiveDelivery[Any] = ActiveDelivery(Rows(2))
    active.ended_rows = 0
    active.waiting.popleft()
    state = active.close()
    assert state is not None
    assert (state.finished, state.running, state.waiting) == ([], [0], [1])


def test_no_row_is_both_begun_and_given_back() -> None:
    """B8: a worker and whoever gives back what it has not begun take rows from both ends at once."""
    for _ in range(50):
        active: ActiveDelivery[Any] = ActiveDelivery(Rows(400))
        active.ended_rows, begun, go = 0, list[int](), threading.Event()

        def work(active: ActiveDelivery[Any] = active, begun: list[int] = begun, go: threading.Event = go) -> None:
            go.wait()
            while active.waiting:
                try:
                    begun.append(active.waiting.popleft())
                except IndexError:
                    return
                active.ended_rows = begun[-1] + 1

        thread = threading.Thread(target=work)
        thread.start()
        go.set()
        given = active.give_back(active._began + LINGER)
        thread.join()
        state = active.close()
        assert state is not None
        assert begun + given == list(range(400))
        assert [row for rows, _ in state.finished for row in rows] == begun
        assert (state.running, state.waiting) == ([], [])
