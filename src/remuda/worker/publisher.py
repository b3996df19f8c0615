"""Publishes results in batches, and settles each input once the broker has confirmed or refused them all (W2)."""

from __future__ import annotations

import heapq
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from remuda.amqp.client.channel import Channel
from remuda.amqp.client.confirms import Receipt
from remuda.amqp.errors import AmqpError, ChannelClosed
from remuda.model.errors import InvalidMessage
from remuda.worker.inputs import Input, Inputs, Shipment
from remuda.worker.metrics import Counts

_LOG: Final = logging.getLogger("remuda.worker")
_BATCH: Final = 500


class SingleShipment(NamedTuple):
    """A shipment to be published by itself."""

    shipment: Shipment


class ResultPublisher(threading.Thread):
    """The thread that publishes all results."""

    def __init__(self, channel: Channel, inputs: Inputs, counts: Counts, return_delay: float) -> None:
        super().__init__(name="worker publisher", daemon=True)
        self._channel = channel
        self._inputs = inputs
        self._counts = counts
        self._return_delay = return_delay
        self._queue: queue.SimpleQueue[Shipment | SingleShipment | Callable[[], None] | None] = queue.SimpleQueue()
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._stopped = False

    def send(self, shipment: Shipment) -> None:
        """Publish this, and settle its input afterwards."""
        self._queue.put(shipment)

    def send_later(self, shipment: Shipment) -> None:
        """Like `send`, after the return delay, so that a message that comes straight back does not keep circulating."""
        self._after_delay(lambda: self.send(shipment))

    def stop(self) -> None:
        self._stopped = True
        self._queue.put(None)

    def run(self) -> None:
        while not self._stopped:
            batch = self._take()
            if batch:
                self._publish(batch)

    def _take(self) -> list[Shipment]:
        """Wait for shipments or for a delayed call, and return the shipments to publish."""
        batch: list[Shipment] = []
        wait = max(self._later[0][0] - time.monotonic(), 0.0) if self._later else None
        try:
            item = self._queue.get(timeout=wait)
            while True:
                if isinstance(item, Shipment):
                    batch.append(item)
                elif isinstance(item, SingleShipment):
                    self._publish([item.shipment])
                elif item is not None:
                    heapq.heappush(self._later, (time.monotonic() + self._return_delay, next(self._order), item))
                if len(batch) >= _BATCH:
                    break
                item = self._queue.get_nowait()
        except queue.Empty:
            pass
        now = time.monotonic()
        while self._later and self._later[0][0] <= now:
            heapq.heappop(self._later)[2]()
        return batch

    def _publish(self, batch: list[Shipment]) -> None:
        live = [shipment for shipment in batch if self._still_wanted(shipment.input)]
        messages = [message for shipment in live for message in shipment.messages]
        try:
            receipt = self._channel.publish_many(messages, mandatory=True)
        except InvalidMessage as error:
            self._one_by_one(live, error)
        except AmqpError as error:
            if self._channel.ended is None and not self._stopped:
                _LOG.warning("results cannot be published yet: %s", error)
                for shipment in live:
                    self.send_later(shipment)
        else:
            receipt.when_settled(lambda: self._settled(live, receipt))

    def _one_by_one(self, shipments: list[Shipment], error: InvalidMessage) -> None:
        """Publish each by itself, to find the one that cannot be sent."""
        if len(shipments) > 1:
            for shipment in shipments:
                self._publish([shipment])
        else:
            _LOG.error("a result cannot be sent: %s", error)
            self._refused(shipments[0].input)

    def _settled(self, shipments: list[Shipment], receipt: Receipt) -> None:
        """The broker has answered for all messages, or the connection broke. Runs in the connection's thread."""
        failed, place = receipt.failed, 0
        refused = receipt.nacked | receipt.returned.keys()
        for shipment in shipments:
            places = range(place, place + len(shipment.messages))
            place = places.stop
            if not failed or failed.isdisjoint(places):
                self._done(shipment)
            elif not refused.isdisjoint(places):
                lost = min(refused.intersection(places))
                _LOG.warning(
                    "what was sent to queue %s was not accepted (%s); its input goes back to the queue",
                    receipt.messages[lost].routing_key, receipt.returned.get(lost, "refused by the broker"),
                )  # fmt: skip
                self._refused(shipment.input)
            elif isinstance(receipt.error, ChannelClosed):
                # One of them made the broker close the channel. Each is sent by itself, to find out which.
                if len(shipments) == 1:
                    _LOG.error("a result cannot be sent: %s", receipt.error)
                    self._refused(shipment.input)
                else:
                    self._queue.put(SingleShipment(shipment))
            else:
                self._queue.put(shipment)  # the connection broke before the answer came

    def _still_wanted(self, held: Input) -> bool:
        if not held.alive:
            self._inputs.remove(held)
        return held.alive

    def _done(self, shipment: Shipment) -> None:
        shipment.input.acknowledge()
        if self._inputs.remove(shipment.input):
            self._counts.add(shipment.outcome)
            self._counts.published += len(shipment.messages)

    def _refused(self, held: Input) -> None:
        def give_back() -> None:
            if held.give_back():
                self._counts.add("returned")
            self._inputs.remove(held)

        self._after_delay(give_back)

    def _after_delay(self, call: Callable[[], None]) -> None:
        self._queue.put(call)
