"""Ctrl-C at any moment: what was confirmed is kept, and nothing half-changed is written."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from remuda import Message, open_broker
from remuda.broker import threads
from remuda.broker.embedded.delivering.inbox import Inbox
from remuda.broker.embedded.storing import durability
from remuda.broker.embedded.storing.group_commit import GroupCommit
from remuda.broker.embedded.storing.write_progress import AWAITED, WRITTEN
from remuda.broker.threads import EmbeddedBroker
from remuda.model.errors import DirectoryInUse, NotFound, StorageError
from remuda.model.messages import Messages
from remuda.model.operations.commands import Publish, RemoveQueue
from tests.faults.storms import Account, Blow, Interrupted, Sweep

pytestmark = [pytest.mark.faults, pytest.mark.source]

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from remuda import Message, open_broker
try:
    with open_broker(sys.argv[1], sync="os") as broker:
        broker.create_queue("jobs", type="pull")
        while True:
            broker.publish(Message("jobs.one", b"x"))
            os.write(1, b"published\\n")  # at one go, whatever comes between
            delivery = broker.pull("jobs")
            delivery.nack()
except KeyboardInterrupt:
    os.write(1, b"interrupted\\n")
"""


class Alarm(Exception):
    """What a handler of SIGALRM raises, or one of SIGTERM that asks for an orderly end."""


@pytest.mark.parametrize("after", [1, 161])
def test_l2_an_interrupt_loses_nothing_that_was_confirmed(tmp_path: Path, after: int) -> None:
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(tmp_path / "data")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for _ in range(after):
            assert child.stdout.readline() == "published\n"
        os.kill(child.pid, signal.SIGINT)
        rest = child.stdout.read().splitlines()
        assert child.wait(timeout=60) == 0
    assert rest[-1] == "interrupted"
    confirmed = after + rest.count("published")
    with open_broker(tmp_path / "data") as broker:
        assert broker.recovery.damages == ()
        assert broker.queue("jobs").size in (confirmed, confirmed + 1)


def test_a_refusal_does_not_stop_the_broker(tmp_path: Path) -> None:
    with open_broker(tmp_path / "data", auto_queue_creation=False) as broker:
        with pytest.raises(NotFound):
            broker.pull("unknown")
        broker.create_queue("jobs", type="pull")
        assert broker.publish(Message("jobs", b"x")).accepted == 1


@pytest.mark.alone  # as all that watch calls by a profile
@pytest.mark.parametrize("company", [False, True])
@pytest.mark.parametrize(("fails", "error"), [(False, KeyboardInterrupt), (True, KeyboardInterrupt), (False, Alarm)])
def test_an_interrupt_anywhere_leaves_no_leader_behind(company: bool, fails: bool, error: type[BaseException]) -> None:
    """Whoever was made the leader of a group commit passes that on, wherever it is interrupted, and by whatever a
    signal's handler raises."""
    place, came = 0, True
    while came:
        place += 1
        blow = Blow(place, error=error)
        group = crowded(blow, company=company, fails=fails)
        came = blow.came
        assert group.failure is None or came or fails
        if group.failure is None:
            wait_for(group, 99)
        else:
            with pytest.raises(StorageError):
                group.wait(99)
        assert not group.busy
    assert place > 8


def crowded(blow: Blow, *, company: bool, fails: bool) -> GroupCommit:
    """A group commit of which one wait was struck, and in `company` two others were not; all of them are over."""
    inside, on = threading.Event(), threading.Event()
    reached = 10

    def work() -> int:
        nonlocal reached
        if company and not on.is_set():
            inside.set()
            assert on.wait(30)
        reached += 10
        if fails:
            raise OSError("the disk fails")
        return reached

    group = GroupCommit(work)
    others = [threading.Thread(target=waited, args=(group, ticket), daemon=True) for ticket in (5, 25)]
    if company:
        others[0].start()
        assert inside.wait(30)
        others[1].start()
        while len(group._places) < 1:
            time.sleep(0.001)
        threading.Timer(0.002, on.set).start()
    with contextlib.suppress(Interrupted, StorageError, OSError):
        blow.strike(lambda: group.wait(30))
    on.set()
    for other in others if company else ():
        other.join(30)
        assert not other.is_alive(), "it waits for a leader that is gone"
    return group


def waited(group: GroupCommit, ticket: int) -> None:
    with contextlib.suppress(StorageError, OSError):
        group.wait(ticket)


def wait_for(group: GroupCommit, ticket: int) -> None:
    thread = threading.Thread(target=waited, args=(group, ticket), daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "it waits for a leader that is gone"


@pytest.mark.alone
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_two_interrupts_at_once_leave_no_leader_behind(after: bool, error: type[BaseException]) -> None:
    group = GroupCommit(lambda: 10)
    leave, left = group._leave, 2

    def struck(*args: Any) -> None:
        nonlocal left
        if after or not left:
            leave(*args)
        if left:
            left -= 1
            raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group, "_leave", struck)
        with pytest.raises(error):
            group.wait(1)
    wait_for(group, 5)
    assert not group.busy


@pytest.mark.parametrize("struck", ["_mend", "_give_up", "log", "inbox"])
def test_l2_a_second_interrupt_does_not_keep_a_broker_from_stopping(tmp_path: Path, struck: str) -> None:
    """Its queues may be half changed: nothing more may come of them, and everyone who waits is told."""
    told: list[BaseException] = []
    broker = open_broker(tmp_path, sync="os", shared=False)
    runtime = broker.runtime
    for queue in ("jobs", "elsewhere"):
        broker.create_queue(queue, type="pull")
    broker.publish(Message("jobs", b"kept"))

    def wait() -> None:
        try:
            broker.pull("elsewhere", timeout="60s")
        except StorageError as error:
            told.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    while not runtime._recipients.inboxes:
        time.sleep(0.001)
    blows = 2
    part, name = {
        "_mend": (runtime, "_mend"),
        "_give_up": (runtime, "_give_up"),
        "log": (durability._log, "error"),
        "inbox": (Inbox, "close"),
    }[struck]
    does = getattr(part, name)

    def strike(*args: Any) -> Any:
        nonlocal blows
        if blows and threading.current_thread() is threading.main_thread():
            blows -= 1
            raise KeyboardInterrupt
        return does(*args)

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(part, name, strike)
            patch.setattr(runtime, "_publish", interrupting(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                runtime.submit(Publish(Messages([b"half"], "jobs")))
        assert blows == 0
        waiting.join(30)
        assert told, "it waits for what will never come"
        with pytest.raises(StorageError, match="open the broker again"):
            broker.publish(Message("jobs", b"refused"))
    finally:
        broker.close()


def test_an_interrupt_that_lands_on_a_refusal_is_not_swallowed(tmp_path: Path) -> None:
    with open_broker(tmp_path, sync="os", shared=False) as broker:
        runtime = broker.runtime
        does, blows = runtime._mend, [KeyboardInterrupt]

        def strike(*args: Any) -> Any:
            if blows:
                raise blows.pop()
            return does(*args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runtime, "_mend", strike)
            with pytest.raises(KeyboardInterrupt):
                runtime.submit(RemoveQueue("nobody's"))
        broker.create_queue("jobs", type="pull")
        assert broker.publish(Message("jobs", b"taken")).accepted == 1


@pytest.mark.parametrize("where", ["take", "let_out"])
def test_l2_an_interrupt_beside_the_write_itself_is_told_to_everyone_who_waits(tmp_path: Path, where: str) -> None:
    told: list[BaseException | None] = []
    broker = open_broker(tmp_path, sync="always", shared=False)

    def wait() -> None:
        try:
            told.append(broker.pull("elsewhere", timeout="60s"))  # type: ignore[arg-type]
        except StorageError as error:
            told.append(error)

    try:
        for queue in ("jobs", "elsewhere"):
            broker.create_queue(queue, type="pull")
        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        runtime = broker.runtime
        while not runtime._recipients.inboxes:
            time.sleep(0.001)
        if where == "let_out":
            broker.subscribe("jobs")  # somebody has to learn of it
        part = runtime.engine if where == "take" else runtime._recipients
        does = getattr(part, where)

        def struck(*args: Any) -> None:
            done = does(*args)
            if threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt
            return done  # type: ignore[no-any-return]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(part, where, struck)
            with pytest.raises(KeyboardInterrupt):
                broker.publish([Message("jobs", b"perhaps") for _ in range(3)])
        waiting.join(30)
        assert isinstance(told[0], StorageError)
        assert "KeyboardInterrupt" in str(told[0])
    finally:
        broker.close()
    with open_broker(tmp_path, shared=False) as again:
        assert not again.recovery.damages
        assert again.queue("jobs").size in ((0, 3) if where == "take" else (3,))


@pytest.mark.alone
@pytest.mark.parametrize("sync", ["os", "always"])
def test_l2_a_call_that_is_interrupted_anywhere_loses_nothing_and_tells_everyone(tmp_path: Path, sync: str) -> None:
    account = Account()
    sweep = Sweep(tmp_path, sync, account, 11 if sync == "os" else 47, stride=131)
    sweep.run()
    assert not account.faults
    assert sweep.places > 10


@pytest.mark.alone
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("after", [{"open", "extend", "flock"}, None], ids=["files", "all"])
def test_l7_an_opening_that_is_interrupted_anywhere_lets_the_directory_go(
    tmp_path: Path, after: set[str] | None
) -> None:
    place, came = 1, True
    while came:
        blow = Blow(place, after)
        with contextlib.suppress(Interrupted):
            blow.strike(lambda: open_broker(tmp_path, shared=False, sync="os")).close()
        open_soon(tmp_path).close()
        came = blow.came
        place += 1 if after else 199
    assert place > 10


def open_soon(path: Path) -> EmbeddedBroker:
    """Where the opening went on to the threads it starts, those let the directory go a moment later."""
    end = time.monotonic() + 30
    while True:
        try:
            return open_broker(path, shared=False, sync="os")
        except DirectoryInUse:
            assert time.monotonic() < end, "an opening that was interrupted keeps the directory"
            time.sleep(0.01)


def interrupting(error: type[BaseException]) -> Callable[..., Any]:
    def interrupt(*args: object, **options: object) -> Any:
        raise error

    return interrupt


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, Alarm])
def test_a_pull_that_was_interrupted_takes_nothing_from_those_who_come_later(
    tmp_path: Path, error: type[BaseException]
) -> None:
    interrupt = interrupting(error)
    with open_broker(tmp_path / "data", shared=False) as broker:
        broker.create_queue("jobs", type="pull", acknowledge_timeout="1h")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Inbox, "get", interrupt)
            with pytest.raises(error):
                broker.pull("jobs", timeout="1h")
        broker.publish(Message("jobs", b"one"))
        first = broker.pull("jobs")
        assert first is not None
        first.nack()
        runtime = broker.runtime
        waits = runtime.wait
        for name, struck in (("wait", partial(interrupt_main_thread, waits, error)), ("load", interrupt)):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(runtime, name, struck)
                patch.setattr(runtime.engine, "held", lambda dispatch: None)
                patch.setattr(
                    runtime, "_standing", AWAITED if name == "wait" else WRITTEN
                )  # so that it is not written at once
                with pytest.raises(error):
                    broker.pull("jobs")
            again = broker.pull("jobs")
            assert again is not None, name
            again.nack()


def interrupt_main_thread(call: Callable[[int], None], error: type[BaseException], ticket: int) -> None:
    if threading.current_thread() is threading.main_thread():
        raise error
    call(ticket)


def test_q3_a_pull_that_is_struck_when_its_delivery_comes_gives_it_back(tmp_path: Path) -> None:
    """An error that one thread raises in another arrives when that one goes on: mostly, when it is woken."""

    class Struck(Inbox):
        def get(self, timeout: float | None) -> Any:
            assert super().get(timeout) is not None
            raise Alarm

    with open_broker(tmp_path / "data", shared=False, sync="os") as broker:
        broker.create_queue("jobs", type="pull", acknowledge_timeout="1h")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threads, "Inbox", Struck)
            threading.Timer(0.05, broker.publish, [Message("jobs", b"one")]).start()
            with pytest.raises(Alarm):
                broker.pull("jobs", timeout="30s")
        assert not broker.queue("jobs").pulls


def test_q3_a_pull_whose_loop_is_gone_takes_nothing_from_those_who_come_later(tmp_path: Path) -> None:
    with open_broker(tmp_path / "data", shared=False, sync="os") as broker:
        broker.create_queue("jobs", type="pull", acknowledge_timeout="1h")
        loop = asyncio.new_event_loop()
        pull = broker.aio.pull("jobs", timeout="1h")
        task = loop.create_task(pull)
        while not broker.queue("jobs").pulls:
            loop.run_until_complete(asyncio.sleep(0))
        pull.close()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, RuntimeError):
            loop.run_until_complete(task)
        loop.close()
        assert not broker.queue("jobs").pulls
        broker.publish(Message("jobs", b"one"))
        delivery = broker.pull("jobs")
        assert delivery is not None
        assert delivery.attempts == [1]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, Alarm])
@pytest.mark.parametrize("face", ["threads", "asyncio"])
def test_a_subscription_that_was_interrupted_takes_nothing_from_those_who_come_later(
    tmp_path: Path, face: str, error: type[BaseException]
) -> None:
    interrupt = interrupting(error)
    with open_broker(tmp_path / "data", shared=False, sync="os") as broker:
        broker.create_queue("jobs", acknowledge_timeout="1h")
        with pytest.MonkeyPatch.context() as patch:
            if face == "threads":
                patch.setattr(broker, "_finish", interrupt)
                with pytest.raises(error):
                    broker.subscribe("jobs", consumer="gone")
            else:
                patch.setattr(broker.aio, "_finish", cancelled)
                with pytest.raises(asyncio.CancelledError):
                    asyncio.run(broker.aio.subscribe("jobs", consumer="gone"))
        assert not broker.queue("jobs").consumers


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, Alarm])
@pytest.mark.parametrize("acknowledge", ["wait", "just-request"])
def test_q2_a_delivery_whose_receipt_was_interrupted_comes_first_again(
    tmp_path: Path, acknowledge: str, error: type[BaseException]
) -> None:
    with open_broker(tmp_path / "data", shared=False, sync="os") as broker:
        broker.create_queue("jobs", acknowledge=acknowledge, acknowledge_timeout="1h")
        places = [(broker, "_deliver"), (broker.runtime, "held")]
        if acknowledge == "just-request":  # then the queue is told of what is handed over
            places += [(broker.runtime, "wait"), (broker.runtime, "submit")]
        with broker.subscribe("jobs") as subscription:
            for part, name in places:
                broker.publish(Message("jobs", b"one"))
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(part, name, interrupting(error))
                    with pytest.raises(error):
                        subscription.receive(timeout="30s")
                again = subscription.receive(timeout="5s")
                assert again is not None, name
                assert again.bodies == [b"one"]
                assert again.ack() == 1


async def cancelled(*args: object) -> Any:
    raise asyncio.CancelledError


@pytest.mark.parametrize("face", ["threads", "asyncio"])
def test_a_storm_of_interrupts_neither_hangs_nor_loses(tmp_path: Path, face: str) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.faults.storms", "--rounds", "4", "--face", face]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    assert "0 faults" in ran.stdout
