"""The lock under which queues are changed: one thread at a time, each gets its turn, and few switches between them."""

from __future__ import annotations

import operator
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from remuda import Message, native, open_broker
from remuda.broker.embedded.locks.mutex import Mutex

_PATIENCE = 60
_call: Callable[[Callable[[], object]], object] = operator.call

needs_c = pytest.mark.skipif(native.mutex is None, reason="the lock in C was not built")


class Struck(Exception):
    """Raised by a signal's handler."""


@contextmanager
def running(work: Callable[[], None], count: int) -> Iterator[list[threading.Thread]]:
    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    yield threads
    for thread in threads:
        thread.join(_PATIENCE)
        assert not thread.is_alive(), "a thread waits for ever"


def in_c(*calls: Callable[[], object]) -> None:
    """One call after the other: no other thread runs in between, nor a signal's handler, unless a call waits."""
    deque(map(_call, calls), 0)


def test_one_thread_has_it_at_a_time() -> None:
    lock, inside, most = Mutex(), [0], [0]

    def work() -> None:
        for _ in range(200):
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0)  # another thread runs now
                inside[0] -= 1

    with running(work, 8):
        pass
    assert most == [1]
    assert not lock.locked()


def test_whoever_waits_gets_its_turn_while_others_come_back_at_once() -> None:
    lock, stop, turns = Mutex(), threading.Event(), [0]

    def hog() -> None:
        while not stop.is_set():
            with lock:
                sum(range(200))

    def wait() -> None:
        for _ in range(20):
            with lock:
                turns[0] += 1
        stop.set()

    with running(hog, 4), running(wait, 1):
        pass
    assert turns == [20]


@contextmanager
def crowded() -> Iterator[None]:
    """Threads are interrupted so often that many come to wait for the lock."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
        time.sleep(0.02)
    finally:
        sys.setswitchinterval(before)


def switches_after_a_crowd(work: Callable[[], None]) -> int:
    """How often eight threads that do this gave up the processor once they were no longer crowded together."""
    begun = threading.Barrier(9)

    def begin() -> None:
        begun.wait()
        work()

    with running(begin, 8):
        with crowded():
            begun.wait()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before


@needs_c
def test_threads_that_once_piled_up_do_not_switch_at_every_use() -> None:
    lock = Mutex()

    def work() -> None:
        for _ in range(4000):
            with lock:
                sum(range(100))

    assert max(switches_after_a_crowd(work) for _ in range(5)) < 8 * 4000 / 10


@needs_c
def test_publishers_that_once_piled_up_do_not_switch_at_every_message() -> None:
    with open_broker("memory://") as broker:
        broker.create_queue("orders", type="pull")

        def work() -> None:
            for _ in range(1000):
                broker.publish(Message("orders", b"body"))

        assert max(switches_after_a_crowd(work) for _ in range(5)) < 8 * 1000 / 5
        assert broker.queue("orders").waiting == 40_000


@needs_c
def test_whoever_comes_back_before_another_thread_runs_need_not_wait() -> None:
    lock, taken = Mutex(), threading.Event()

    def take() -> None:
        with lock:
            taken.set()

    lock.acquire()
    with running(take, 1):
        time.sleep(0.05)  # now it waits
        in_c(lock.release, lock.acquire)
        assert not taken.is_set()
        lock.release()
        assert taken.wait(_PATIENCE)


def test_an_error_inside_lets_it_go() -> None:
    lock = Mutex()
    with pytest.raises(Struck), lock:
        raise Struck
    assert not lock.locked()


def test_what_nobody_has_cannot_be_released() -> None:
    with pytest.raises(RuntimeError):
        Mutex().release()


@pytest.fixture
def struck() -> Iterator[None]:
    def strike(number: int, frame: FrameType | None) -> None:
        raise Struck

    before = signal.signal(signal.SIGUSR1, strike)
    yield
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_ends_the_wait_and_others_go_on(struck: None) -> None:
    lock, held, enough, taken = Mutex(), threading.Event(), threading.Event(), threading.Event()
    main = threading.get_ident()

    def hold() -> None:
        with lock:
            held.set()
            enough.wait(_PATIENCE)

    def take() -> None:
        held.wait(_PATIENCE)
        with lock:
            taken.set()

    with running(hold, 1), running(take, 1):
        assert held.wait(_PATIENCE)
        threading.Timer(0.1, lambda: signal.pthread_kill(main, signal.SIGUSR1)).start()
        with pytest.raises(Struck):
            lock.acquire()
        assert not taken.is_set()
        enough.set()
        assert taken.wait(_PATIENCE)
    assert not lock.locked()


def test_it_knows_its_thread_through_waits_and_handovers() -> None:
    lock, wrong = Mutex(), []

    def work() -> None:
        for _ in range(200):
            if lock.owned():
                wrong.append("before")
            with lock:
                time.sleep(0)  # others wait meanwhile, and one gets it handed over
                if not lock.owned():
                    wrong.append("inside")

    with running(work, 8):
        pass
    assert wrong == []
    assert not lock.owned()


def test_signals_while_others_come_and_go_leave_it_free(struck: None) -> None:
    lock, stop, main, strikes = Mutex(), threading.Event(), threading.get_ident(), 0

    def hog() -> None:
        while not stop.is_set():
            with lock:
                time.sleep(0)

    with running(hog, 3):
        for _ in range(100):
            try:
                threading.Timer(0.002, lambda: signal.pthread_kill(main, signal.SIGUSR1)).start()
                while True:
                    in_c(lock.acquire, lock.release)
            except Struck:
                strikes += 1
        stop.set()
    assert strikes == 100
    assert not lock.locked()


@needs_c
def test_the_end_of_the_interpreter_does_not_mind_who_waits() -> None:
    script = (
        "import threading, time\n"
        "from remuda.broker.embedded.locks.mutex import Mutex\n"
        "lock = Mutex()\n"
        "lock.acquire()\n"
        "for _ in range(4): threading.Thread(target=lock.acquire, daemon=True).start()\n"
        "time.sleep(0.2)\n"
        "import atexit; atexit.register(lock.release)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=_PATIENCE, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_signals_handler_may_use_what_its_thread_was_waiting_for() -> None:
    lock, main, used = Mutex(), threading.get_ident(), list[str]()

    def use(number: int, frame: FrameType | None) -> None:
        with lock:
            used.append("handler")

    def hold() -> None:
        with lock:
            held.set()
            time.sleep(0.1)
            signal.pthread_kill(main, signal.SIGUSR1)
            time.sleep(0.3)  # the handler waits now, and below it whoever it interrupted

    before = signal.signal(signal.SIGUSR1, use)
    held = threading.Event()
    try:
        with running(hold, 1):
            held.wait()
            with lock:
                used.append("interrupted")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert used == ["handler", "interrupted"]
    assert not lock.locked()
