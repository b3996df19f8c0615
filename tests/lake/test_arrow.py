"""P6: the log as one Arrow stream of sealed files and live tail, for DuckDB, Polars and pyarrow. No Spark is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pytest

import remuda
import remuda.lake
from remuda.model.errors import DataLost, InvalidOption, RemudaError, StorageError
from tests.spark.samples import broker_at, finish, half_sealed, play, publish, seal


def ask(query: str, messages: Any) -> list[tuple[Any, ...]]:
    """DuckDB finds the table by the name of the variable."""
    with duckdb.connect() as connection:
        return connection.execute(query).fetchall()


def test_duckdb_and_polars_take_it_as_it_is(tmp_path: Path) -> None:
    """Rows that are sealed and rows of the tail, up to the last commit, each time it is asked anew."""
    with broker_at(tmp_path) as broker:
        play(broker)
        publish(broker, 800)
        seal(broker)
        messages, events = remuda.arrow(tmp_path), remuda.arrow(tmp_path, "events")
        assert list((tmp_path / "sealed").iterdir())
        for extra in (5, 7):
            publish(broker, extra, "fresh")
            ends = broker.spectate().log.ends()
            end, positions = ends.next_offset, ends.next_position
            assert ask('select count(*), max("offset") + 1 from messages', messages) == [(end, end)]
            assert polars.DataFrame(messages).height == end
            assert pa.table(events).num_rows == positions
        found = ask("select state, sum(count) from messages group by 1", events)
    assert {"F", "S", "X", "E"} <= {state for state, _ in found}
    assert not (tmp_path / "pins").exists() or not list((tmp_path / "pins").glob("*/*"))


def test_only_what_is_asked_for(tmp_path: Path) -> None:
    half_sealed(tmp_path, 600)
    narrow = remuda.arrow(tmp_path, columns=["name", "offset"], start=590, stop=610)
    assert narrow.schema.names == ["name", "offset"]
    assert narrow.table()["offset"].to_pylist() == list(range(590, 610))
    assert remuda.arrow(tmp_path, start=10_000).table().num_rows == 0


def test_a_reader_in_mid_read_is_not_disturbed(tmp_path: Path) -> None:
    with broker_at(tmp_path, success_retention="1ms") as broker:
        publish(broker, 1500)
        seal(broker)
        reader = remuda.arrow(tmp_path, columns=["offset"]).reader()
        first = reader.read_next_batch().num_rows
        finish(broker)
        publish(broker, 400, "filler")
        seal(broker)
        assert broker.collect().messages
        assert first + sum(batch.num_rows for batch in reader) == 1500


def test_l3_damage_is_told_or_left_out_by_choice(tmp_path: Path) -> None:
    half_sealed(tmp_path, 1500)
    file = sorted((tmp_path / "sealed").glob("messages-*"))[0]
    data = bytearray(file.read_bytes())
    data[100] ^= 255
    file.write_bytes(data)
    with pytest.raises(DataLost, match=r"offsets 0 to \d+ \(damaged or removed\)"):
        remuda.arrow(tmp_path).table()
    lost = int(file.stem.split("-")[2]) + 1
    assert remuda.arrow(tmp_path, fail_on_data_loss=False).table().num_rows == 1600 - lost
    file.unlink()
    with pytest.raises(DataLost, match=rf"offsets 0 to {lost - 1} \(damaged or removed\).*fail_on_data_loss=False"):
        remuda.arrow(tmp_path).table()
    assert remuda.arrow(tmp_path, fail_on_data_loss=False).table().num_rows == 1600 - lost


@pytest.mark.parametrize("how", ["flipped", "cut short", "removed"])
def test_l3_an_end_that_was_lost_is_told_too(tmp_path: Path, how: str) -> None:
    """A checkpoint says how far the log went, also before a broker has opened it again."""
    half_sealed(tmp_path, 1500)
    segment = sorted((tmp_path / "tail").glob("*.log"))[-1]
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 255
    match how:
        case "flipped":
            segment.write_bytes(data)
        case "cut short":
            segment.write_bytes(data[: len(data) // 2])
        case _:
            segment.unlink()
    with pytest.raises(DataLost, match="offsets 1500 to 1599"):
        remuda.arrow(tmp_path).table()
    assert remuda.arrow(tmp_path, fail_on_data_loss=False).table().num_rows == 1500
    for checkpoint in (tmp_path / "checkpoint").iterdir():  # which then says nothing
        changed = bytearray(checkpoint.read_bytes())
        changed[30] ^= 1
        checkpoint.write_bytes(changed)
    assert remuda.arrow(tmp_path).table().num_rows == 1500


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"table": "message"}, "there is no table 'message'; the tables are messages, events"),
        ({"columns": "offset"}, "columns is a list of names"),
        ({"columns": 5}, "columns is a list of names, not 5"),
        ({"columns": b"offset"}, "columns is a list of names"),
        ({"columns": ["offse"]}, "has no column 'offse'"),
        ({"columns": []}, "name at least one column"),
        ({"columns": ["id", "id"]}, "each once"),
        ({"start": -1}, "start must be a whole number from 0 on, not -1"),
        ({"stop": "9"}, "stop must be a whole number"),
        ({"start": True}, "start must be a whole number"),
        ({"start": None}, "start must be a whole number"),
        ({"fail_on_data_loss": "no"}, "fail_on_data_loss must be True or False, not 'no'"),
    ],
)
def test_what_is_wrong_is_said_at_once(tmp_path: Path, arguments: dict[str, Any], complaint: str) -> None:
    with broker_at(tmp_path):
        pass
    with pytest.raises(InvalidOption, match=complaint):
        remuda.arrow(tmp_path, **arguments)


def test_the_error_is_importable_like_all_others() -> None:
    assert remuda.DataLost is DataLost


def test_a_log_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RemudaError, match="there is no directory"):
        remuda.arrow(tmp_path / "nowhere")
    with pytest.raises(RemudaError, match="there is no directory"):
        remuda.arrow("x" * 5000)
    with pytest.raises(InvalidOption, match="there is no log or lake at memory://; give a directory"):
        remuda.arrow("memory://")
    assert not (tmp_path / "nowhere").exists()
    for wrong in (None, 5, ""):
        with pytest.raises(InvalidOption, match="give a directory as a path or a URL, not"):
            remuda.arrow(wrong)  # type: ignore[arg-type]


def test_reading_an_empty_directory_leaves_it_empty(tmp_path: Path) -> None:
    """P6: it is no log, and may be where a volume is not mounted; a broker could still begin one there."""
    with pytest.raises(
        StorageError, match=r"holds no log: it has no remuda\.json.*If the log is on a volume, mount it"
    ):
        remuda.arrow(tmp_path)
    with pytest.raises(StorageError, match="holds no log"):
        remuda.lake.publish(tmp_path)
    assert list(tmp_path.iterdir()) == []
    with broker_at(tmp_path) as broker:
        publish(broker, 3)
    assert remuda.arrow(tmp_path).table().num_rows == 3


def test_importing_remuda_brings_no_engine() -> None:
    heavy = ("pyspark", "deltalake", "pyiceberg", "duckdb", "polars", "remuda.lake.stream")
    code = f"import remuda, sys; remuda.Bus; print([name for name in {heavy!r} if name in sys.modules])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
