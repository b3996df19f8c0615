"""What becomes due is one plan, which whoever hosts the directory has (L11): nobody waits for a time that has come."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from remuda import Message, open_broker
from tests.broker.shared.kit import other
from tests.conformance.kit import eventually

pytestmark = pytest.mark.faults


@pytest.mark.parametrize("holder", ["the next host", "another guest", "the last host"])
def test_l11_an_answer_that_never_comes_is_noticed_by_the_next_host(tmp_path: Path, holder: str) -> None:
    with other(tmp_path / "d") as host:
        host.does("broker.create_queue('jobs', type='pull', acknowledge_timeout='1s').created")
        with open_broker(tmp_path / "d", sync="os") as broker, other(tmp_path / "d") as guest:
            broker.publish(Message("jobs", b"1"))
            mine = None
            if holder == "the next host":
                mine = broker.pull("jobs")
                assert mine is not None
            else:
                process = guest if holder == "another guest" else host
                process.does("held.append(broker.pull('jobs'))")
            host.kill()
            eventually(lambda: not (broker.runtime.remote and guest.does("broker.runtime.remote")))
            began = time.monotonic()
            again = broker.pull("jobs", timeout="30s")
            assert again is not None
            assert again.attempts == [2]
            assert time.monotonic() - began < 15
            again.ack()


def test_l11_a_pause_between_messages_is_kept_over_a_takeover(tmp_path: Path) -> None:
    """Q8"""
    with other(tmp_path / "d") as host:
        host.does("broker.create_queue('jobs', type='pull', delay_between_messages='3s').created")
        with open_broker(tmp_path / "d", sync="os") as broker:
            ids = broker.publish([Message("jobs", b"1"), Message("jobs", b"2")]).ids
            first = broker.pull("jobs")
            assert first is not None
            first.ack()
            host.kill()
            second = broker.pull("jobs", timeout="30s")
            assert second is not None
            fetched = [broker.message(one).queues[0].consumed or 0 for one in ids]
            assert 3_000_000 <= fetched[1] - fetched[0] < 15_000_000
            second.ack()
