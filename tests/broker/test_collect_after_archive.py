"""L6: the collector can be told not to pass the archive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from remuda import open_broker
from remuda.log.disk.directory import DirectoryDisk
from remuda.model.errors import InvalidOption, StorageError
from remuda.spark.lake.coverage import newest, reached_by
from remuda.spark.lake.versions import LakeFile, Step, StreamBatch
from tests.begun import begun
from tests.spark.samples import broker_at, finish, publish, seal


def reach(lake: Path, data: Path, **numbers: int) -> None:
    """What the pipeline `archive` notes in its commits when it has added all rows so far."""
    for table, name in (("messages", "offset"), ("events", "position")):
        mark = StreamBatch(reached_by(DirectoryDisk.of_log(data).identity, table), numbers[name])
        assert newest(str(lake), table).commit(Step(marks=(mark,)))


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
        reach(lake, data, offset=1000, position=0)
        broker.collect()
        assert min(offsets(data)) == 1000
        assert offsets(data) >= {one for one in everything if one >= 1000}
        events = set((data / "sealed").glob("events-*"))
        assert events
        reach(lake, data, offset=2300, position=0)
        broker.collect()
        assert set((data / "sealed").glob("events-*")) >= events, "events stay until they are archived too"
        reach(lake, data, offset=2300, position=10**9)
        broker.collect()
        assert min(offsets(data)) >= 1500, "what waits stays, archived or not"
        assert not set((data / "sealed").glob("events-*")) >= events


def test_l6_an_archive_that_cannot_be_read_stops_the_collector_and_says_so(tmp_path: Path) -> None:
    with broker_at(tmp_path / "data", collect_after_archive=tmp_path / "lake") as broker:
        reach(tmp_path / "lake", tmp_path / "data", offset=5, position=5)
        for manifest in (tmp_path / "lake" / "messages" / "_delta_log").iterdir():
            manifest.write_text("-")
        with pytest.raises(StorageError, match=r"how far the archive .* nothing was collected"):
            broker.collect()


def test_l6_p6_a_number_in_a_checkpoint_and_the_archive_of_another_log_free_nothing(tmp_path: Path) -> None:
    """Only rows that were counted in the lake do."""
    data, lake = tmp_path / "data", tmp_path / "lake"
    place = lake / "_checkpoints" / "archive-messages"
    for folder, text in (("offsets", 'v1\n{}\n{"offset": 1500}'), ("commits", "v1\n{}")):
        (place / folder).mkdir(parents=True)
        (place / folder / "0").write_text(text)
    reach(lake, begun(tmp_path / "other"), offset=1500, position=10**9)
    with broker_at(data, success_retention="1ms", collect_after_archive=f"file://{lake}") as broker:
        publish(broker, 1500)
        finish(broker)
        publish(broker, 800, "filler")
        seal(broker)
        assert broker.collect().messages == 0
        reach(lake, data, offset=1500, position=10**9)
        assert broker.collect().messages, "the URL is the lake's, and no folder of that name"
    assert not (Path.cwd() / "file:").exists()


def test_l6_p6_rows_that_the_archive_lacks_are_kept_as_long_as_they_can_be_read(tmp_path: Path) -> None:
    data, lake = tmp_path / "data", tmp_path / "lake"
    with broker_at(data, success_retention="1ms", collect_after_archive=lake) as broker:
        publish(broker, 1500)
        finish(broker)
        publish(broker, 800, "filler")
        seal(broker)
        reach(lake, data, offset=2300, position=10**9)
        identity = DirectoryDisk.of_log(data).identity
        rows = [{"log": identity, "table": "messages", "start": 500, "stop": 600, "cause": "damaged"}]
        (lake / "gaps").mkdir()
        pq.write_table(pa.Table.from_pylist(rows), lake / "gaps" / "one.parquet")
        assert newest(str(lake), "gaps").commit(Step(added=(LakeFile("one.parquet", {}),)))
        broker.collect()
        assert min(offsets(data)) == 500


@pytest.mark.parametrize("value", ["", 1, True, b"lake", ["lake"]])
def test_l6_other_values_are_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(InvalidOption, match="collect_after_archive must be the folder of a lake"):
        open_broker(tmp_path, collect_after_archive=value)
    with pytest.raises(InvalidOption, match="collect_after_archive needs a directory"):
        open_broker("memory://", collect_after_archive="lake")
