"""Errors planted at random in core, engine, log and extensions, under load (L10): each costs the caller that meets it.

    python -m tests.faults.mishaps --runs 300

Half of the runs have one process, in memory or with a directory, half a host with guests. Once a run is warm, one call
of a function that was seen at work raises, before or after it did its work. Everybody else goes on, nothing that was
confirmed is lost, and nothing that was settled is delivered again.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from types import CodeType, FrameType
from typing import Any, Final

import remuda
from remuda import Binding, Message, QueueOptions, native, open_broker
from remuda.broker.embedded.extensions import Extensions
from remuda.broker.threads import EmbeddedBroker
from remuda.core.extensions import Assignment, QueueView
from remuda.core.queues.strategies import by_type
from remuda.model.messages import Messages
from tests.broker.shared import kit

PLANTED: Final = "a planted error"
QUEUES: Final = ("jobs", "pushed", "spare")
PLACES: Final = ("one process", "a host with guests", "memory", "a host with guests")
WARMING: Final = 0.3
"""Seconds of load before the error is planted."""
AFTERWARDS: Final = 0.4
"""Seconds of load after it."""
MOST: Final = 1.5
"""Seconds for which a planted error is waited for: not every function is called again."""
HANGING: Final = 20.0
_ROOT: Final = Path(remuda.__file__).parent
_PARTS: Final = (str(_ROOT / "core"), str(_ROOT / "log"), str(_ROOT / "broker/embedded/engine.py"))
_BROKER: Final = str(_ROOT / "broker")
HOST: Final = """
import json, logging, sys
from tests.faults.mishaps import Mine, opened
logging.getLogger("remuda").addHandler(logging.NullHandler())
mine = Mine()
mine.watch()
broker = opened(sys.argv[1])
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    print(json.dumps(eval(line)), flush=True)
"""


class Planted(Exception):
    """A mistake of the broker's own."""


class Mine:
    """Sees which functions are at work, and has one of them raise, once. Compiled functions are not seen."""

    def __init__(self) -> None:
        self._seen: set[CodeType] = set()
        self._struck: CodeType | None = None
        self._event = ""
        self._left = 0
        self.went_off = False

    def watch(self) -> None:
        """From now on, in this thread and all that are started."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def lay(self, seed: int) -> str:
        """In a function that the seed chooses, at one of its next calls. Returns where."""
        random = Random(seed)
        code = random.choice(sorted(self._seen, key=lambda code: (code.co_filename, code.co_firstlineno)))
        event, left = random.choice(("call", "return")), random.choice((1, 1, 2, 5, 20))
        self._event, self._left, self._struck = event, left, code
        when = f"{'before' if event == 'call' else 'after'} call {left}"
        return f"{Path(code.co_filename).name}: {code.co_qualname}, {when}"

    def lift(self) -> bool:
        """What was planted raises no more. Returns whether it did."""
        went_off, self.went_off = self.went_off, True
        return went_off

    def _note(self, frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if self._struck is None:
            if event == "call" and (code.co_filename.startswith(_PARTS) or _is_extension(code)):
                self._seen.add(code)
        elif code is self._struck and event == self._event and not self.went_off:
            self._left -= 1
            if self._left <= 0 and _is_broker_at_work(frame):
                self.went_off = True
                raise Planted(PLANTED)


def _is_extension(code: CodeType) -> bool:
    return code.co_filename == __file__ and code.co_qualname.startswith(("Turns.", "Shelf."))


def _is_broker_at_work(frame: FrameType) -> bool:
    """Not where a test reads the log by itself."""
    at: FrameType | None = frame
    while at is not None:
        if at.f_code.co_filename.startswith(_BROKER):
            return True
        at = at.f_back
    return False


class Turns:
    """A delivery strategy from outside."""

    def __init__(self, usual: Any) -> None:
        self._usual = usual

    def next(self, queue: QueueView) -> Assignment | None:
        found: Assignment | None = self._usual.next(queue)
        return found


class Shelf:
    """A message store from outside."""

    def __init__(self) -> None:
        self._kept: dict[int, Messages] = {}

    def put(self, first: int, messages: Messages) -> None:
        for row in range(len(messages)):
            self._kept[first + row] = messages.slice(row, row + 1)

    def take(self, runs: Sequence[tuple[int, int]]) -> Messages | None:
        offsets = [offset for first, count in runs for offset in range(first, first + count)]
        found = [self._kept.pop(offset, None) for offset in offsets]
        return None if None in found else Messages.of(one[0] for one in found if one is not None)

    def discard(self, first: int, count: int) -> None:
        for offset in range(first, first + count):
            self._kept.pop(offset, None)


def opened(path: str | os.PathLike[str]) -> EmbeddedBroker:
    """With extensions for some queues; a guest's are not used."""
    extensions = Extensions(
        strategy_for=lambda queue, options: (
            Turns(by_type(queue, options)) if queue == "pushed" else by_type(queue, options)
        ),
        store_for=lambda queue, options: Shelf() if queue == "jobs" else _usual_store(queue, options),
    )
    return open_broker(path, extensions=extensions, sync="os")


def _usual_store(queue: str, options: QueueOptions) -> Any:
    return Extensions().store_for(queue, options)


class Run:
    """Callers of a broker, and what each of them was told."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.place = PLACES[seed % len(PLACES)]
        self.accepted: set[bytes] = set()
        self.settled: set[bytes] = set()
        self.uncertain: set[bytes] = set()
        """What was being answered when the error came: either is right."""
        self.again: list[bytes] = []
        self.failures: list[BaseException] = []
        self.wrong: list[str] = []
        self.longest = 0.0
        self.calls = 0
        self._guard = threading.Lock()
        self._ends = threading.Event()

    def play(self) -> str | None:
        """The place of the error; None if it was not come by."""
        with tempfile.TemporaryDirectory(prefix="remuda-mishap-") as folder:
            place = Path(folder) / "d"
            where = self._with_guests(place) if self.place == PLACES[1] else self._alone(place)
            with open_broker(place, sync="os", shared=False) as broker:
                if not broker.recovery.clean:
                    self.wrong.append(f"opened again: {broker.recovery.describe()}")
                if again := [queue.name for queue in broker.queues() if queue.name in QUEUES and queue.size]:
                    self.wrong.append(f"opened again, {again} hold what was settled")
            return where

    def _alone(self, place: Path) -> str | None:
        mine = Mine()
        mine.watch()
        try:
            with opened("memory://" if self.place == "memory" else place) as broker:
                return self._under_load(broker, mine.lay, lambda: mine.went_off, mine.lift)
        finally:
            threading.setprofile(None)
            sys.setprofile(None)

    def _with_guests(self, place: Path) -> str | None:
        with kit.other(place, HOST) as host, open_broker(place, sync="os") as broker:

            def does(what: str) -> Any:
                return host.does(f"mine.{what}")

            return self._under_load(
                broker, lambda seed: does(f"lay({seed})"), lambda: does("went_off"), lambda: does("lift()")
            )

    def _under_load(
        self, broker: EmbeddedBroker, lay: Callable[[int], str], went_off: Callable[[], bool], lift: Callable[[], bool]
    ) -> str | None:
        broker.create_queue("jobs", type="pull", acknowledge_timeout="2s")
        broker.create_queue("pushed", acknowledge_timeout="2s", patterns=["news.#"])
        broker.create_queue("spare", type="pull", acknowledge_timeout="2s")
        broker.create_router("x", "round-robin", [Binding(queue="jobs"), Binding(queue="spare")])
        actors = [self._publish, self._publish_through, self._publish_many, self._pull, self._pull, self._receive]
        threads = [
            threading.Thread(target=self._repeat, args=(actor, broker, number), daemon=True)
            for number, actor in enumerate([*actors, self._operate])
        ]
        for thread in threads:
            thread.start()
        time.sleep(WARMING)
        where = lay(self.seed)
        waits = time.monotonic() + MOST
        while not went_off() and time.monotonic() < waits:
            time.sleep(0.02)
        struck = lift()
        time.sleep(AFTERWARDS)
        before = self.calls
        time.sleep(0.1)
        self._ends.set()
        for thread in threads:
            thread.join(HANGING)
            if thread.is_alive():
                stack = traceback.extract_stack(sys._current_frames()[thread.ident or 0])
                self.wrong.append(f"a caller hangs: {' < '.join(f'{one.name}:{one.lineno}' for one in stack[:-9:-1])}")
        if self.calls == before:
            self.wrong.append("nobody goes on")
        if len(self.failures) > 1:
            self.wrong.append(f"{len(self.failures)} callers met the error")
        if not self.wrong:
            self._account(broker)
        return where if struck else None

    def _account(self, broker: EmbeddedBroker) -> None:
        """Take all that is left: what was confirmed is there or was settled, and what was settled is not."""
        left: set[bytes] = set()
        waits = time.monotonic() + HANGING
        while any(broker.queue(name).size for name in QUEUES) and time.monotonic() < waits:
            for name in QUEUES:
                delivery = broker.pull(name, 1000, timeout="50ms")
                if delivery is not None:
                    self._note_delivery(delivery.bodies)
                    left.update(delivery.bodies)
                    delivery.ack()
        sizes = {name: size for name in QUEUES if (size := broker.queue(name).size)}
        if sizes:
            self.wrong.append(f"{sizes} cannot be taken")
        dead = {name: dead for name in QUEUES if (dead := broker.queue(name).dead)}
        if dead:
            self.wrong.append(f"{dead} are dead")
        lost = self.accepted - self.settled - self.uncertain - left
        if lost:
            self.wrong.append(f"{len(lost)} messages are lost: {sorted(lost)[:5]}")
        if self.again:
            self.wrong.append(
                f"{len(self.again)} messages came again after they were settled: {sorted(self.again)[:5]}"
            )

    # Callers

    def _repeat(
        self, actor: Callable[[EmbeddedBroker, Random, int], None], broker: EmbeddedBroker, number: int
    ) -> None:
        random, at = Random(self.seed * 100 + number), 0
        while not self._ends.is_set():
            at += 1
            begun = time.monotonic()
            try:
                actor(broker, random, number * 1_000_000 + at)
            except Exception as error:
                with self._guard:
                    if PLANTED in str(error):
                        self.failures.append(error)
                    else:
                        self.wrong.append(f"{actor.__name__} got {type(error).__name__}: {error}")
                        return
            else:
                took = time.monotonic() - begun
                with self._guard:
                    self.calls += 1
                    self.longest = max(self.longest, took)
            if actor not in (self._pull, self._receive):
                time.sleep(0.001)

    def _publish(self, broker: EmbeddedBroker, random: Random, at: int) -> None:
        body = b"one-%d" % at
        broker.publish(Message(random.choice(("jobs", "news.a")), body, priority=random.choice((0, 0, 3))))
        self._accept(body)

    def _publish_through(self, broker: EmbeddedBroker, random: Random, at: int) -> None:
        body = b"through-%d" % at
        due = time.time_ns() // 1000 + 20_000 if random.random() < 0.3 else None
        broker.route("x", Message("x", body, due=due))
        self._accept(body)

    def _publish_many(self, broker: EmbeddedBroker, random: Random, at: int) -> None:
        bodies = [b"many-%d-%d" % (at, row) for row in range(random.choice((2, 7)))]
        broker.publish([Message("jobs", body, id=f"i{body.decode()}") for body in bodies])
        self._accept(*bodies)

    def _accept(self, *bodies: bytes) -> None:
        with self._guard:
            self.accepted.update(bodies)

    def _pull(self, broker: EmbeddedBroker, random: Random, at: int) -> None:
        delivery = broker.pull("jobs", random.choice((1, 1, 5)), timeout="100ms")
        if delivery is not None:
            self._answer(delivery, random)

    def _receive(self, broker: EmbeddedBroker, random: Random, at: int) -> None:
        with broker.subscribe("pushed", credit=4) as subscription:
            for _ in range(20):
                delivery = subscription.receive("100ms")
                if delivery is not None:
                    self._answer(delivery, random)
                if self._ends.is_set():
                    return

    def _answer(self, delivery: Any, random: Random) -> None:
        bodies = list(delivery.bodies)
        self._note_delivery(bodies)
        answer = random.random()
        if answer < 0.1:
            delivery.retry(after="10ms")
        elif answer < 0.2:
            delivery.release()
        else:
            with self._guard:
                self.uncertain.update(bodies)
            if delivery.ack() == len(bodies):
                with self._guard:
                    self.uncertain.difference_update(bodies)
                    self.settled.update(bodies)

    def _note_delivery(self, bodies: Sequence[bytes]) -> None:
        with self._guard:
            self.again += [body for body in bodies if body in self.settled]

    def _operate(self, broker: EmbeddedBroker, random: Random, at: int) -> None:
        match random.randrange(4):
            case 0:
                broker.move("spare", "jobs", who="me")
            case 1:
                broker.configure_queue("jobs", message_limit=100_000 + at)
            case 2:
                broker.set_status("pushed", "running" if at % 2 else "only-publish")
                broker.set_status("pushed", "running")
            case _:
                assert broker.queue("jobs").size >= 0
        time.sleep(0.01)


def play(seed: int, tally: Counter[str]) -> None:
    """One run; raises `AssertionError` with all that went wrong."""
    run = Run(seed)
    where = run.play()
    tally["runs"] += 1
    tally["went off"] += where is not None
    tally["told to a caller"] += len(run.failures)
    tally["accepted"] += len(run.accepted)
    tally["settled"] += len(run.settled)
    tally["calls"] += run.calls
    tally["slower than a second"] += run.longest > 1
    assert not run.wrong, (
        f"run {seed}, {run.place}, an error in {where}: {'; '.join(run.wrong)}\n"
        f"  again: python -m tests.faults.mishaps --first {seed} --runs 1"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.mishaps", description=__doc__)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    if native.tail is not None:
        environment = {**os.environ, "REMUDA_PURE": "1", "PYTHONPATH": f"{kit.SOURCE}{os.pathsep}."}
        os.execve(sys.executable, [sys.executable, "-m", "tests.faults.mishaps", *sys.argv[1:]], environment)
    logging.getLogger("remuda").addHandler(logging.NullHandler())
    logging.getLogger("remuda").propagate = False
    tally, failed = Counter[str](), 0
    for seed in range(arguments.first, arguments.first + arguments.runs):
        try:
            play(seed, tally)
        except AssertionError as error:
            failed += 1
            print(error, flush=True)
    print(", ".join(f"{name}: {count}" for name, count in tally.items()) + f"; {failed} runs failed")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
