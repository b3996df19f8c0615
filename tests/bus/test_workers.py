"""U4: every process that runs a bus tells of itself, and can be told to pause, to resume and to stop."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from remuda import Bus, InvalidOption, NotFound, __version__
from remuda.broker.shared.wire.command_checks import checked_query
from remuda.broker.shared.wire.permissions import Grants, Permissions
from remuda.model.operations.worker_orders import Intake, RunningCall, Worker, WorkerQueue
from remuda.server.wire import serve_wire
from tests.server.site import until


def only(bus: Bus, fits: Callable[[Worker], Any] = lambda worker: True) -> Worker:
    """The only worker, once it is as wanted."""

    def look() -> Worker | None:
        found = bus.broker.workers()
        return found[0] if len(found) == 1 and fits(found[0]) else None

    worker = until(look, "the worker")
    assert isinstance(worker, Worker)
    return worker


@pytest.fixture(params=["threads", "asyncio", "processes"])
def executor(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def hold(body: str) -> None:
    """For a process: as long as the file is there."""
    import time
    from pathlib import Path

    while Path(body).exists():
        time.sleep(0.01)


def test_u4_a_worker_tells_where_it_is_and_what_it_runs(tmp_path: Path, executor: str) -> None:
    """U4"""
    bus = Bus(tmp_path / "data")
    flag = tmp_path / "flag"
    flag.touch()

    async def hold_async(body: str) -> None:
        import asyncio

        while flag.exists():
            await asyncio.sleep(0.01)

    rules: Any = {"threads": 2, "timeout": "5m", "executor": executor}
    bus.subscribe("order.placed", queue="ship", **rules)(hold_async if executor == "asyncio" else hold)
    with bus:
        bus.start()
        id = bus.publish("order.placed", str(flag))
        worker = only(bus, lambda worker: worker.running)
        assert (worker.process, worker.host, worker.version) == (os.getpid(), socket.gethostname(), __version__)
        assert worker.intake is Intake.OPEN
        assert not worker.silent
        assert worker.trouble is None
        ship = next(queue for queue in worker.queues if queue.name == "ship")
        assert (ship.executor, ship.size, ship.busy) == (executor, 2, 1)
        (call,) = worker.running
        assert (call.queue, call.id, call.topic, call.attempt) == ("ship", id, "order.placed", 1)
        assert call.handler.endswith("hold_async" if executor == "asyncio" else "hold")
        assert call.timeout == 300_000_000
        assert worker.since <= call.since <= bus.now()
        flag.unlink()
        only(bus, lambda worker: not worker.running)
        bus.stop()
        assert bus.broker.workers() == []


def test_u4_a_paused_worker_takes_nothing_until_it_is_resumed(tmp_path: Path) -> None:
    """U4: what is running goes on, what waits stays where it is, for other workers."""
    with Bus(tmp_path / "data") as bus:
        done: list[int] = []

        @bus.subscribe("order.placed", queue="ship")
        def ship(body: int) -> None:
            done.append(body)

        @bus.subscribe("mail.sent", queue="mail")
        async def mail(body: int) -> None:
            done.append(body)

        bus.start()
        worker = only(bus)
        bus.broker.order_worker(worker.id, "pause", who="ann")
        only(bus, lambda worker: worker.intake is Intake.PAUSED)
        until(lambda: not any(info.pulls for info in bus.broker.queues()), "the last pull")
        bus.publish("order.placed", 1)
        bus.publish("mail.sent", 2)
        only(bus, lambda again: again.told > worker.told)
        assert done == []
        assert bus.broker.queue("ship").waiting == 1
        assert bus.broker.queue("mail").waiting == 1
        bus.broker.order_worker(worker.id, "resume", who="ann")
        until(lambda: sorted(done) == [1, 2], "the messages")
        assert only(bus, lambda worker: worker.intake is Intake.OPEN).id == worker.id


def test_u4_a_worker_that_is_told_to_stop_finishes_and_leaves(tmp_path: Path) -> None:
    """U4: `run` returns as on SIGTERM."""
    with Bus(tmp_path / "data") as bus:
        begun, go = threading.Event(), threading.Event()

        @bus.subscribe("order.placed", queue="ship")
        def ship(body: int) -> None:
            begun.set()
            go.wait(60)

        running = threading.Thread(target=bus.run)
        running.start()
        bus.publish("order.placed", 1)
        assert begun.wait(60)
        worker = only(bus)
        bus.broker.order_worker(worker.id, "stop")
        only(bus, lambda worker: worker.intake is Intake.STOPPING)
        go.set()
        running.join(60)
        assert not running.is_alive()
        assert bus.broker.workers() == []
        assert bus.broker.queue("ship").size == 0
        with pytest.raises(NotFound, match="there is no worker"):
            bus.broker.order_worker(worker.id, "stop")


def test_u4_orders_are_checked() -> None:
    """U4"""
    with Bus() as bus:
        with pytest.raises(InvalidOption, match="pause, resume, stop, not 'explode'"):
            bus.broker.order_worker("1", "explode")
        with pytest.raises(NotFound):
            bus.broker.order_worker("1", "stop")


def test_u4_guests_of_a_directory_and_of_a_server_tell_too(tmp_path: Path) -> None:
    """U4: the host lists its own process, another that shares the directory, and one that came over TCP."""
    (tmp_path / "app.py").write_text(
        "import sys\n"
        "from remuda import Bus\n"
        "bus = Bus(sys.argv[1])\n"
        "bus.subscribe('order.placed', queue=sys.argv[2])(lambda body: None)\n"
        "bus.run()\n"
    )
    with Bus(tmp_path / "data") as bus, serve_wire(bus.broker, ("127.0.0.1", 0)) as server:
        bus.subscribe("order.placed", queue="here")(hold)
        bus.start()
        others = [
            subprocess.Popen([sys.executable, "app.py", *arguments], cwd=tmp_path)
            for arguments in ((str(tmp_path / "data"), "beside"), (server.url, "far"))
        ]
        try:
            found = until(lambda: len(bus.broker.workers()) == 3 and bus.broker.workers(), "three workers")
            assert {queue.name for worker in found for queue in worker.queues} >= {"here", "beside", "far"}
            assert {worker.process for worker in found} == {os.getpid(), *(one.pid for one in others)}
            assert {worker.name for worker in found if worker.process != os.getpid()} == {"app.py"}
            far = next(worker for worker in found if worker.process == others[1].pid)
            bus.broker.order_worker(far.id, "stop", who="ann")
            assert others[1].wait(60) == 0
            until(lambda: len(bus.broker.workers()) == 2, "the worker that left")
            others[0].kill()
            others[0].wait(60)
            silent = until(lambda: [worker for worker in bus.broker.workers() if worker.silent], "silence")
            assert [worker.process for worker in silent] == [others[0].pid]
        finally:
            for one in others:
                one.kill()
                one.wait(60)


def test_u4_a_stranger_cannot_fill_the_list() -> None:
    """U4: what comes from another machine is checked."""
    worker = Worker("1-a", "app", 1, "host", "1", 0, Intake.OPEN, (), ())
    assert checked_query("tell_worker", (worker,)) == (worker,)
    for wrong in (
        msgspec.structs.replace(worker, id=""),
        msgspec.structs.replace(worker, host="h" * 2001),
        msgspec.structs.replace(worker, trouble="h" * 2001),
    ):
        with pytest.raises(InvalidOption, match="a worker has an id"):
            checked_query("tell_worker", (wrong,))


def test_u4_users_see_the_workers_of_their_own_queues_only() -> None:
    """U4 S6"""
    queues = (WorkerQueue("bills", "threads", 1, 0), WorkerQueue("other", "threads", 1, 0))
    call = RunningCall("other", "1", 1, "t", "f", 1, 0)
    worker = Worker("1-a", "app", 1, "host", "1", 0, Intake.OPEN, queues, (call,))
    (seen,) = Permissions(Grants("ann", read="^bills$")).only_seen("workers", [worker])
    assert (seen.id, seen.queues, seen.running) == ("", queues[:1], ())
    assert Permissions(Grants("bob", read="^nothing$")).only_seen("workers", [worker]) == []
