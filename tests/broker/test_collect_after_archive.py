"""L6: the collector can be told not to pass the archive."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from remuda import open_broker
from remuda.model.errors import InvalidOption, StorageError
from tests.spark.samples import broker_at, finish, publish, seal


def reach(lake: Path, **numbers: int) -> None:
    """What Spark leaves when the pipeline `archive` has read so far."""
    for table, name in (("messages", "offset"), ("events", "position")):
        place = lake / "_checkpoints" / f"archive-{table}"
        for folder, text in (("offsets", f"v1\n{{}}\n{json.dumps({name: numbers[name]})}"), ("commits", "v1\n{}")):
            (place / folder).mkdir(parents=True, exist_ok=True)
            (place / folder / "0").write_text(text)


def offsets(root: Path) -> set[int]:
    files = (root / "sealed").glob("messages-*.parquet")
    return {one for file in files for one in pq.read_table(file, columns=["offset"])["offset"].to_pylist()}


def test_l6_nothing_goes_that_is_not_archived(tmp_path: Path) -> None:
    data, lake = tmp_path / "data", tmp_path / "lake"
    with broker_at(data, success_retention="1ms", collect_after_archive=lake) as broker:
        publish(broker, 1500)
        finish(broker)
        publish(broker, 800, "filler")
        seal(broker)
        everything = offsets(data)
        assert broker.collect().messages == 0, "the archive has never run"
        reach(lake, offset=1000, position=0)
        broker.collect()
        assert min(offsets(data)) == 1000
        assert offsets(data) >= {one for one in everything if one >= 1000}
        events = set((data / "sealed").glob("events-*"))
        assert events
        reach(lake, offset=2300, position=0)
        broker.collect()
        assert set((data / "sealed").glob("events-*")) >= events, "events stay until they are archived too"
        reach(lake, offset=2300, position=10**9)
        broker.collect()
        assert min(offsets(data)) >= 1500, "what waits stays, archived or not"
        assert not set((data / "sealed").glob("events-*")) >= events


def test_l6_a_checkpoint_that_cannot_be_read_stops_the_collector_and_says_so(tmp_path: Path) -> None:
    reach(tmp_path / "lake", offset=5, position=5)
    (tmp_path / "lake" / "_checkpoints" / "archive-messages" / "offsets" / "0").write_text("v1\n{}\n-")
    with (
        broker_at(tmp_path / "data", collect_after_archive=tmp_path / "lake") as broker,
        pytest.raises(StorageError, match=r"how far the archive .* nothing was collected"),
    ):
        broker.collect()


@pytest.mark.parametrize("value", ["", 1, True, b"lake", ["lake"]])
def test_l6_other_values_are_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(InvalidOption, match="collect_after_archive must be the folder of a lake"):
        open_broker(tmp_path, collect_after_archive=value)
    with pytest.raises(InvalidOption, match="collect_after_archive needs a directory"):
        open_broker("memory://", collect_after_archive="lake")
