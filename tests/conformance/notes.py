"""Notes on messages: the steps of workflows as the broker keeps them (G2)."""

from __future__ import annotations

from typing import Any

import pytest

from remuda.broker.port import Broker
from remuda.model.errors import Duplicate, InvalidOption, NotHeld, QueueFull, RemudaError, Unsupported
from remuda.model.message import Message
from remuda.model.messages import Messages
from remuda.model.notes import NOTE, Note, note_headers
from remuda.model.operations.filters import Which
from remuda.model.operations.results import Receipt
from remuda.model.settlement import Outcome, Settlement
from tests.conformance.kit import SOON, Backend, Conformance, pulled, restarted, view


def row(note: Note, body: bytes, **headers: str) -> Message:
    return Message(NOTE, body, id=f"{note.offset}/{note.number}", headers={**note_headers(note), **headers})


def noted(broker: Broker, note: Note, body: bytes, *others: Message, **headers: str) -> Receipt:
    """Write a note; on a broker that keeps none, see that it is refused by name."""
    try:
        return broker.publish(Messages.of([*others, row(note, body, **headers)]), note=note)
    except Unsupported as error:
        pytest.skip(f"this broker keeps no notes: {error}")


def bodies(broker: Broker, queue: str, offset: int) -> list[tuple[int, bytes]]:
    return [(one.number, one.body) for one in broker.notes(queue, offset)]


def suspended(broker: Broker, **more: Any) -> tuple[int, Any]:
    """A message whose consumer let go of it for a long time."""
    broker.create_queue("runs", type="pull")
    offset = broker.publish(Message("runs", b"r")).first
    delivery = pulled(broker, "runs")
    noted(broker, Note("runs", offset, 0, delivery.lease), b"first")
    delivery.answer(Settlement(Outcome.RELEASE, "sleeping", 3_600_000_000, **more))
    return offset, delivery


class Notes(Conformance):
    """G2: a message has the notes of its consumer and of others, each number once, as long as it lives."""

    def test_g2_what_waits_again_is_told_from_what_is_new_and_what_is_handled(self, broker: Broker) -> None:
        offset, _ = suspended(broker)
        new = broker.publish([Message("runs", b"n"), Message("runs", b"h")]).first
        delivery = pulled(broker, "runs")
        assert broker.waiting("runs", "returned") == [(offset, 1)]
        assert broker.waiting("runs", Which.NEW) == [(new + 1, 1)]
        assert broker.waiting("runs", "handled") == [(new, 1)]
        assert broker.waiting("runs") == [(new + 1, 1), (offset, 1)]
        delivery.ack()
        assert broker.waiting("runs", "handled") == []
        with pytest.raises(InvalidOption, match="which"):
            broker.waiting("runs", "old")

    def test_g2_a_note_is_kept_in_order_until_the_message_ends(self, backend: Backend, broker: Broker) -> None:
        broker.create_queue("runs", type="pull")
        offset = broker.publish(Message("runs", b"r")).first
        delivery = pulled(broker, "runs")
        noted(broker, Note("runs", offset, 0, delivery.lease), b"one", step="charge")
        noted(broker, Note("runs", offset, 7, delivery.lease), b"two")
        found = broker.notes("runs", offset)
        assert [(one.number, one.body) for one in found] == [(0, b"one"), (7, b"two")]
        assert found[0].headers["step"] == "charge"
        assert found[0].created > 0
        delivery.release()
        broker = restarted(backend, broker)
        assert bodies(broker, "runs", offset) == [(0, b"one"), (7, b"two")]
        assert [one.number for one in broker.notes("runs", offset, 1)] == [7]
        assert broker.notes("runs", offset, 2) == []
        pulled(broker, "runs").ack()
        assert bodies(broker, "runs", offset) == []

    def test_g2_a_number_is_noted_once(self, broker: Broker) -> None:
        broker.create_queue("runs", type="pull")
        offset = broker.publish(Message("runs", b"r")).first
        delivery = pulled(broker, "runs")
        noted(broker, Note("runs", offset, 3, delivery.lease), b"first")
        for lease in (delivery.lease, None):
            with pytest.raises(Duplicate):
                noted(broker, Note("runs", offset, 3, lease), b"second", Message("side", b"x"))
        assert bodies(broker, "runs", offset) == [(3, b"first")]
        assert "side" not in [info.name for info in broker.queues()]

    def test_g2_only_the_holder_notes_under_its_lease(self, broker: Broker) -> None:
        broker.create_queue("runs", type="pull")
        offset = broker.publish(Message("runs", b"r")).first
        old = pulled(broker, "runs")
        noted(broker, Note("runs", offset, 0, old.lease), b"kept")
        old.release()
        with pytest.raises(NotHeld):
            noted(broker, Note("runs", offset, 1, old.lease), b"late")
        new = pulled(broker, "runs")
        with pytest.raises(NotHeld):
            noted(broker, Note("runs", offset, 1, old.lease), b"late")
        noted(broker, Note("runs", offset, 1, new.lease), b"mine")
        new.ack()
        for lease in (None, new.lease):
            with pytest.raises(NotHeld):
                noted(broker, Note("runs", offset, 2, lease), b"too late")

    def test_g2_messages_go_out_with_their_note_or_not_at_all(self, broker: Broker) -> None:
        broker.create_queue("runs", type="pull")
        broker.create_queue("small", type="pull", message_limit=1)
        offset = broker.publish(Message("runs", b"r")).first
        delivery = pulled(broker, "runs")
        receipt = noted(broker, Note("runs", offset, 0, delivery.lease), b"sent", Message("small", b"1", id="a"))
        assert pulled(broker, "small").bodies == [b"1"]
        assert len(receipt) == 2
        with pytest.raises(QueueFull):
            noted(broker, Note("runs", offset, 1, delivery.lease), b"sent", Message("small", b"2", id="b"))
        assert bodies(broker, "runs", offset) == [(0, b"sent")]

    def test_g2_a_note_of_another_wakes_the_message(self, broker: Broker) -> None:
        offset, _ = suspended(broker)
        assert broker.pull("runs") is None
        noted(broker, Note("runs", offset, 100), b"signal")
        again = broker.pull("runs", timeout=SOON)
        assert again is not None
        assert again.attempts == [1]
        assert bodies(broker, "runs", offset) == [(0, b"first"), (100, b"signal")]

    def test_g2_it_wakes_when_it_has_as_many_as_it_waits_for(self, broker: Broker) -> None:
        offset, _ = suspended(broker, awaits=4)
        for number in (100, 101):
            noted(broker, Note("runs", offset, number), b"member")
            assert broker.pull("runs") is None
        noted(broker, Note("runs", offset, 102), b"member")
        assert broker.pull("runs", timeout=SOON) is not None

    def test_g2_a_note_that_came_before_the_wait_is_not_missed(self, broker: Broker) -> None:
        broker.create_queue("runs", type="pull")
        offset = broker.publish(Message("runs", b"r")).first
        delivery = pulled(broker, "runs")
        noted(broker, Note("runs", offset, 100), b"early")
        delivery.answer(Settlement(Outcome.RELEASE, "waiting", 3_600_000_000, awaits=1))
        assert broker.pull("runs", timeout=SOON) is not None

    def test_g2_a_dead_message_keeps_its_notes_for_when_it_is_reprocessed(self, broker: Broker) -> None:
        broker.create_queue("runs", type="pull")
        offset = broker.publish(Message("runs", b"r")).first
        delivery = pulled(broker, "runs")
        noted(broker, Note("runs", offset, 0, delivery.lease), b"kept")
        delivery.dead(reason="no more")
        assert bodies(broker, "runs", offset) == [(0, b"kept")]
        noted(broker, Note("runs", offset, 1), b"it may go on")
        broker.reprocess("runs")
        assert bodies(broker, "runs", offset) == [(0, b"kept"), (1, b"it may go on")]
        pulled(broker, "runs").dead()
        broker.forget("runs")
        assert bodies(broker, "runs", offset) == []

    def test_g2_notes_go_with_a_message_to_another_queue(self, broker: Broker) -> None:
        broker.create_queue("runs", type="pull")
        broker.create_queue("old-runs", type="pull")
        offset = broker.publish(Message("runs", b"r")).first
        delivery = pulled(broker, "runs")
        noted(broker, Note("runs", offset, 0, delivery.lease), b"kept")
        delivery.release()
        assert broker.move("runs", "old-runs") == 1
        assert bodies(broker, "runs", offset) == []
        assert bodies(broker, "old-runs", offset) == [(0, b"kept")]

    def test_g2_nothing_else_is_published_as_a_note(self, broker: Broker) -> None:
        suspended(broker)
        with pytest.raises(RemudaError, match=NOTE):
            broker.publish(row(Note("runs", 0, 5), b"forged"))

    def test_g2_a_sleeper_is_shown_as_waiting(self, broker: Broker) -> None:
        offset, _ = suspended(broker)
        document = view(broker, offset)
        assert document.state == "Q"
        assert document.reason == "sleeping"
        assert document.attempts == 0
