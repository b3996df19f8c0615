"""What must hold after a scene of the bus, by what handlers saw and what the public API says."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from remuda import HandlerFailed
from remuda.core.flow.merging import REPLACED
from remuda.model.document import Document, QueueView
from remuda.model.life import LIVE, PARKED
from remuda.model.state import State
from remuda.outbox import Outbox

if TYPE_CHECKING:
    from tests.pairs.bus import Scene

QUEUES = ("q", "second")
_LATER = ("pause", "rate", "debounce", "ordered")
"""Options for which a message waits a while, and under test nobody moves the clock during a call."""
_FAILS = ("raise", "raise once", "retry", "not now", "reject", "not interested")


class Broken(AssertionError):
    """Something that must hold does not."""


class Call(NamedTuple):
    """A call of a handler."""

    body: int
    queue: str
    time: int
    answer: str
    among: int
    """How many messages it was called with."""


class Row(NamedTuple):
    body: int
    id: str
    queue: str
    state: str
    attempts: int
    reason: str | None
    moved_to: str | None


class Account:
    """What the broker's log says of the messages of a scene, and the checks."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.bus = scene.place.bus
        self.documents = list(self._documents())
        self.rows = sorted(
            Row(body, one.message.id, view.queue, view.state.value, view.attempts, view.reason, view.moved_to)
            for body, one in self.documents
            for view in one.queues
            if view.queue in QUEUES
        )

    def _documents(self) -> Any:
        broker = self.bus.broker
        for record in broker.spectate().messages():
            for row, message in enumerate(record.messages):
                if message.name in ("x", "y"):
                    body = int(message.body)
                    if body in self.scene.published or body in self.scene.waiting:
                        known = record.first + row if self.scene.place.has_offsets else message.id
                        yield body, broker.message(known)

    def _views(self) -> list[tuple[int, Document, QueueView]]:
        return [(body, one, view) for body, one in self.documents for view in one.queues if view.queue in QUEUES]

    def _successes(self, body: int, queues: tuple[str, ...] = QUEUES) -> int:
        calls = [call for call in self.scene.calls if call.body == body and call.queue in queues]
        return sum(call.answer not in _FAILS for call in calls)

    def check(self) -> list[Row]:
        self.check_places()
        self.check_calls()
        self.check_times()
        self.check_told()
        self.check_results()
        return self.rows

    def check_places(self) -> None:
        """Everything has ended, and counts agree with documents."""
        broker, scene = self.bus.broker, self.scene
        for name in (*QUEUES, "answers", "failures", "remuda.callbacks", "remuda.unrouted"):
            assert not broker.queue(name).size, f"{name} still holds {broker.queue(name).size}: {self.rows}"
        for body, one, view in self._views():
            assert view.state not in LIVE, f"{body} is still {view.state.value} in {view.queue}"
            assert body in scene.published or body in scene.waiting, f"{body} was refused, and is in {view.queue}"
            assert len({v.queue for v in one.queues}) == len(one.queues)
        for name in QUEUES:
            info = broker.queue(name)
            parked = [view for _, _, view in self._views() if view.queue == name and view.state in PARKED]
            kept = sum(view.moved_to is None and view.reason != REPLACED for view in parked) - (
                scene.forgotten if name == "q" else 0
            )
            told = info.dead + info.invalid + info.not_interested
            assert told == kept, f"{name} keeps {told} that failed, by the documents {kept}: {self.rows}"
        stored = {body for body, _ in self.documents}
        for body, known in scene.published.items():
            if body not in stored and self._waits_in_outbox(known):
                continue  # its queue refuses it, and the outbox tries again in minutes
            status = self.bus.status(known)
            assert status.ended, f"{known} has not ended by its status"
            merged = scene.publish in ("unique", "idempotency key") and body == 1
            assert body in stored or merged, f"{body} was accepted and is nowhere"
        if scene.publish == "idempotency key":
            ids = Counter(one.message.id for _, one in self.documents)
            assert max(ids.values(), default=1) == 1, f"a key was stored twice: {ids}"

    def _waits_in_outbox(self, known: str) -> bool:
        outbox = self.bus.outbox
        stored = outbox.status(known) if isinstance(outbox, Outbox) else None
        return stored is not None and stored.status in ("delayed", "failed")

    def check_calls(self) -> None:
        """A copy is completed by one call that succeeded, and attempts are the calls that count."""
        scene = self.scene
        for body, _, view in self._views():
            calls = [call for call in scene.calls if call.body == body and call.queue == view.queue]
            good = [call for call in calls if call.answer not in _FAILS and call.among == 1]
            alone = scene.handler != "list"
            if view.state is State.COMPLETED:
                assert calls, f"{body} succeeded in {view.queue} without a call"
                again = scene.verb == "move" and scene.publish == "topics"  # moved to where it was done
                assert not alone or again or len(good) == 1, f"{body} succeeded {len(good)} times in {view.queue}"
            elif alone:
                assert not good, f"{body} is {view.state.value} in {view.queue} though a call succeeded"
            if alone and scene.verb not in ("reprocess", "move"):
                counted = sum(call.answer != "not now" for call in calls)
                least = scene.place.has_offsets  # RabbitMQ counts what came back without a call, too
                right = view.attempts == counted if least else view.attempts >= counted
                # A handler that is interrupted does not come to say that its attempt does not count.
                right |= view.reason == "cancelled" and scene.answer == "not now" and view.attempts == counted + 1
                assert right, f"{body} has {view.attempts} attempts in {view.queue}, not {counted}: {self.rows}"

    def check_times(self) -> None:
        scene = self.scene
        for call in scene.calls:
            if scene.verb == "reprocess":
                break  # it begins again, now
            due, expires = scene.due.get(call.body, 0), scene.expires.get(call.body, 1 << 62)
            assert call.time >= due, f"{call.body} was handled {due - call.time} µs before its time"
            late = call.time - expires
            assert late < scene.place.slack or scene.handler == "expired", f"{call.body} was handled {late} µs late"
        if scene.handler == "ordered":
            self._check_order()
        if scene.handler in ("pause", "rate") and "opened" not in scene.moment:
            times = [call.time for call in scene.calls if call.queue == "q"]
            for one, other in pairwise(times):
                least = scene.place.units(1) - scene.place.slack
                assert other - one >= least, f"the pause between messages was {other - one} µs"

    def _check_order(self) -> None:
        """One of a key is done with before the next one begins."""
        scene = self.scene
        if scene.verb in ("reprocess", "move") or scene.publish in ("transaction", "call") or scene.due:
            return
        for key in set(scene.keys):
            bodies = [call.body for call in scene.calls if call.queue == "q" and scene.keys[call.body] == key]
            assert bodies == sorted(bodies), f"of key {key} these were handled: {bodies}"

    def check_told(self) -> None:
        """Callbacks come once for each success, failure callbacks once for each end without success."""
        scene = self.scene
        special = {known: body for body, known in scene.published.items() if body < 3}
        if scene.publish == "callback":
            told = Counter(known for known, _ in scene.answers)
            for known, body in special.items():
                expected = self._successes(body, ("second",) if scene.answer == "remove" else QUEUES)
                if scene.handler == "list":
                    expected = min(expected, 1)
                assert told[known] == expected, f"{body} was answered {told[known]} times, not {expected}"
        if scene.publish == "failure callback":
            ends = self._ends() if scene.place.has_offsets else self._parked()
            assert Counter(scene.failures) == ends, f"told {Counter(scene.failures)}, ended {ends}: {self.rows}"
        if scene.answer == "publish":
            expected_children = Counter(call.body for call in scene.calls if call.answer == "publish")
            assert Counter(scene.children) == expected_children
        for body, future in scene.waiting.items():
            self._check_call(body, future)

    def _ends(self) -> Counter[str]:
        """How often the first three ended without success, by the log."""
        ends: Counter[str] = Counter()
        for record in self.bus.broker.spectate().events():
            for event in record.rows:
                if event.queue in QUEUES and event.state in PARKED and event.to is None:
                    for body, one in self.documents:
                        if event.first <= one.offset < event.first + event.count and body < 3:
                            ends[one.message.id] += 1
        return ends + Counter(one.message.id for body, one in self.documents if body < 3 and not one.queues)

    def _parked(self) -> Counter[str]:
        return Counter(
            one.message.id
            for body, one, view in self._views()
            if body < 3 and view.state in PARKED and view.moved_to is None
        )

    def _check_call(self, body: int, future: Any) -> None:
        scene = self.scene
        error = future.exception(10)
        if error is None:
            assert future.result() == body, f"the call was answered {future.result()}"
            assert self._successes(body), "a call was answered without a handler"
        elif isinstance(error, TimeoutError):
            waits = scene.answer == "not now" or scene.handler in _LATER or scene.refused
            waits |= scene.place.hosted  # replies on their way are lost with the host
            assert waits, f"a call waited: {error}"
        elif isinstance(error, HandlerFailed):
            ended = [view for n, _, view in self._views() if n == body and view.state in PARKED]
            hidden = scene.answer in ("rewrite", "remove", "raise once", "retry", "not now")
            skipped = any(n == body and not one.queues for n, one in self.documents)
            assert ended or hidden or skipped, f"a call failed though its message did not: {error}"

    def check_results(self) -> None:
        scene = self.scene
        if scene.publish != "keep result" and scene.handler != "keeps results":
            return
        for body, one, view in self._views():
            kept = scene.handler == "keeps results" or body < 3
            if not kept or view.queue != "q" or one.message.id != scene.published.get(body):
                continue
            if sum(known == one.message.id for known in scene.published.values()) > 1:
                continue  # the id names the newest
            if view.state is State.COMPLETED:
                assert self.bus.result(one.message.id, queue="q") == body
            elif view.moved_to is None:
                try:
                    got = self.bus.result(one.message.id, queue="q")
                except HandlerFailed:
                    continue
                raise AssertionError(f"{body} is {view.state.value}, and its result is {got}")
