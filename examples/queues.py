"""Below the bus: the broker's queues, with limits, priorities, delayed retries and deliveries you answer yourself."""

from tempfile import TemporaryDirectory

from remuda import Message, Priority, open_broker
from remuda.model.errors import QueueFull

with TemporaryDirectory() as data, open_broker(data) as broker:
    broker.create_queue("orders", type="pull", message_limit=3, limit_exceeded="reject-new", acknowledge_timeout="10s")
    broker.publish([Message("orders", b"one"), Message("orders", b"two")])
    broker.publish(Message("orders", b"urgent", priority=Priority.HIGH))
    try:
        broker.publish(Message("orders", b"one too many"))
    except QueueFull as error:
        print("refused:", error)

    delivery = broker.pull("orders", 2)
    assert delivery is not None
    print("pulled:", [message.body.decode() for message in delivery])
    delivery.ack([0])
    delivery.retry([1], after="1h", reason="the printer is busy")

    info = broker.queue("orders")
    print(f"waiting {info.waiting}, delayed {info.delayed}, in flight {info.in_flight}")

    broker.set_status("orders", "paused", who="ada")
    print("status:", broker.queue("orders").status.value)
