"""A commit waits a moment for guests that were along in the last ones (S5), and never for long in vain."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from remuda import Message, open_broker
from remuda.broker.shared.host import commit_wait as policy
from remuda.broker.shared.host.commit_wait import CommitWait
from remuda.broker.threads import EmbeddedBroker
from tests.conformance.kit import eventually

A, B, C = "a", "b", "c"


def learned(*along: set[str], seconds: float = 0.0005) -> CommitWait:
    gathering = CommitWait()
    for _ in range(30):
        gathering.committed(set(), seconds)
    for one in along:
        gathering.committed(one, seconds)
    return gathering


def test_s5_a_commit_waits_for_those_of_the_last_two() -> None:
    gathering = learned({A}, {B, C})
    assert gathering.patience({A}) == pytest.approx(0.0005, rel=0.1)
    assert not gathering.complete({A, B})
    assert gathering.complete({A, B, C})
    assert gathering.patience({A, B, C}) == 0
    assert gathering.patience(set()) == 0


def test_s5_nobody_waits_for_a_commit_that_costs_nothing_nor_longer_than_a_moment() -> None:
    assert learned({A, B}, seconds=0.000001).patience({A}) == 0
    assert learned({A, B}, seconds=3.0).patience({A}) == policy._LONGEST


def test_s5_who_is_gone_is_not_waited_for() -> None:
    gathering = learned({A, B}, {A, B})
    gathering.forget(B)
    assert gathering.patience({A}) == 0


def test_s5_waiting_in_vain_becomes_rare_until_somebody_comes() -> None:
    gathering = learned({A, B}, {A, B})
    waits = []
    for turn in range(400):
        if gathering.patience({A}):
            waits.append(turn)
            gathering.waited({A})
    assert len(waits) < 12
    assert waits[1] == 2
    while not gathering.patience({A}):
        pass
    gathering.waited({A, B})
    assert gathering.patience({A})


def test_s5_guests_that_publish_one_by_one_share_a_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one is not answered before the other one, which was along the last time, has come."""
    monkeypatch.setattr(policy, "_LONGEST", 30.0)
    syncs: list[int] = []
    sync = os.fdatasync

    def counted(handle: int) -> None:
        syncs.append(handle)
        sync(handle)

    monkeypatch.setattr(os, "fdatasync", counted)
    done: list[str] = []

    def publish(broker: EmbeddedBroker, name: str) -> threading.Thread:
        def work() -> None:
            broker.publish(Message("jobs", b"x"))
            done.append(name)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    with open_broker(tmp_path / "d") as host:
        host.create_queue("jobs", type="pull")
        with open_broker(tmp_path / "d") as first, open_broker(tmp_path / "d") as second:
            serving = host.runtime._host
            first.publish(Message("jobs", b"x"))
            second.publish(Message("jobs", b"x"))
            serving._gathering = CommitWait()
            serving._gathering.committed(set(serving._connections), 1000.0)
            before = len(syncs)
            one = publish(first, "first")
            eventually(lambda: bool(serving._requests.waiting))
            assert done == []
            two = publish(second, "second")
            for thread in (one, two):
                thread.join(60)
            assert sorted(done) == ["first", "second"]
            assert len(syncs) - before == 1
            serving._gathering = CommitWait()
