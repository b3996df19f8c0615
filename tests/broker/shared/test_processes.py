"""Several processes on one directory (S5): each can do everything, and when one ends the others go on."""

from __future__ import annotations

import logging
import multiprocessing
import os
import socket
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
from remuda.broker.embedded.extensions import Extensions
from remuda.broker.embedded.runtime import Runtime
from remuda.broker.embedded.storing.durability import FENCED
from remuda.broker.shared.directory import host_status
from remuda.broker.shared.directory.filesystems import check_local, kind_of
from remuda.broker.shared.host.guest_session import GuestSession
from remuda.broker.shared.wire import sockets, wire_frames
from remuda.core.effects import Dispatch
from remuda.core.extensions import no_handler
from remuda.log.disk.directory import DirectoryDisk
from remuda.model.errors import HostNotResponding, NotFound, StorageError, Unsupported
from remuda.model.settlement import Outcome, Settlement
from tests.broker.shared.kit import SOURCE, other, publish_ten
from tests.cli.kit import runner
from tests.conformance.kit import eventually

pytestmark = pytest.mark.faults


def test_s5_two_processes_share_queues_in_both_directions(tmp_path: Path) -> None:
    with open_broker(tmp_path / "d", sync="os") as broker, other(tmp_path / "d") as process:
        assert not broker.runtime.remote
        assert process.does("broker.runtime.remote")
        process.does("broker.create_queue('jobs', type='pull').created")
        process.does("broker.publish(Message('jobs', b'from there')).accepted")
        broker.publish(Message("jobs", b"from here"))
        delivery = broker.pull("jobs")
        assert delivery is not None
        assert delivery.bodies == [b"from there"]
        delivery.ack()
        assert process.does("broker.pull('jobs').bodies[0].decode()") == "from here"
        assert process.does("[i.name for i in broker.queues()]") == ["jobs"]
        with pytest.raises(NotFound, match="no queue 'nowhere'"):
            broker.queue("nowhere")


def test_s5_a_guest_takes_over_when_its_host_is_killed_and_keeps_what_it_holds(tmp_path: Path) -> None:
    with other(tmp_path / "d") as host:
        host.does("broker.create_queue('jobs', type='pull', acknowledge_timeout='60s').created")
        with open_broker(tmp_path / "d", sync="os") as broker:
            assert broker.runtime.remote
            broker.publish([Message("jobs", b"1"), Message("jobs", b"2"), Message("jobs", b"3")])
            mine = broker.pull("jobs")
            host.does("held.append(broker.pull('jobs'))")
            assert mine is not None
            host.kill()
            broker.publish(Message("jobs", b"4"))
            eventually(lambda: not broker.runtime.remote)
            assert mine.ack() == 1
            # What the dead host held comes back, before what waited, and this counts as an attempt.
            eventually(lambda: broker.queue("jobs").waiting == 3)
            rest = broker.pull("jobs", 9)
            assert rest is not None
            assert sorted(rest.bodies) == [b"2", b"3", b"4"]
            assert dict(zip(rest.bodies, rest.attempts, strict=True))[b"2"] == 2
            assert rest.ack() == 3
            assert broker.queue("jobs").size == 0


def test_s5_subscriptions_credit_and_waiting_pulls_go_on_with_the_next_host(tmp_path: Path) -> None:
    with other(tmp_path / "d") as host, other(tmp_path / "d") as next_host:  # noqa: SIM117
        with open_broker(tmp_path / "d", sync="os") as broker:
            broker.create_queue("jobs", acknowledge_timeout="60s")
            broker.create_queue("asked", type="pull")
            subscription = broker.subscribe("jobs", credit=2)
            broker.publish([Message("jobs", b"%d" % number) for number in range(5)])
            first, second = subscription.receive(60), subscription.receive(60)
            found: list[bytes] = []

            def ask() -> None:
                delivery = broker.pull("asked", timeout=60)
                assert delivery is not None
                found.extend(delivery.bodies)
                delivery.ack()

            asking = threading.Thread(target=ask, daemon=True)
            asking.start()
            eventually(lambda: broker.queue("asked").pulls == 1)
            host.kill()
            # Its two unanswered messages still take up its credit with whoever hosts now.
            eventually(lambda: broker.queue("jobs").in_flight == 2 and broker.queue("jobs").waiting == 3)
            assert subscription.receive(0.05) is None
            assert first is not None
            assert second is not None
            assert first.ack() == 1
            third = subscription.receive(60)
            assert third is not None
            assert third.bodies == [b"2"]
            next_host.does("broker.publish(Message('asked', b'!')).accepted")
            asking.join(60)
            assert found == [b"!"]
            assert second.ack() == third.ack() == 1


def test_s5_a_clean_exit_hands_over(tmp_path: Path) -> None:
    with open_broker(tmp_path / "d", sync="os") as host, other(tmp_path / "d") as guest:
        host.create_queue("jobs", type="pull")
        host.publish(Message("jobs", b"1"))
        guest.does("held.append(broker.pull('jobs'))")
        host.close()
        assert guest.does("held[0].ack()") == 1
        assert guest.does("broker.queue('jobs').size") == 0


def test_s5_a_killed_guest_gives_back_at_once_and_only_what_it_had_begun_counts(tmp_path: Path) -> None:
    with open_broker(tmp_path / "d", sync="os") as broker, other(tmp_path / "d") as guest:
        broker.create_queue("jobs", type="pull", acknowledge_timeout="600s")
        broker.publish([Message("jobs", b"%d" % number) for number in range(4)])
        guest.does("held.append(broker.pull('jobs', 4))")
        guest.does("held[0].begin([0]), held[0].begin([1])")
        guest.does("held[0].ack([0])")
        guest.kill()
        eventually(lambda: broker.queue("jobs").waiting == 3)
        again = broker.pull("jobs", 9)
        assert again is not None
        assert dict(zip(again.bodies, again.attempts, strict=True)) == {b"1": 2, b"2": 1, b"3": 1}


def test_s5_an_answer_that_is_not_waited_for_reaches_the_next_host(tmp_path: Path) -> None:
    with other(tmp_path / "d") as host, open_broker(tmp_path / "d", sync="os") as broker:
        broker.create_queue("jobs", type="pull", acknowledge_timeout="600s")
        broker.publish(Message("jobs", b"1"))
        delivery = broker.pull("jobs")
        assert delivery is not None
        host.freeze()
        assert delivery.answer(Settlement(Outcome.ACK), wait=False) == 1
        host.kill()
        eventually(lambda: broker.queue("jobs").size == 0)


def test_s5_a_frozen_host_is_reported_and_can_be_ended(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place, remuda = tmp_path / "d", runner(capsys)
    monkeypatch.setattr("remuda.broker.shared.guest.frame_reading._WORRY", 0.5)
    monkeypatch.setattr("remuda.broker.shared.guest.frame_reading._TICK", 100)
    answers = host_status.answers
    monkeypatch.setattr(host_status, "answers", partial(answers, patience=1.0))
    with other(place) as host, open_broker(place, sync="os") as broker:
        broker.create_queue("jobs", type="pull")
        guest = broker.runtime.guest
        guest._patience = 0.5
        host.freeze()
        with pytest.raises(HostNotResponding, match=rf"process {host.pid}.*remuda takeover {place}"):
            broker.publish(Message("jobs", b"kept for the next host"))
        with caplog.at_level(logging.WARNING, "remuda.guest"):
            eventually(lambda: "has not answered" in caplog.text)
        assert f"process {os.getpid()} is now the host" in remuda("takeover", str(place), "--yes").out
        eventually(lambda: not broker.runtime.remote)
        guest._patience = 60
        monkeypatch.setattr(host_status, "answers", partial(answers, patience=60.0))
        assert broker.queue("jobs").waiting == 1
        assert "answers; nothing was done" in remuda("takeover", str(place), "--yes", code=1).err


def test_s5_a_host_that_lost_the_directory_writes_nothing_more(tmp_path: Path) -> None:
    with open_broker(tmp_path / "d", sync="os") as broker:
        broker.publish(Message("jobs", b"kept"))
        lock = tmp_path / "d" / "lock"
        lock.write_bytes(b"1\n%d\nshared\n" % (broker.runtime.engine.log.disk.epoch + 1))
        time.sleep(2 * FENCED)
        with pytest.raises(StorageError, match="taken over by process 1"):
            broker.runtime.sync()
        with pytest.raises(StorageError, match="taken over by process 1"):
            broker.publish(Message("jobs", b"refused"))
        files = {path: path.read_bytes() for path in (tmp_path / "d").glob("*.log")}
    assert {path: path.read_bytes() for path in (tmp_path / "d").glob("*.log")} == files


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_s5_multiprocessing_by_fork_and_by_spawn(tmp_path: Path, method: str) -> None:
    with open_broker(tmp_path / "d", sync="os") as broker:
        broker.create_queue("jobs", type="pull")
        context: Any = multiprocessing.get_context(method)
        children = [context.Process(target=publish_ten, args=(str(tmp_path / "d"), number)) for number in range(3)]
        for child in children:
            child.start()
        for child in children:
            child.join(100)
            assert child.exitcode == 0
        assert broker.queue("jobs").waiting == 30


FORKED = """
import os, sys, time
from remuda import Bus
bus = Bus(sys.argv[1])
@bus.subscribe("order.placed", queue="ship")
def ship(body: int) -> None:
    pass
bus.publish("order.placed", 1)
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        bus.publish("order.placed", 2)
        bus.close()
        os._exit(0)
    children.append(child)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
bus.publish("order.placed", 3)
print(codes, bus.broker.queue("ship").waiting)
bus.close()
"""


def test_s5_a_bus_made_before_a_fork_works_in_the_children(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKED, str(tmp_path / "d")]
    run = subprocess.run(command, env={**os.environ, "PYTHONPATH": SOURCE}, capture_output=True, text=True, timeout=100)
    assert run.stdout == "[0, 0, 0] 5\n", run.stderr


def test_s5_a_long_path_has_a_socket_too(tmp_path: Path) -> None:
    place = tmp_path.joinpath(*["a-rather-long-name-for-a-folder"] * 5)
    with open_broker(place, sync="os") as host, open_broker(place, sync="os") as guest:
        guest.publish(Message("jobs", b"x"))
        assert host.queue("jobs").waiting == 1


def test_s5_the_socket_is_its_owners_alone(tmp_path: Path) -> None:
    with open_broker(tmp_path / "d", sync="os") as host, open_broker(tmp_path / "d", sync="os"):
        assert (tmp_path / "d" / "socket").stat().st_mode & 0o777 == 0o600
        assert (tmp_path / "d").stat().st_mode & 0o777 == 0o700
        assert (tmp_path / "d" / "guests").stat().st_mode & 0o777 == 0o700
        assert host.runtime.hosts
    assert not (tmp_path / "d" / "socket").exists()
    assert list((tmp_path / "d" / "guests").iterdir()) == []


def test_s5_a_network_file_system_is_refused_unless_forced(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 0:1 / / rw - ext4 /dev/a rw\n2 1 0:2 / {tmp_path}/net rw - nfs4 server:/x rw\n")
    assert kind_of(tmp_path / "net" / "data", str(mounts)) == "nfs4"
    assert kind_of(tmp_path / "data", str(mounts)) == "ext4"
    check_local(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("remuda.broker.shared.directory.filesystems.kind_of", lambda path: "nfs4")
        with pytest.raises(StorageError, match="network file system"):
            open_broker(tmp_path / "d")
        open_broker(tmp_path / "d", force_network=True, sync="os").close()


def test_s5_a_guest_with_other_options_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_broker(tmp_path / "d", sync="os"), caplog.at_level(logging.WARNING, "remuda.shared"):
        with open_broker(tmp_path / "d", sync="os"):
            pass
        assert caplog.text == ""
        with open_broker(tmp_path / "d", sync="interval", segment_bytes=1 << 20):
            eventually(lambda: "with other options, which apply: segment_bytes=default, sync=os" in caplog.text)


def test_s5_extensions_cannot_be_given_to_a_guest(tmp_path: Path) -> None:
    mine = Extensions(handler_for=lambda name, options: no_handler(name, options))
    with open_broker(tmp_path / "d", sync="os"), pytest.raises(Unsupported, match="they cannot be set here"):
        open_broker(tmp_path / "d", extensions=mine)


HELLO = wire_frames.frame(wire_frames.HELLO, wire_frames.Hello(wire_frames.VERSION, "abc", 1))


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00" * 5,
        wire_frames.HEAD.pack(2**32 - 1, wire_frames.HELLO),
        wire_frames.frame(wire_frames.PUBLISH, None),
        wire_frames.frame(wire_frames.HELLO, {"version": 99, "token": "a", "pid": 1}),
        wire_frames.frame(wire_frames.HELLO, {"version": wire_frames.VERSION, "token": "../../x", "pid": 1}),
        HELLO + wire_frames.frame(wire_frames.COMMAND, [1, 99, 2]),
        HELLO + wire_frames.frame(wire_frames.ASK, [1, "close", []]),
        HELLO + wire_frames.frame(wire_frames.SINGLE, [1, "jobs"]),
        HELLO + wire_frames.frame(200, []),
    ],
)
def test_s5_nonsense_on_the_socket_costs_its_own_connection_alone(tmp_path: Path, said: bytes) -> None:
    with open_broker(tmp_path / "d", sync="os") as host, open_broker(tmp_path / "d", sync="os") as guest:
        with sockets.connect(tmp_path / "d") as peer:
            peer.settimeout(60)
            peer.sendall(said)
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(4096):
                pass
        guest.publish(Message("jobs", b"x"))
        assert host.queue("jobs").waiting == 1


def test_s5_a_peer_that_takes_no_answers_does_not_grow_the_host(tmp_path: Path) -> None:
    with open_broker(tmp_path / "d", sync="os") as host, open_broker(tmp_path / "d", sync="os") as guest:
        guest.publish(Message("jobs", b"x" * 1_000_000))
        with sockets.connect(tmp_path / "d") as peer:
            peer.settimeout(1)
            peer.sendall(wire_frames.frame(wire_frames.HELLO, wire_frames.Hello(wire_frames.VERSION, "silent", 1)))
            ask = wire_frames.frame(wire_frames.ASK, wire_frames.Asked(1, "document", wire_frames.raw((0,))))
            many = ask * 500_000
            with pytest.raises(TimeoutError):
                peer.sendall(many)
            mine: list[Any] = []

            def is_known() -> bool:
                connections = list(host.runtime._host._connections)
                mine.extend(one for one in connections if one.session and one.session.token == "silent")
                return bool(mine)

            eventually(is_known)
            assert mine[0].unsent_bytes < 64_000_000
            guest.publish(Message("jobs", b"y"))
            assert host.queue("jobs").waiting == 2


def test_s5_many_guests_and_threads_at_once(tmp_path: Path) -> None:
    with open_broker(tmp_path / "d", sync="os") as host:
        guests = [open_broker(tmp_path / "d", sync="os") for _ in range(20)]

        def publish(number: int) -> None:
            for row in range(20):
                guests[number].publish(Message("jobs", b"%d-%d" % (number, row)))

        threads = [threading.Thread(target=publish, args=(number,)) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(100)
        assert host.queue("jobs").waiting == 400
        for guest in guests:
            guest.close()
        eventually(lambda: host.runtime._host.guests == [])


def test_s5_a_new_directory_opened_by_many_processes_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=publish_ten, args=(str(tmp_path / "d"), number)) for number in range(6)]
    for child in children:
        child.start()
    for child in children:
        child.join(100)
        assert child.exitcode == 0
    with open_broker(tmp_path / "d", sync="os") as broker:
        assert broker.queue("jobs").waiting == 60
    assert DirectoryDisk(tmp_path / "d", create=False).holder().shares


@pytest.mark.source
def test_s5_a_subscription_that_ends_with_a_message_that_cannot_be_read_now_is_over_for_its_host_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, failures = Runtime.load, [StorageError("a file cannot be read now; try again")]

    def failing(runtime: Runtime, dispatch: Dispatch) -> Any:
        if failures:
            raise failures.pop()
        return load(runtime, dispatch)

    with open_broker(tmp_path / "d", sync="os") as host, other(tmp_path / "d") as guest:
        host.create_queue("jobs", type="round-robin", acknowledge_timeout="500ms")
        assert guest.does("held.append(broker.subscribe('jobs', consumer='worker'))") is None
        monkeypatch.setattr(Runtime, "load", failing)
        host.publish(Message("jobs", b"body"))
        aside = "__import__('concurrent.futures').futures.ThreadPoolExecutor(1).submit"
        assert guest.does(f"type({aside}(held[0].receive, 60).exception()).__name__") == "StorageError"
        eventually(lambda: host.queue("jobs").consumers == ())
        assert guest.does("held.append(broker.subscribe('jobs', consumer='worker'))") is None
        assert guest.does("held[1].receive(60).ack()") == 1


def test_s5_an_error_of_the_host_over_one_guest_costs_that_connection_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outgoing, failures = GuestSession.outgoing, [MemoryError()]

    def failing(session: GuestSession, send: Callable[[bytes], int]) -> bool:
        if failures:
            raise failures.pop()
        return outgoing(session, send)

    with open_broker(tmp_path / "d", sync="os") as host, other(tmp_path / "d") as guest:
        monkeypatch.setattr(GuestSession, "outgoing", failing)
        held = "held.append(broker.subscribe('jobs', consumer='worker', options={'type': 'round-robin'}))"
        assert guest.does(held) is None
        host.publish(Message("jobs", b"body"))
        assert guest.does("held[0].receive(60).ack()") == 1
        assert not failures
