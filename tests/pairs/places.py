"""Where a scene of the bus is played: how it is opened, opened again, run, and how time passes there."""

from __future__ import annotations

import atexit
import contextlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from remuda import Bus
from remuda.bus.testing import ManualClock, TestBus
from remuda.model.errors import NotFound, RemudaError, Unsupported
from remuda.model.operations.results import QueueInfo

T = TypeVar("T")


class Place:
    """One bus, opened by the scene's application."""

    name = "nowhere"
    unit = 1_000_000
    """A moment, in microseconds."""
    tag = ""
    slack = 0
    """How much later than handed out a handler may be called."""

    has_offsets = True
    """Whether a message is known by its place in the log, too."""
    hosted = False
    """Whether it has a host of its own, which can be killed."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="remuda-pairs-"))
        self.bus: Bus

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def duration(self, units: int) -> str:
        return f"{units * self.unit // 1000}ms"

    def units(self, units: int) -> int:
        return units * self.unit

    def now(self) -> int:
        return self.bus.now()

    def open(self, application: Callable[[], Bus]) -> None:
        self.application = application
        self.bus = application()

    def make(self) -> Bus:
        raise NotImplementedError

    def reopen(self) -> None:
        """The application ends and starts again, or its host is killed."""
        raise Unsupported("a place that is not kept", "reopen")

    def kill(self) -> None:
        """The host is killed."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def run(self) -> None:
        """Everything that can be handled now has been."""
        raise NotImplementedError

    def pass_time(self, units: int) -> None:
        """Time passes, and what becomes due meanwhile is handled."""
        raise NotImplementedError

    def call(self, body: int, waiting: dict[int, Future[Any]], key: str) -> None:
        """A call, whose answer is added to those that are waited for."""
        raise NotImplementedError

    def agrees(self, check: Callable[[], T]) -> T:
        """What holds now, or where a log is written on the side, in a moment."""
        return check()

    def unpause(self) -> None:
        """The queue runs again after a while."""
        raise NotImplementedError


class UnderTest(Place):
    """`bus.testing()`, in a directory so that it can be opened again."""

    name = "testing"

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.test: TestBus
        self._paused = False

    def make(self) -> Bus:
        return Bus()

    def open(self, application: Callable[[], Bus]) -> None:
        super().open(application)
        self.test = self.bus.testing(self.folder / "d", clock=self.clock).__enter__()

    def reopen(self) -> None:
        self.test.close()
        self.open(self.application)

    def close(self) -> None:
        self.test.close()

    def run(self) -> None:
        self.test.run()

    def pass_time(self, units: int) -> None:
        for _ in range(units):
            self.test.advance(self.duration(1))
            if self._paused:
                self._paused = False
                self.bus.broker.set_status("q", "running")
        self.test.run()

    def unpause(self) -> None:
        self._paused = True

    def call(self, body: int, waiting: dict[int, Future[Any]], key: str) -> None:
        """A call under test handles messages until it has its answer."""
        future = waiting[body] = Future()
        _answer(future, lambda: self.test.call("x", body, key=key))


class Live(Place):
    """A bus that runs in the background, by the machine's clock."""

    unit = 60_000
    slack = 2_000_000
    options: ClassVar[dict[str, Any]] = {"sync": "os"}

    def make(self) -> Bus:
        return Bus(self.url, **self.options)

    @property
    def url(self) -> str:
        raise NotImplementedError

    def open(self, application: Callable[[], Bus]) -> None:
        super().open(application)
        self.bus.start()

    def close(self) -> None:
        self.bus.close()

    def run(self) -> None:
        self._wait(lambda: not any(info.waiting or info.in_flight for info in self._queues()), 5)

    def pass_time(self, units: int) -> None:
        """For long times, until nothing is left: at most a minute."""
        if units < 10:
            time.sleep(units * self.unit / 1_000_000)
        else:
            self._wait(lambda: not any(info.size for info in self._queues()), 60)

    def _queues(self) -> list[QueueInfo]:
        names = ("q", "second", "answers", "failures", "children", "remuda.callbacks", "remuda.unrouted")
        return [self.bus.broker.queue(name) for name in names]

    def _wait(self, condition: Callable[[], bool], within: float) -> None:
        deadline = time.monotonic() + within
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.01)

    def call(self, body: int, waiting: dict[int, Future[Any]], key: str) -> None:
        future = waiting[body] = Future()
        bus = self.bus
        caller = threading.Thread(target=_answer, args=(future, lambda: bus.call("x", body, timeout="8s", key=key)))
        caller.start()

    def unpause(self) -> None:
        broker = self.bus.broker

        def run() -> None:
            with contextlib.suppress(RemudaError):  # the application was opened again meanwhile, or is through
                broker.set_status("q", "running")

        threading.Timer(2 * self.unit / 1_000_000, run).start()


class InMemory(Live):
    name = "memory"
    url = "memory://"


class InDirectory(Live):
    name = "directory"

    @property
    def url(self) -> str:
        return str(self.folder / "d")

    def reopen(self) -> None:
        self.bus.close()
        self.open(self.application)


class Shared(InDirectory):
    """A directory that another process hosts until it is killed; then this one does."""

    name = "shared"
    hosted = True

    def open(self, application: Callable[[], Bus]) -> None:
        self.host: int | None = hosts().open(self.url)
        super().open(application)

    def close(self) -> None:
        super().close()
        self.kill()

    def reopen(self) -> None:
        self.kill()

    def kill(self) -> None:
        if self.host is not None:
            hosts().kill(self.host)
            self.host = None


class OnRabbitMQ(Live):
    name = "RabbitMQ"
    has_offsets = False
    unit = 100_000
    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url

    @property
    def url(self) -> str:
        return self._url

    def reopen(self) -> None:
        self.bus.close()
        self.open(self.application)

    def agrees(self, check: Callable[[], T]) -> T:
        deadline = time.monotonic() + 10
        while True:
            try:
                return check()
            except (AssertionError, NotFound):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)


class Hosts:
    """Processes that host a directory, forked from one that has loaded everything."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.pairs.hosting"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        atexit.register(self.close)

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(line, file=self._process.stdin, flush=True)
        return self._process.stdout.readline().strip()

    def open(self, directory: str) -> int:
        return int(self._ask(f"open {directory}"))

    def kill(self, process: int) -> None:
        self._ask(f"kill {process}")

    def close(self) -> None:
        """Its children end with it."""
        self._process.kill()
        self._process.wait()


@cache
def hosts() -> Hosts:
    return Hosts()


def _answer(future: Future[Any], call: Callable[[], Any]) -> None:
    try:
        future.set_result(call())
    except (RemudaError, TimeoutError) as error:
        future.set_exception(error)
