"""A process under a storm of Ctrl-C: it publishes, closes and opens again until the storm is over, then says what was
confirmed. Run by `test_interrupts`; a watchdog ends it when it hangs."""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from types import FrameType

from remuda import Message, RemudaError, open_broker

SECONDS = 3.0


class Storm:
    """Interrupts the main thread again and again, but only while it is `struck`: between two calls it is let alone."""

    def __init__(self, seed: int) -> None:
        self._armed = False
        self._over = threading.Event()
        self._chance = random.Random(seed)
        signal.signal(signal.SIGINT, self._hit)
        self._thread = threading.Thread(target=self._rage)
        self._thread.start()

    def _hit(self, number: int, frame: FrameType | None) -> None:
        if self._armed:
            self._armed = False
            raise KeyboardInterrupt

    def _rage(self) -> None:
        while not self._over.is_set():
            time.sleep(self._chance.random() * 0.004)
            os.kill(os.getpid(), signal.SIGINT)

    def struck(self, call: Callable[[], object]) -> bool:
        """Do it under fire; whether it came to its end."""
        done = False
        try:
            try:
                self._armed = True
                call()
                done = True
            finally:
                self._armed = False
        except KeyboardInterrupt:
            pass
        return done

    def end(self) -> None:
        self._over.set()
        self._thread.join()


def main(path: str, seed: int) -> None:
    faulthandler.dump_traceback_later(25, exit=True)
    broker = open_broker(path, sync="always")
    broker.create_queue("jobs", type="pull")
    storm = Storm(seed)
    confirmed, end = 0, time.monotonic() + SECONDS
    while time.monotonic() < end:
        try:
            confirmed += storm.struck(partial(broker.publish, Message("jobs", b"x"), queue="jobs"))
        except RemudaError:
            # A change that was cut short stops the broker. Closing it goes on, however often the wait is interrupted.
            while not storm.struck(broker.close):
                pass
            broker = open_broker(path, sync="always")
    while not storm.struck(broker.close):
        pass
    storm.end()
    print(confirmed, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
