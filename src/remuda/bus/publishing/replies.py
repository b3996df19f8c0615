"""Replies to `call`: one private channel per bus, and the futures that wait for them."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import Future

from remuda.bus.broker_api import Broker
from remuda.bus.errors import HandlerFailed
from remuda.bus.publishing import headers as names
from remuda.model.errors import BrokerClosed
from remuda.model.message import Message


class ReplyListener:
    """Receives replies and passes each to the call that waits for it."""

    def __init__(self, broker: Broker) -> None:
        self.topic = f"{names.REPLY_TOPIC}{uuid.uuid4().hex}"
        self._waiting: dict[str, Future[Message]] = {}
        self._guard = threading.Lock()
        options = {"persistence": "memory", "auto_destroy": "no-consumers", "acknowledge": "none"}
        self._channel = broker.channel(self.topic, [self.topic], batch=100, options=options)
        self._thread = threading.Thread(target=self._run, name="remuda-replies", daemon=True)
        self._thread.start()

    def expect(self, message_id: str) -> Future[Message]:
        future: Future[Message] = Future()
        with self._guard:
            self._waiting[message_id] = future
        return future

    def forget(self, message_id: str) -> None:
        with self._guard:
            self._waiting.pop(message_id, None)

    def close(self) -> None:
        self._channel.close()
        self._thread.join()
        with self._guard:
            waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(BrokerClosed("the bus was closed before the reply came"))

    def _run(self) -> None:
        for delivery in self._channel:
            for message in delivery:
                with self._guard:
                    future = self._waiting.pop(message.headers.get(names.CORRELATION, ""), None)
                # The caller may have stopped waiting at this very moment.
                if future is not None and future.set_running_or_notify_cancel():
                    _resolve(future, message)


def _resolve(future: Future[Message], message: Message) -> None:
    reason = message.headers.get(names.EXCEPTION)
    if reason is None:
        future.set_result(message)
        return
    failed = HandlerFailed(
        reason,
        error_type=message.headers.get(names.ERROR_TYPE, ""),
        detail=message.body.decode("utf-8", "replace") or None,
        queue=message.headers.get(names.GROUP, ""),
        message_id=message.headers.get(names.CORRELATION, ""),
    )
    future.set_exception(failed)
