"""Errors planted at random in core, engine, log and extensions of a broker under load (L10): `python -m
tests.faults.planted --runs 300`. Every caller but one goes on within a second, nothing is lost, and nothing that was
settled is delivered again."""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from remuda.broker.embedded.delivering.effect_dispatcher import EffectDispatcher
from remuda.broker.embedded.delivering.head_cache import HeadCache
from remuda.broker.embedded.engine import Engine
from remuda.broker.embedded.extensions import Extensions
from remuda.broker.embedded.runtime import Runtime
from remuda.broker.opening import open_broker
from remuda.broker.threads import EmbeddedBroker
from remuda.core import admission, delivering
from remuda.core.consuming import Consuming
from remuda.core.extensions import Assignment, QueueView
from remuda.core.publishing import Publishing
from remuda.core.queues.queue import Queue
from remuda.core.queues.strategies import by_type
from remuda.core.recorder import Recorder
from remuda.core.registry import Registry
from remuda.log.log import Log
from remuda.log.tail.writer import TailWriter, WriteBatch
from remuda.model.message import Message
from remuda.model.messages import Messages
from remuda.model.queues.options import QueueOptions

KINDS = ("memory", "embedded", "host")
PLACES: tuple[tuple[Any, str], ...] = (
    (Recorder, "append"), (Recorder, "event"), (Recorder, "completed"), (Recorder, "drain"), (Queue, "admit"),
    (Queue, "evolve"), (Queue, "complete"), (Queue, "grant"), (Queue, "revoke"), (Queue, "next_wake"),
    (Registry, "after"), (Registry, "follow"), (Registry, "plan"), (Registry, "tick"), (Registry, "plan_for"),
    (Publishing, "publish"), (Publishing, "_append"), (Consuming, "pull"), (Consuming, "settle"),
    (Consuming, "subscribe"), (Consuming, "hand_over"), (delivering, "take"), (delivering, "send"),
    (delivering, "conclude"), (delivering, "settle"), (delivering, "serve"), (admission, "enter"),
    (Engine, "decided"), (Engine, "store"), (Engine, "take"), (Engine, "held"), (Engine, "make_room"),
    (Engine, "make_room_for_answer"), (Runtime, "_record"), (Runtime, "_to_log"), (EffectDispatcher, "hand_out"),
    (Log, "append"), (Log, "_append"), (Log, "take"), (Log, "write_now"), (Log, "reserve"), (WriteBatch, "write"),
    (WriteBatch, "sync"), (TailWriter, "write"), (TailWriter, "sync"), (HeadCache, "put"), (HeadCache, "take"),
)  # fmt: skip
STALL = 1.0
"""Seconds within which everybody goes on."""


class Planted(Exception):
    """A mistake of the broker's own."""


class Mine:
    """Raises once, at the n-th call of a function, before or after that was carried out."""

    def __init__(self, owner: Any, name: str, at: int, *, after: bool) -> None:
        self._owner, self._name, self._left, self._after = owner, name, at, after
        self._does = getattr(owner, name)
        self._guard = threading.Lock()
        self.went_off = 0.0
        """When."""

    def __enter__(self) -> Mine:
        mine = self

        def struck(*args: Any, **options: Any) -> Any:
            with mine._guard:
                mine._left -= 1
                mine.went_off = time.monotonic() if mine._left == 0 else mine.went_off
                goes_off = mine._left == 0
            if goes_off and not mine._after:
                raise Planted(f"in {mine._name}")
            result = mine._does(*args, **options)
            if goes_off:
                raise Planted(f"after {mine._name}")
            return result

        setattr(self._owner, self._name, struck)
        return self

    def __exit__(self, *exc: object) -> None:
        setattr(self._owner, self._name, self._does)


@dataclass
class Account:
    """What producers and consumers of one run did, by the numbers of messages."""

    accepted: set[str] = field(default_factory=set)
    perhaps: set[str] = field(default_factory=set)
    settled: set[str] = field(default_factory=set)
    perhaps_settled: set[str] = field(default_factory=set)
    again: list[str] = field(default_factory=list)
    """Settled messages that were delivered again."""
    failed: list[str] = field(default_factory=list)
    """Errors that callers got."""
    longest: float = 0.0
    """The longest call."""

    def add(self, other: Account) -> None:
        for name in ("accepted", "perhaps", "settled", "perhaps_settled"):
            getattr(self, name).update(getattr(other, name))
        self.again += other.again
        self.failed += other.failed
        self.longest = max(self.longest, other.longest)


class Strategy:
    """An extension that may fail."""

    def __init__(self, queue: str, options: QueueOptions, fails_at: int) -> None:
        self._usual, self._left = by_type(queue, options), fails_at

    def next(self, queue: QueueView) -> Assignment | None:
        self._left -= 1
        if self._left == 0:
            raise Planted("in a strategy")
        return self._usual.next(queue)


class Shelf:
    """Another one."""

    def __init__(self, options: QueueOptions, fails_at: int) -> None:
        self._window, self._left = HeadCache(options.queue_size), fails_at

    def _tick(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise Planted("in a store")

    def put(self, first: int, messages: Messages) -> None:
        self._tick()
        self._window.put(first, messages)

    def take(self, runs: Sequence[tuple[int, int]]) -> Messages | None:
        self._tick()
        return self._window.take(runs)

    def discard(self, first: int, count: int) -> None:
        self._window.discard(first, count)


def work(broker: EmbeddedBroker, name: str, until: Callable[[], bool], seed: int) -> Account:
    """Publish, pull and settle until it is enough. A call that fails is not repeated."""
    chance, account, number = random.Random(seed), Account(), 0
    held: list[Any] = []

    def call(verb: Callable[[], Any]) -> Any:
        begun = time.monotonic()
        try:
            return verb()
        except Exception as error:
            account.failed.append(f"{type(error).__name__}: {error}")
            return None
        finally:
            account.longest = max(account.longest, time.monotonic() - begun)

    with contextlib.ExitStack() as ends:
        subscription = call(lambda: broker.subscribe("pushed", consumer=name, credit=3))
        if subscription is not None:
            ends.callback(lambda: call(subscription.close))
        while not until():
            kind = chance.randrange(4)
            if kind == 0:
                queue = chance.choice(("pulled", "pushed"))
                bodies = [f"{name}-{number + one}" for one in range(chance.choice((1, 1, 5)))]
                number += len(bodies)
                account.perhaps.update(bodies)
                batch = [Message(queue, body.encode()) for body in bodies]
                if call(lambda: broker.publish(batch if len(batch) > 1 else batch[0], queue=queue)) is not None:  # noqa: B023
                    account.accepted.update(bodies)
            elif kind == 1:
                held.append(call(lambda: broker.pull("pulled", chance.randrange(1, 4))))
            elif kind == 2 and subscription is not None:
                held.append(call(lambda: subscription.receive(0)))
            elif held:
                delivery = held.pop(chance.randrange(len(held)))
                if delivery is None:
                    continue
                bodies = [body.decode() for body in delivery.bodies]
                account.perhaps_settled.update(bodies)
                if call(delivery.ack) == len(bodies):
                    account.again += [body for body in bodies if body in account.settled]
                    account.settled.update(bodies)
        for delivery in held:
            if delivery is not None:
                call(delivery.nack)
    return account


def guest(path: str, name: str, seed: int, started: Any, over: Any, answer: Any) -> None:
    """A process with a share in the directory."""
    with open_broker(path, sync="os") as broker:
        started.set()
        answer.put(work(broker, name, over.is_set, seed))


class Run:
    """One error in one broker under load."""

    def __init__(self, path: Path, kind: str, seed: int, seconds: float = 0.4) -> None:
        self._path = str(path / "d")
        self.kind, self._seconds = kind, seconds
        self._chance = random.Random(seed)
        self._seed = seed
        self.place = self._chance.choice((*PLACES, ("strategy", ""), ("store", "")))
        self.account = Account()
        self.faults: list[str] = []
        self.went_off = False

    def play(self) -> None:
        owner, name = self.place
        fails_at = self._chance.randrange(1, 60)
        extensions = Extensions(
            strategy_for=lambda queue, options: (
                Strategy(queue, options, fails_at) if owner == "strategy" else by_type(queue, options)
            ),
            store_for=lambda queue, options: (
                Shelf(options, fails_at) if owner == "store" else HeadCache(options.queue_size)
            ),
        )
        url = "memory://" if self.kind == "memory" else self._path
        sync = self._chance.choice(("os", "always"))
        mine = contextlib.nullcontext(None) if isinstance(owner, str) else self._mine(owner, name)
        with open_broker(url, sync=sync, shared=self.kind == "host", extensions=extensions) as broker:
            broker.create_queue("pulled", type="pull", acknowledge_timeout="1h")
            broker.create_queue("pushed", acknowledge_timeout="1h")
            with self._guests() as answers:
                until = time.monotonic() + self._seconds
                accounts = [Account()] * 2
                with mine as planted:

                    def one(at: int) -> None:
                        accounts[at] = work(broker, f"own{at}", lambda: time.monotonic() > until, self._seed + at)

                    threads = [threading.Thread(target=one, args=(at,), daemon=True) for at in range(2)]
                    for thread in threads:
                        thread.start()
                    for thread in threads:
                        thread.join(60)
                        if thread.is_alive():
                            self.faults.append("a caller hangs")
            for account in (*accounts, *answers):
                self.account.add(account)
            self.went_off = planted is None or planted.went_off > 0
            self._check(broker, 1 if planted is not None and self.went_off else 0)
            if self.kind == "memory":
                self._drain(broker)
        if self.kind != "memory":
            with open_broker(self._path, sync="os") as again:
                if not again.recovery.clean:
                    self.faults.append(again.recovery.describe())
                self._drain(again)

    def _mine(self, owner: Any, name: str) -> Mine:
        return Mine(owner, name, self._chance.randrange(1, 40), after=self._chance.random() < 0.5)

    @contextlib.contextmanager
    def _guests(self) -> Iterator[list[Account]]:
        answers: list[Account] = []
        if self.kind != "host":
            yield answers
            return
        context = multiprocessing.get_context("spawn")
        started, over, answer = context.Event(), context.Event(), context.Queue()
        arguments = (self._path, "guest", self._seed + 7, started, over, answer)
        process = context.Process(target=guest, args=arguments, daemon=True)
        process.start()
        try:
            if not started.wait(60):
                self.faults.append("a guest hangs")
            yield answers
        finally:
            over.set()
            answers.append(answer.get(timeout=60))
            process.join(60)

    def _check(self, broker: EmbeddedBroker, most: int) -> None:
        health = broker.health()
        if not health.live:
            self.faults.append(f"the broker stopped: {health.problems}")
        if len(self.account.failed) > most:
            self.faults.append(f"{len(self.account.failed)} callers got errors: {self.account.failed}")
        if self.account.longest > STALL:
            self.faults.append(f"a call took {self.account.longest:.2f} s")

    def _drain(self, broker: EmbeddedBroker) -> None:
        account, found = self.account, Counter[str]()
        for queue in ("pulled", "pushed"):
            if any(info.name == queue for info in broker.queues()):
                while (delivery := broker.pull(queue, 100)) is not None:
                    found.update(body.decode() for body in delivery.bodies)
                    delivery.ack()
        if account.again:
            self.faults.append(f"settled twice: {account.again}")
        if back := account.settled & set(found):
            self.faults.append(f"settled, and delivered again: {sorted(back)}")
        if lost := account.accepted - account.settled - account.perhaps_settled - set(found):
            self.faults.append(f"lost: {sorted(lost)}")
        if strange := set(found) - account.perhaps:
            self.faults.append(f"never published: {sorted(strange)}")


def play(path: Path, runs: int, seed: int = 1, kinds: Sequence[str] = KINDS, seconds: float = 0.4) -> list[Run]:
    """Play runs; the faults of each are printed."""
    played = []
    for at in range(runs):
        run = Run(path / str(at), kinds[at % len(kinds)], seed + at, seconds)
        (path / str(at)).mkdir()
        run.play()
        played.append(run)
        for fault in run.faults:
            print(f"seed {seed + at}, {run.kind}, {run.place[1] or run.place[0]}: {fault}", flush=True)
    return played


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=KINDS, action="append")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="remuda-planted-") as folder:
        kinds = chosen.kind or KINDS
        runs = play(Path(folder), chosen.runs, chosen.seed, kinds)
    accepted = sum(len(run.account.accepted) for run in runs)
    struck = sum(run.went_off for run in runs)
    faults = sum(bool(run.faults) for run in runs)
    longest = max(run.account.longest for run in runs)
    print(
        f"{len(runs)} runs, {struck} errors went off, {accepted} messages accepted, the longest call took "
        f"{longest:.2f} s; {faults} runs failed"
    )
    raise SystemExit(1 if faults else 0)


if __name__ == "__main__":
    main()
