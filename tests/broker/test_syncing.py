"""Where nobody else writes, a message is written at once, and whoever published it has only a sync left to do."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from remuda import Message, open_broker
from remuda.broker.threads import EmbeddedBroker
from remuda.model.errors import StorageError
from tests.broker.test_steps import TURNS, calls_of
from tests.conformance.kit import eventually, waiting_bodies
from tests.faults.storms import Blow, Interrupted

_datasync = os.fdatasync


class Syncs:
    """Stands in for the system's sync: notes what the file holds when it is asked for, and may wait, or fail."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.held: list[bytes] = []
        self.begun = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self.failure: BaseException | None = None

    def __call__(self, handle: int) -> None:
        self.held.append(max(self._path.glob("tail/*.log")).read_bytes())
        self.begun.set()
        assert self.gate.wait(60)
        if self.failure is not None:
            raise self.failure
        _datasync(handle)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with open_broker(tmp_path / "data", sync="always", shared=False) as made:
        made.create_queue("orders", type="pull")
        made.publish(Message("orders", b"the first of its segment"))
        yield made


@pytest.fixture
def syncs(broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Syncs:
    made = Syncs(tmp_path / "data")
    monkeypatch.setattr(os, "fdatasync", made)
    return made


def publish(broker: EmbeddedBroker, body: bytes) -> None:
    broker.publish(Message("orders", body))


def take(broker: EmbeddedBroker) -> None:
    delivery = broker.pull("orders")
    assert delivery is not None
    assert delivery.ack() == 1


def test_l2_whatever_is_confirmed_was_written_before_the_sync(broker: EmbeddedBroker, syncs: Syncs) -> None:
    for number in range(20):
        body, before = b"body %d." % number, len(syncs.held)
        publish(broker, body)
        assert body in syncs.held[-1]
        published = len(syncs.held)
        take(broker)
        assert before < published < len(syncs.held)


def test_l2_a_confirmation_waits_for_the_sync(broker: EmbeddedBroker, syncs: Syncs) -> None:
    syncs.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        published = pool.submit(publish, broker, b"x")
        assert syncs.begun.wait(60)
        assert not published.done()
        syncs.gate.set()
        published.result(60)


def test_those_who_come_during_a_sync_share_the_next(broker: EmbeddedBroker, syncs: Syncs) -> None:
    syncs.gate.clear()
    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(publish, broker, b"first")
        assert syncs.begun.wait(60)
        others = [pool.submit(publish, broker, b"other %d" % number) for number in range(8)]
        eventually(lambda: len(broker.runtime._group._places) == 8)
        assert not any(other.done() for other in others)
        syncs.gate.set()
        for one in (first, *others):
            one.result(60)
    with_others = next(held for held in syncs.held if b"other" in held)
    assert all(b"other %d" % number in with_others for number in range(8))


def test_l2_what_a_sync_could_not_keep_is_not_confirmed(broker: EmbeddedBroker, syncs: Syncs, tmp_path: Path) -> None:
    publish(broker, b"kept")
    syncs.failure = OSError(errno.EIO, os.strerror(errno.EIO))
    with pytest.raises(StorageError, match="Input/output error"):
        publish(broker, b"perhaps")
    syncs.failure = None
    with pytest.raises(StorageError, match="open the broker again"):
        publish(broker, b"refused")
    assert not broker.runtime._group.busy
    broker.close()
    with open_broker(tmp_path / "data") as again:
        assert waiting_bodies(again)[1:] in ([b"kept"], [b"kept", b"perhaps"])


def test_those_who_wait_hear_that_a_sync_failed(broker: EmbeddedBroker, syncs: Syncs) -> None:
    syncs.gate.clear()
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(publish, broker, b"first")
        assert syncs.begun.wait(60)
        others = [pool.submit(publish, broker, b"other") for _ in range(2)]
        eventually(lambda: len(broker.runtime._group._places) == 2)
        syncs.failure = OSError(errno.EIO, os.strerror(errno.EIO))
        syncs.gate.set()
        for one in (first, *others):
            assert isinstance(one.exception(60), StorageError)


def test_a_sync_for_which_a_handle_is_missing_is_made_up_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What passes is told to who waits, and everything goes on."""
    with open_broker(tmp_path / "data", sync="always", shared=False) as broker:
        broker.create_queue("orders", type="pull")
        publish(broker, b"one")
        writer: Any = broker.runtime.engine.log._writer
        (file,) = writer._files.values()
        file._name_synced = False
        opened = os.open

        def open_none(*args: Any, **options: Any) -> int:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        monkeypatch.setattr(os, "open", open_none)
        with pytest.raises(StorageError):
            publish(broker, b"two")
        monkeypatch.setattr(os, "open", opened)
        eventually(lambda: broker.runtime.trouble is None)
        publish(broker, b"three")
        assert waiting_bodies(broker) == [b"one", b"two", b"three"]


def publish_along(broker: EmbeddedBroker, syncs: Syncs) -> None:
    assert syncs.begun.wait(60)
    publish(broker, b"along")


@pytest.mark.alone
@pytest.mark.source
@pytest.mark.parametrize("company", [False, True])
@pytest.mark.parametrize("what", [publish, lambda broker, body: take(broker)], ids=["publish", "take"])
def test_an_interrupt_anywhere_leaves_no_leader_behind(
    tmp_path: Path, company: bool, what: Callable[[EmbeddedBroker, bytes], None]
) -> None:
    """L2: and whoever waits along is told, and not left to wait."""
    place, came = 0, True
    while came:
        place += 1
        blow = Blow(place)
        data = tmp_path / str(place)
        broker = open_broker(data, sync="always", shared=False)
        broker.create_queue("orders", type="pull")
        for body in (b"one", b"two"):
            publish(broker, body)
        syncs = Syncs(data)
        with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as pool:
            patch.setattr(os, "fdatasync", syncs)
            if company:
                syncs.gate.clear()
                along = pool.submit(publish_along, broker, syncs)
                threading.Timer(0.005, syncs.gate.set).start()
            with contextlib.suppress(Interrupted, StorageError):
                blow.strike(partial(what, broker, b"struck"))
            syncs.begun.set()
            syncs.gate.set()
            if company:
                assert along.exception(60) is None or isinstance(along.exception(), StorageError)
        assert not broker.runtime._group.busy
        came = blow.came
        broker.close()
    assert place > 5


@pytest.mark.alone
@pytest.mark.source
def test_a_message_that_is_synced_takes_few_steps(broker: EmbeddedBroker) -> None:
    turns = [(calls_of(lambda: publish(broker, b"x")), calls_of(lambda: take(broker))) for _ in range(TURNS)]
    published, taken = (min(steps, key=len) for steps in zip(*turns, strict=True))
    assert len(published) <= 75
    assert len(published) + len(taken) <= 220
