"""B20: a message is stored once by its id, however many processes publish it at the same moment."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from remuda import Bus, Message, open_broker
from remuda.model.errors import Duplicate
from tests.broker.shared.kit import other

pytestmark = pytest.mark.faults
_KEYS = 100


@pytest.mark.parametrize("once", ["ever", "waiting"])
def test_b20_of_three_processes_that_publish_a_key_one_stores_it(tmp_path: Path, once: str) -> None:
    """B20"""
    publish = (
        f"sum(broker.publish(Message('jobs', b'', id=f'key-{{k}}'), once='{once}', raise_refusals=False).accepted "
        f"for k in range({_KEYS}))"
    )
    with open_broker(tmp_path / "d", sync="os") as broker, other(tmp_path / "d") as one, other(tmp_path / "d") as two:
        broker.create_queue("jobs", type="pull")
        with ThreadPoolExecutor(3) as pool:
            stored = [
                pool.submit(one.does, publish),
                pool.submit(two.does, publish),
                pool.submit(lambda: eval(publish, {"broker": broker, "Message": Message})),
            ]
            assert sum(future.result(60) for future in stored) == _KEYS
        assert broker.queue("jobs").waiting == _KEYS


def test_b20_a_key_counts_over_a_takeover(tmp_path: Path) -> None:
    """B20"""
    with other(tmp_path / "d") as host, open_broker(tmp_path / "d", sync="os") as broker:
        host.does("broker.publish(Message('jobs', b'1', id='a')).id")
        host.kill()
        for once in ("ever", "waiting"):
            with pytest.raises(Duplicate, match="'a'"):
                broker.publish(Message("jobs", b"2", id="a"), once=once)
        broker.clear("jobs")
        with pytest.raises(Duplicate, match="is known"):
            broker.publish(Message("jobs", b"2", id="a"), once="ever")
        assert broker.publish(Message("jobs", b"2", id="a"), once="waiting").accepted == 1


def test_b20_a_bus_in_another_process_is_asked_too(tmp_path: Path) -> None:
    """B20"""
    with other(tmp_path / "d") as host, Bus(tmp_path / "d") as bus:
        host.does("broker.create_queue('remuda.unrouted', type='pull').created")
        host.does("broker.publish(Message('x', b'1', id='a'), queue='remuda.unrouted').id")
        assert bus.publish("x", 2, unique="a") == bus.publish("x", 2, idempotency_key="a") == "a"
        assert bus.broker.queue("remuda.unrouted").waiting == 1
