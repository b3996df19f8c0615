"""A process under storms of Ctrl-C, with an exact account: `python -m tests.faults.storms --rounds 300`.

In each round a broker is opened, used and closed under fire: publish, pull, receive, ack, nack, close, by the main
thread or by coroutines in it, beside threads that nobody interrupts. Then it is opened in peace, and everything comes
out: what was accepted and not settled, nothing that was settled, nothing twice. An interrupted call may have taken
place or not. A watchdog ends the process when it hangs.

With `--every` each call is interrupted at every place at which Python looks for a signal, one after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import gc
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Container, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

from remuda import Message, RemudaError, open_broker
from remuda.broker.threads import EmbeddedBroker
from remuda.model.errors import DirectoryInUse, StorageError

QUEUES: Final = ("pulled", "pushed")
HANGS: Final = 60
"""Seconds after which a round counts as hanging."""
_OPENING: Final = 20
_STEPS: Final = 60
_FACES: Final = ("threads", "asyncio")
_SYNCS: Final = ("always", "os")


class Interrupted(Exception):
    """A call was struck, and may have taken place or not."""


class Storm:
    """Interrupts the main thread again and again, but only while it is under `strike`."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._hits = 0
        """How often the call that runs now may still be struck."""
        self._task: asyncio.Task[Any] | None = None
        self._over = threading.Event()
        signal.signal(signal.SIGINT, self._hit)
        self._thread = threading.Thread(target=self._rage, daemon=True)
        self._thread.start()
        self.struck = 0

    def _hit(self, number: int, frame: FrameType | None) -> None:
        if self._hits:
            self._hits -= 1
            self.struck += 1
            task, self._task = self._task, None
            if task is not None:
                task.cancel()  # as `asyncio.run` does with the first Ctrl-C; the next ones are raised
                return
            raise KeyboardInterrupt

    def _rage(self) -> None:
        while not self._over.is_set():
            time.sleep(self._chance.random() * 0.003)
            os.kill(os.getpid(), signal.SIGINT)

    def strike(self, call: Callable[[], Any]) -> Any:
        """What a call gives that is made under fire; `Interrupted` if it was struck."""
        try:
            try:
                self._hits = self._chance.choice((1, 1, 1, 2, 3))
                return call()
            finally:
                self._hits = 0
        except KeyboardInterrupt:
            raise Interrupted from None

    def strike_coroutine(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """The same in an event loop of its own, where the first interrupt cancels."""

        async def run() -> Any:
            self._task = asyncio.current_task()
            try:
                return await call()
            finally:
                self._task = None

        loop = asyncio.new_event_loop()
        task = loop.create_task(run())
        try:
            return self.strike(partial(loop.run_until_complete, task))
        except (Interrupted, asyncio.CancelledError):
            raise Interrupted from None
        finally:
            self._task = None
            while not task.done():  # torn out of the loop, which then cancels what is left, as `asyncio.run` does
                task.cancel()
                with contextlib.suppress(RuntimeError):  # it was told to stop before
                    loop.run_until_complete(asyncio.wait({task}, timeout=HANGS))
            if not task.cancelled():
                task.exception()
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    def end(self) -> None:
        self._over.set()
        self._thread.join(HANGS)
        signal.signal(signal.SIGINT, signal.SIG_IGN)


@dataclass
class Account:
    """What is known of every message, by its number."""

    accepted: set[int] = field(default_factory=set)
    perhaps: set[int] = field(default_factory=set)
    """Those whose publication was interrupted, or refused by a broker that had stopped."""
    settled: set[int] = field(default_factory=set)
    perhaps_settled: set[int] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    _next: int = 0
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def numbers(self, count: int) -> list[int]:
        with self._guard:
            self._next += count
            return list(range(self._next - count, self._next))

    def came_out(self, numbers: Iterable[int], where: str) -> None:
        """A delivery was made."""
        for number in numbers:
            if number in self.settled:
                self.faults.append(f"{where}: {number} was settled, and came again")
            elif number not in self.accepted and number not in self.perhaps:
                self.faults.append(f"{where}: {number} was never published")

    def close_round(self, out: list[int]) -> None:
        """All that came out of the queues when they were emptied in peace."""
        self.came_out(out, "after the round")
        if len(out) != len(set(out)):
            self.faults.append(f"came out twice: {sorted({n for n in out if out.count(n) > 1})[:9]}")
        lost = self.accepted - self.settled - self.perhaps_settled - set(out)
        if lost:
            self.faults.append(f"lost: {sorted(lost)[:9]} ({len(lost)} in all)")
        self.settled |= set(out)
        self.accepted |= set(out)
        # What was interrupted has by now taken place or not, and does not come later.
        self.settled |= self.perhaps_settled | self.perhaps
        self.perhaps_settled.clear()


def number_of(body: bytes) -> int:
    return int(body)


def drained(broker: EmbeddedBroker, account: Account) -> list[int]:
    """All that a broker still has, which should open without damage."""
    out: list[int] = []
    with broker:
        if broker.recovery.damages:
            account.faults.append(broker.recovery.describe())
        for queue in QUEUES:
            while (delivery := broker.pull(queue, 500)) is not None:
                out += map(number_of, delivery.bodies)
                delivery.ack()
    return out


class Round:
    """One life of a broker."""

    def __init__(self, path: Path, face: str, sync: str, storm: Storm, account: Account, seed: int) -> None:
        self._path = path
        self._face = face
        self._sync = sync
        self._storm = storm
        self._account = account
        self._chance = random.Random(seed)
        self._held: list[tuple[Any, list[int]]] = []
        self._stopped = False

    def run(self) -> None:
        broker = self._open_under_fire() if self._chance.random() < 0.3 else self._open()
        helpers = [threading.Thread(target=self._help, args=(broker, seed), daemon=True) for seed in range(2)]
        self._over = threading.Event()
        for queue in QUEUES:
            with contextlib.suppress(RemudaError):
                broker.create_queue(queue, type="pull" if queue == "pulled" else "round_robin",
                                    acknowledge_timeout="1h")  # fmt: skip
        for helper in helpers:
            helper.start()
        try:
            self._use(broker)
        finally:
            self._over.set()
            for helper in helpers:
                helper.join(HANGS)
        if not self._stopped:
            self._look_for_orphans(broker)
        while True:
            with contextlib.suppress(Interrupted, RemudaError):
                self._storm.strike(broker.close)
                break
        self._account.close_round(drained(self._open(), self._account))

    def _open(self) -> EmbeddedBroker:
        return open_broker(self._path, sync=self._sync, shared=False)

    def _open_under_fire(self) -> EmbeddedBroker:
        for _ in range(3):
            with contextlib.suppress(Interrupted, RemudaError):
                broker: EmbeddedBroker = self._storm.strike(self._open)
                return broker
        end = time.monotonic() + _OPENING
        while True:
            try:
                return self._open()
            except DirectoryInUse as error:  # whoever was interrupted while it opened lets it go a moment later
                if time.monotonic() > end:
                    self._account.faults.append(f"an opening that was interrupted keeps the directory: {error}")
                    raise
                time.sleep(0.01)

    def _use(self, broker: EmbeddedBroker) -> None:
        """Calls under fire, until the broker stops or it is enough."""
        if self._face == "threads":
            self._steps(broker, self._storm.strike)
            return
        self._steps(broker.aio, self._storm.strike_coroutine)

    def _steps(self, broker: Any, strike: Callable[[Callable[[], Any]], Any]) -> None:
        subscription: Any = None
        for _ in range(_STEPS):
            try:
                match self._chance.randrange(8):
                    case 0 | 1 | 2:
                        self._publish(strike, broker)
                    case 3 | 4:
                        self._take(strike(partial(broker.pull, "pulled", self._chance.randrange(1, 5))))
                    case 5:
                        wait = self._chance.choice((0, 0.002, 0.01))
                        self._take(strike(partial(broker.pull, "pulled", 2, timeout=wait)))
                    case 6:
                        if subscription is None:
                            subscription = strike(partial(broker.subscribe, "pushed", credit=3))
                        self._take(strike(partial(subscription.receive, timeout=0.01)))
                    case 7 if subscription is not None and self._chance.random() < 0.3:
                        closing, subscription = subscription, None
                        strike(closing.close)
                if self._held and self._chance.random() < 0.7:
                    self._answer(strike)
            except Interrupted:
                continue
            except RemudaError:
                self._stopped = True
                return

    def _publish(self, strike: Callable[[Callable[[], Any]], Any], broker: Any) -> None:
        queue = self._chance.choice(QUEUES)
        numbers = self._account.numbers(self._chance.choice((1, 1, 1, 5, 300)))
        messages = [Message(queue, b"%d" % number) for number in numbers]
        self._account.perhaps |= set(numbers)
        strike(partial(broker.publish, messages if len(messages) > 1 else messages[0], queue=queue))
        self._account.accepted |= set(numbers)
        self._account.perhaps -= set(numbers)

    def _take(self, delivery: Any) -> None:
        if delivery is not None:
            numbers = [number_of(body) for body in delivery.bodies]
            self._account.came_out(numbers, "in the storm")
            self._held.append((delivery, numbers))

    def _answer(self, strike: Callable[[Callable[[], Any]], Any]) -> None:
        delivery, numbers = self._held.pop(self._chance.randrange(len(self._held)))
        if self._chance.random() < 0.3:
            strike(delivery.nack)
            return
        rows = None if self._chance.random() < 0.7 else [self._chance.randrange(len(numbers))]
        answered = set(numbers if rows is None else [numbers[row] for row in rows])
        self._account.perhaps_settled |= answered
        settled = strike(partial(delivery.ack, rows))
        self._account.perhaps_settled -= answered
        if settled == len(answered):
            self._account.settled |= answered
        elif settled or delivery.queue == "pulled":  # what a subscription held goes back when that is closed
            self._account.faults.append(f"{settled} of {sorted(answered)} were settled")

    def _help(self, broker: EmbeddedBroker, seed: int) -> None:
        """Publish and settle beside the storm, where no interrupt comes."""
        chance, account = random.Random(seed), self._account
        while not self._over.is_set():
            numbers = account.numbers(3)
            account.perhaps |= set(numbers)
            answered: set[int] = set()
            try:
                broker.publish([Message("pulled", b"%d" % number) for number in numbers], queue="pulled")
                account.accepted |= set(numbers)
                account.perhaps -= set(numbers)
                delivery = broker.pull("pulled", chance.randrange(1, 4))
                if delivery is not None:
                    answered = {number_of(body) for body in delivery.bodies}
                    account.came_out(answered, "beside the storm")
                    account.perhaps_settled |= answered
                    delivery.ack()
                    account.settled |= answered
                    account.perhaps_settled -= answered
            except RemudaError:
                return
            time.sleep(0.002)

    def _look_for_orphans(self, broker: EmbeddedBroker) -> None:
        """What is published now comes at once: no pull that was interrupted still waits for it."""
        try:
            (number,) = self._account.numbers(1)
            self._account.perhaps.add(number)
            broker.publish(Message("pulled", b"%d" % number), queue="pulled")
            self._account.accepted.add(number)
            self._account.perhaps.discard(number)
            found: set[int] = set()
            while (delivery := broker.pull("pulled", 500)) is not None:
                self._take(delivery)
                found |= set(self._held[-1][1])
            if number not in found:
                self._account.faults.append(f"{number} went to a pull that was interrupted")
        except RemudaError:
            self._stopped = True


class Blow:
    """One interrupt, at the n-th place in Remuda at which Python looks for a signal: where a function begins, and after
    a call into C."""

    def __init__(
        self, place: int, after: Container[str] | None = None, error: type[BaseException] = KeyboardInterrupt
    ) -> None:
        self._left = place
        self._after = after
        """Names of functions in C: only the places after these count."""
        self._error = error
        """What the signal's handler raises."""
        self.came = False

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if event in ("call", "c_return") and f"{os.sep}remuda{os.sep}" in frame.f_code.co_filename:
            if self._after is not None and (event == "call" or arg.__name__ not in self._after):
                return
            self._left -= 1
            if self._left == 0:
                self.came = True
                raise self._error

    def strike(self, call: Callable[[], Any]) -> Any:
        gc.disable()  # an interrupt in a finalizer of an earlier broker would not reach the call
        try:
            sys.setprofile(self)
            try:
                return call()
            finally:
                sys.setprofile(None)
        except self._error:
            raise Interrupted from None
        finally:
            gc.enable()


class Sweep:
    """Calls that are interrupted at each place in turn, or at every n-th."""

    def __init__(self, path: Path, sync: str, account: Account, first: int = 1, stride: int = 1) -> None:
        self._path = path
        self._sync = sync
        self._account = account
        self._first = first
        self._stride = stride
        self.places = 0

    def run(self) -> None:
        for call in (self._publish, self._publish_many, self._pull, self._wait, self._ack, self._nack, self._receive):
            place = self._first
            while self._strike(call, place):
                place += self._stride
        faulthandler.cancel_dump_traceback_later()

    def _strike(self, call: Callable[[EmbeddedBroker, Blow], None], place: int) -> bool:
        """Whether there is such a place."""
        faulthandler.dump_traceback_later(HANGS, exit=True)
        self.places += 1
        blow, before = Blow(place), len(self._account.faults)
        with self._open() as broker:
            broker.create_queue("pulled", type="pull", acknowledge_timeout="1h")
            broker.create_queue("pushed", acknowledge_timeout="1h")
            with contextlib.suppress(Interrupted):
                call(broker, blow)
            with contextlib.suppress(StorageError):  # it stopped, and says so
                self._publish_now(broker, "pulled", 1)
            if not broker.runtime.health().live and broker.runtime._recipients.inboxes:
                self._account.faults.append("not everyone was told that it stopped")
        self._account.close_round(drained(self._open(), self._account))
        for fault in self._account.faults[before:]:
            print(f"{call.__name__}, place {place}, {self._sync}: {fault}", flush=True)
        return blow.came

    def _open(self) -> EmbeddedBroker:
        return open_broker(self._path, sync=self._sync, shared=False)

    def _publish_now(self, broker: EmbeddedBroker, queue: str, count: int, blow: Blow | None = None) -> None:
        numbers = set(self._account.numbers(count))
        messages = [Message(queue, b"%d" % number) for number in numbers]
        self._account.perhaps |= numbers
        publish = partial(broker.publish, messages if count > 1 else messages[0], queue=queue)
        if blow is None:
            publish()
        else:
            blow.strike(publish)
        self._account.accepted |= numbers
        self._account.perhaps -= numbers

    def _publish(self, broker: EmbeddedBroker, blow: Blow) -> None:
        self._publish_now(broker, "pulled", 1, blow)

    def _publish_many(self, broker: EmbeddedBroker, blow: Blow) -> None:
        self._publish_now(broker, "pushed", 40, blow)

    def _pull(self, broker: EmbeddedBroker, blow: Blow) -> None:
        self._publish_now(broker, "pulled", 3)
        blow.strike(partial(broker.pull, "pulled", 2))

    def _wait(self, broker: EmbeddedBroker, blow: Blow) -> None:
        blow.strike(partial(broker.pull, "pulled", 2, timeout=0.001))

    def _ack(self, broker: EmbeddedBroker, blow: Blow) -> None:
        self._answer(broker, blow, "ack")

    def _nack(self, broker: EmbeddedBroker, blow: Blow) -> None:
        self._answer(broker, blow, "nack")

    def _answer(self, broker: EmbeddedBroker, blow: Blow, answer: str) -> None:
        self._publish_now(broker, "pulled", 3)
        delivery = broker.pull("pulled", 2)
        assert delivery is not None
        numbers = {number_of(body) for body in delivery.bodies} if answer == "ack" else set()
        self._account.perhaps_settled |= numbers
        blow.strike(getattr(delivery, answer))
        self._account.settled |= numbers
        self._account.perhaps_settled -= numbers

    def _receive(self, broker: EmbeddedBroker, blow: Blow) -> None:
        self._publish_now(broker, "pushed", 2)
        with contextlib.suppress(StorageError), broker.subscribe("pushed") as subscription:
            blow.strike(partial(subscription.receive, timeout="30s"))


def weather(
    path: Path, rounds: int, seed: int, faces: Iterable[str] = _FACES, syncs: Iterable[str] = _SYNCS
) -> Account:
    """Play rounds; gives the account of them all."""
    account = Account()
    storm = Storm(seed)
    kinds = [(face, sync) for face in faces for sync in syncs]
    try:
        for number in range(rounds):
            faulthandler.dump_traceback_later(HANGS, exit=True)
            face, sync = kinds[number % len(kinds)]
            before = len(account.faults)
            Round(path / f"{face}-{sync}", face, sync, storm, account, seed + number).run()
            for fault in account.faults[before:]:
                print(f"round {number} ({face}, {sync}, seed {seed}): {fault}", flush=True)
    finally:
        faulthandler.cancel_dump_traceback_later()
        storm.end()
    print(
        f"{rounds} rounds, {storm.struck} interrupts: {len(account.accepted)} messages accepted, "
        f"{len(account.settled)} settled, {len(account.faults)} faults",
        flush=True,
    )
    return account


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--face", choices=_FACES, action="append")
    parser.add_argument("--sync", choices=_SYNCS, action="append")
    parser.add_argument("--every", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="remuda-storm-") as folder:
        if chosen.every:
            account = Account()
            sweeps = [Sweep(Path(folder) / sync, sync, account) for sync in chosen.sync or _SYNCS]
            for sweep in sweeps:
                sweep.run()
            print(f"{sum(sweep.places for sweep in sweeps)} places, {len(account.faults)} faults")
            raise SystemExit(1 if account.faults else 0)
        account = weather(Path(folder), chosen.rounds, chosen.seed, chosen.face or _FACES, chosen.sync or _SYNCS)
    raise SystemExit(1 if account.faults else 0)


if __name__ == "__main__":
    main()
