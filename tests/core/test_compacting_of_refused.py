"""T3, Q6: what a queue refuses is no news, also for the rest of its own batch."""

from __future__ import annotations

from remuda.broker.opening import open_broker
from remuda.model.message import Message


def test_t3_q6_a_message_that_looked_like_a_repeat_of_a_refused_one_is_screened_itself() -> None:
    with open_broker("memory://") as broker:
        broker.create_queue("fruit", type="pull", message_limit=1)
        broker.publish(Message("fruit", b"full", object="o", key="k"))
        batch = [Message("fruit", body, object="o", key="k") for body in (b"news", b"news", b"full", b"news")]
        receipt = broker.publish(batch, raise_refusals=False)
        assert sorted(receipt.refusals) == [0, 1, 3]
        assert broker.queue("fruit").size == 1
        broker.clear("fruit")
        assert broker.publish(batch, raise_refusals=False).unchanged
