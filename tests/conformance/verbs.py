"""What operators do keeps what a message carries: due time, headers, attempts, history and who did it (B15, B22)."""

from __future__ import annotations

from typing import Any

import pytest

from remuda.broker.port import Broker
from remuda.model.document import Document
from remuda.model.errors import InvalidOption
from remuda.model.life import PARKED
from remuda.model.message import Message
from remuda.model.operations.filters import MessageFilter
from remuda.model.records import Event
from remuda.model.state import State
from tests.conformance.kit import Backend, Conformance, pulled, restarted, waiting_bodies

HOUR = 3_600_000_000
HEADERS = {"tenant": "acme", "cap-corr-id": "77"}


class Verbs(Conformance):
    """One message of each kind: waiting, delayed, waiting for a retry, put back, dead, and in flight."""

    @pytest.fixture
    def broker(self, backend: Backend) -> Broker:
        broker = backend.open()
        for name in ("orders", "second"):
            broker.create_queue(name, type="pull", acknowledge_timeout="1h")
        return broker

    @pytest.fixture
    def ids(self, broker: Broker) -> dict[str, str]:
        now = broker.message(broker.publish(Message("orders", b"first")).id).created
        pulled(broker).ack()
        ids = {}
        for kind in ("retried", "dead", "held", "put back"):
            ids[kind] = broker.publish(_message(kind)).id
            delivery = pulled(broker, consumer="anna")
            if kind == "retried":
                delivery.retry(after="1h", reason="no stock")
            elif kind == "dead":
                delivery.dead(reason="no address")
            elif kind == "put back":
                delivery.nack(reason="busy", front=True)
                pulled(broker, consumer="ben").nack(reason="busy")
            else:
                self.held = delivery
        ids["waiting"] = broker.publish(_message("waiting", priority=7)).id
        ids["delayed"] = broker.publish(_message("delayed", due=now + HOUR)).id
        return ids

    def test_b22_a_move_takes_what_waits_with_all_it_carries(
        self, backend: Backend, broker: Broker, ids: dict[str, str]
    ) -> None:
        before = {kind: broker.message(id) for kind, id in ids.items()}
        assert broker.move("orders", "second", who="eve") == 4
        info, other = broker.queue("orders"), broker.queue("second")
        assert (info.waiting, info.delayed, info.in_flight, info.dead) == (0, 0, 1, 1)
        assert (other.waiting + other.delayed, other.dead) == (4, 0)
        for kind in ("waiting", "delayed", "retried", "put back"):
            after = broker.message(ids[kind])
            assert after.message == before[kind].message, "id, headers, priority and times are the message's own"
            _check_history(before[kind], after)
            assert {event.who for event in _moves(broker, after)} == {"eve"}
        due = {kind: _moves(broker, broker.message(ids[kind]))[-1].due or 0 for kind in ("delayed", "retried")}
        now = broker.message(ids["waiting"]).queues[0].modified
        assert due["delayed"] == before["delayed"].message.due
        assert due["retried"] > now + HOUR // 2
        assert broker.message(ids["held"]) == before["held"]
        assert self.held.ack() == 1

        broker = restarted(backend, broker) if backend.durable else broker
        assert broker.queue("second").delayed >= 2, "what is due in an hour is due in an hour, after a restart too"
        delivery = pulled(broker, "second", timeout="10s")
        assert (delivery.bodies, delivery.attempts, delivery[0].headers) == ([b"waiting"], [1], HEADERS)
        delivery.ack()
        delivery = pulled(broker, "second", timeout="10s")
        assert (delivery.bodies, delivery.attempts) == ([b"put back"], [3]), "the attempts that counted still count"
        delivery.ack()
        assert broker.pull("second", timeout="20ms") is None

    def test_b22_a_dead_letter_moves_as_itself_and_starts_afresh(self, broker: Broker, ids: dict[str, str]) -> None:
        before = broker.message(ids["dead"])
        assert broker.move("orders", "second", MessageFilter(reason="no address"), who="eve") == 1
        after = broker.message(ids["dead"])
        assert after.message == before.message
        assert after.offset == before.offset, "it is the same message, not a copy"
        _check_history(before, after, afresh=True)
        assert {event.who for event in _moves(broker, after)} == {"eve"}
        assert [(event.to, event.reason) for event in _moves(broker, after)] == [
            ("second", None),
            (None, "moved from orders"),
        ]
        assert (broker.queue("orders").dead, broker.queue("second").waiting) == (0, 1)
        delivery = pulled(broker, "second")
        assert (delivery.bodies, delivery.attempts, delivery[0].headers) == ([b"dead"], [1], HEADERS)

    def test_b22_what_was_put_back_moves_with_its_attempts_and_history(self, broker: Broker) -> None:
        id = broker.publish(_message("put back")).id
        pulled(broker, consumer="anna").nack(reason="busy")
        before = broker.message(id)
        assert broker.move("orders", "second", who="eve") == 1
        after = broker.message(id)
        assert after.message == before.message
        _check_history(before, after)
        assert {event.who for event in _moves(broker, after)} == {"eve"}
        assert [(event.to, event.reason) for event in _moves(broker, after)] == [
            ("second", None),
            (None, "moved from orders"),
        ]
        delivery = pulled(broker, "second")
        assert (delivery.bodies, delivery.attempts, delivery[0].headers) == ([b"put back"], [2], HEADERS)

    def test_b22_what_waits_for_a_retry_is_chosen_by_its_reason(self, broker: Broker, ids: dict[str, str]) -> None:
        chosen = MessageFilter(states=frozenset({State.RETRY}), reason="stock")
        assert broker.move("orders", "second", chosen) == 1
        assert broker.message(ids["retried"]).queues[0].moved_to == "second"

    def test_b22_a_move_that_cannot_be_meant_moves_nothing(self, broker: Broker, ids: dict[str, str]) -> None:
        before = [broker.message(id) for id in ids.values()]
        for chosen, to in (
            (None, "orders"),
            (MessageFilter(states=frozenset({State.SUCCESS})), "second"),
            (MessageFilter(states=frozenset({State.QUEUED}), reason="no stock"), "second"),
        ):
            with pytest.raises(InvalidOption, match=r"[Nn]othing was moved"):
                broker.move("orders", to, chosen)
        assert [broker.message(id) for id in ids.values()] == before

    def test_b22_clear_keeps_history_and_says_who(self, broker: Broker, ids: dict[str, str]) -> None:
        before = {kind: broker.message(id) for kind, id in ids.items()}
        assert broker.clear("orders", who="eve") == 4
        for kind in ("waiting", "delayed", "retried", "put back"):
            after = broker.message(ids[kind])
            assert (after.message, after.queues[0].state) == (before[kind].message, State.DEAD)
            _check_history(before[kind], after)
            assert _events(broker, after)[-1].who == "eve"
        assert broker.message(ids["held"]) == before["held"]
        assert broker.message(ids["dead"]) == before["dead"]

    def test_b22_reprocess_keeps_history_and_says_who(self, broker: Broker, ids: dict[str, str]) -> None:
        before = {kind: broker.message(id) for kind, id in ids.items()}
        assert broker.reprocess("orders", who="eve") == 2, "the dead one, and the one that waits for a retry"
        for kind in ("dead", "retried"):
            after = broker.message(ids[kind])
            assert (after.message, after.queues[0].state) == (before[kind].message, State.QUEUED)
            _check_history(before[kind], after, afresh=True)
            assert _events(broker, after)[-1].who == "eve"
        for kind in ("waiting", "delayed", "held"):
            assert broker.message(ids[kind]) == before[kind]
        assert {b"dead", b"retried", b"waiting"} <= set(waiting_bodies(broker))

    def test_b22_what_was_cleared_comes_back_with_its_history(self, broker: Broker) -> None:
        """On every broker, RabbitMQ included: nothing here waits for its time."""
        ids = {"put back": broker.publish(_message("put back")).id}
        pulled(broker, consumer="anna").nack(reason="busy")
        ids["waiting"] = broker.publish(_message("waiting")).id
        before = {kind: broker.message(id) for kind, id in ids.items()}
        assert broker.clear("orders", who="eve") == 2
        for kind, id in ids.items():
            after = broker.message(id)
            assert (after.message, after.queues[0].state) == (before[kind].message, State.DEAD)
            assert after.queues[0].reason == "cleared"
            _check_history(before[kind], after)
            assert _events(broker, after)[-1].who == "eve"
        assert broker.reprocess("orders", who="ada") == 2
        for kind, id in ids.items():
            after = broker.message(id)
            assert (after.message, after.queues[0].state) == (before[kind].message, State.QUEUED)
            _check_history(before[kind], after, afresh=True)
            assert _events(broker, after)[-1].who == "ada"
        for _ in ids:
            delivery = pulled(broker)
            assert (delivery.attempts, delivery[0].headers) == ([1], HEADERS)
            assert delivery[0].id in ids.values()
            delivery.ack()

    def test_b22_failed_messages_go_to_the_front(self, broker: Broker, ids: dict[str, str]) -> None:
        before = {kind: broker.message(id) for kind, id in ids.items()}
        assert broker.requeue_front("orders", who="eve") == 2
        for kind in ("dead", "retried"):
            after = broker.message(ids[kind])
            assert (after.message, after.queues[0].state) == (before[kind].message, State.QUEUED)
            _check_history(before[kind], after, afresh=True)
            assert _events(broker, after)[-1].who == "eve"
        assert waiting_bodies(broker) == [b"waiting", b"retried", b"dead", b"put back"], "priority counts first"

    def test_b22_ten_thousand_are_moved_at_once(self, broker: Broker) -> None:
        broker.publish([Message("orders", b"") for _ in range(10_000)])
        assert broker.move("orders", "second") == 10_000


def _message(kind: str, **fields: Any) -> Message:
    return Message("orders", kind.encode(), headers=HEADERS, **fields)


def _check_history(before: Document, after: Document, *, afresh: bool = False) -> None:
    """A message that failed begins afresh: its history stays, but earlier attempts no longer count."""
    told, kept = before.queues[0], after.queues[0]
    assert kept.queue == told.queue
    assert kept.consumed_by == told.consumed_by
    assert (kept.consumed, kept.processed) == (told.consumed, told.processed)
    assert kept.attempts == (0 if afresh else told.attempts)


def _events(broker: Broker, document: Document) -> list[Event]:
    offset = next(
        record.first + row
        for record in broker.spectate().messages()
        for row, message in enumerate(record.messages)
        if message.id == document.message.id
    )
    rows = [event for record in broker.spectate().events() for event in record.rows]
    return [event for event in rows if event.first <= offset < event.first + event.count]


def _moves(broker: Broker, document: Document) -> list[Event]:
    """How a message left its queue for another, and came there."""
    found = _events(broker, document)
    at = next(at for at, event in enumerate(found) if event.to is not None)
    assert found[at].state in PARKED
    return found[at:]
