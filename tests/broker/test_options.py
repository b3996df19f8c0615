"""What a broker can be told is checked when it is opened."""

from __future__ import annotations

from typing import Any

import pytest

from remuda.broker.opening import open_broker
from remuda.broker.options import BrokerOptions, Sync
from remuda.model.errors import InvalidOption
from remuda.model.queues.options import QueueOptions
from tests.broker.kit import DAY, HOUR, SECOND


def test_defaults() -> None:
    options = BrokerOptions.parse()
    assert options == BrokerOptions()
    assert options.sync is Sync.ALWAYS
    assert options.auto_queue_creation
    assert (options.success_retention, options.dead_retention) == (DAY, 15 * DAY)
    assert options.collect_interval == HOUR
    assert options.queue_defaults == QueueOptions()


def test_values_are_taken_as_people_write_them() -> None:
    options = BrokerOptions.parse(
        sync="interval", sync_interval="250ms", dead_retention="2d", queue_defaults={"type": "pull"}, compact=False
    )
    assert options.sync is Sync.INTERVAL
    assert options.sync_interval == SECOND // 4
    assert options.dead_retention == 2 * DAY
    assert options.queue_defaults == QueueOptions.parse(type="pull")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"synk": "os"}, "unknown broker option 'synk'; did you mean 'sync'?"),
        ({"zzz": 1}, "unknown broker option 'zzz'"),
        ({"sync": "sometimes"}, "sync must be one of always, interval, os"),
        ({"sync_interval": "soon"}, "'soon' is not a duration"),
        ({"sync_interval": 0}, "sync_interval must be longer than zero"),
        ({"dead_retention": -1}, "negative"),
        ({"auto_queue_creation": "yes"}, "auto_queue_creation must be true or false"),
        ({"compact": 1}, "compact must be true or false"),
        ({"compact_objects": ["a"]}, "compact_objects"),
        ({"infer_types": 5}, "infer_types"),
        ({"infer_types": ["a.b"]}, "infer_types"),
        ({"infer_types": ["{key}.{key}"]}, "infer_types"),
        ({"infer_types": ["{object}.#.{key}"]}, "infer_types"),
        ({"infer_types": ["{kind}.{key}"]}, "infer_types"),
        ({"infer_types": ["{object}..{key}"]}, "infer_types"),
        ({"infer_types": [b"{key}"]}, "infer_types"),
        ({"infer_types": {"{key}", "{object}.{key}"}}, "infer_types"),  # which has no first
        ({"infer_types": iter(["{key}"])}, "infer_types"),  # which is read once
        ({"compact_objects": {"a": "no"}}, "compact_objects"),
        ({"segment_bytes": 0}, "segment_bytes must be a whole number, 1 or more"),
        ({"segment_bytes": 1 << 63}, "segment_bytes must be at most"),
        ({"segment_bytes": 10}, "segment_bytes must be at least 65536"),
        ({"checkpoint_bytes": 10}, "checkpoint_bytes must be at least 4096"),
        ({"queue_defaults": {"type": "stack"}}, "type must be one of push, round-robin, pull"),
        ({"queue_defaults": "pull"}, "queue_defaults"),
        ({"worker": "first"}, "worker"),
        ({"worker": True}, "worker"),
        ({"default_queue": 5}, "default_queue"),
        ({"default_queue": ""}, "default_queue"),
        ({"default_queue": "two\nlines"}, "default_queue"),
        ({"default_queue": "x" * 256}, "default_queue"),
    ],
)
def test_an_unknown_or_impossible_option_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        open_broker("memory://", **options)
    assert says in str(caught.value)
