"""P6: sealed files as Delta and Iceberg tables, no byte copied, beside a broker that seals, shrinks and expires."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from remuda import lake
from remuda.cli.app import app
from remuda.lake import delta, iceberg, publishing
from remuda.lake.files import folder_of, remove_links
from remuda.lake.iceberg import catalog
from remuda.lake.publishing import TablePublisher, version_at
from remuda.model.errors import InvalidOption, NotFound, RemudaError, StorageError
from remuda.model.message import Message
from tests.spark.samples import broker_at, finish, half_sealed, publish, seal

if TYPE_CHECKING:
    from remuda.broker.threads import EmbeddedBroker


def by_delta(root: Path, version: int | None = None) -> list[int]:
    table = DeltaTable(folder_of(root, "messages"), version=version)
    return sorted(table.to_pyarrow_table(columns=["offset"])["offset"].to_pylist())


def by_iceberg(root: Path, version: int | None = None) -> list[int]:
    table = catalog(root).load_table("remuda.messages")
    scan = table.scan(selected_fields=("offset",), snapshot_id=version)
    return sorted(scan.to_arrow()["offset"].to_pylist())


READERS: dict[str, Callable[..., list[int]]] = {"delta": by_delta, "iceberg": by_iceberg}


def finish_and_expire(broker: EmbeddedBroker) -> None:
    finish(broker)
    publish(broker, 400, "filler")
    seal(broker)
    assert broker.collect().messages


def test_every_seal_shrink_and_expiry_is_a_version(tmp_path: Path) -> None:
    """Time travel by offset gives what there was, also after its files have gone from the log."""
    with broker_at(tmp_path, success_retention="1ms") as broker:
        publish(broker, 20, "keep")
        publish(broker, 700)
        seal(broker)
        first = {one.format: one for one in lake.publish(tmp_path) if one.table == "messages"}
        end = first["delta"].end
        assert first["delta"].added == first["iceberg"].added > 0
        finish_and_expire(broker)
        second = {one.format: one for one in lake.publish(tmp_path) if one.table == "messages"}
        assert second["delta"].dropped == second["iceberg"].dropped > 0
        again = lake.publish(tmp_path)
        assert all(one.added == one.dropped == 0 for one in again)
    for kind, read in READERS.items():
        old = version_at(tmp_path, "messages", kind, end)
        assert old == int(first[kind].version)
        assert read(tmp_path, old) == list(range(end))
        now = read(tmp_path)
        assert len(now) < second[kind].end
        assert now == sorted(now)
        assert version_at(tmp_path, "messages", kind, 10**9) is None
    files = list((folder_of(tmp_path, "messages") / "data").glob("*.parquet"))
    assert sum(path.stat().st_nlink == 2 for path in files) == len(list((tmp_path / "sealed").glob("messages-*")))


def test_engines_read_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    half_sealed(tmp_path, 1500)
    (end,) = {one.end for one in lake.publish(tmp_path) if one.table == "messages"}
    folder = folder_of(tmp_path, "messages")
    delta = polars.scan_delta(str(folder)).select(polars.col("offset").sum(), polars.len()).collect().row(0)
    table = catalog(tmp_path).load_table("remuda.messages")
    iceberg = polars.scan_iceberg(table).select(polars.col("offset").sum(), polars.len()).collect().row(0)
    listed = [str(folder / file) for file in DeltaTable(folder).file_uris()]
    with duckdb.connect() as connection:
        found = connection.execute('select sum("offset"), count(*) from read_parquet(?)', [listed]).fetchall()
    duck = found[0]
    assert delta == iceberg == duck == (end * (end - 1) // 2, end)
    row = table.scan(row_filter=f"offset == {end - 1}").to_arrow().to_pylist()[0]
    assert (row["name"], row["queues"], row["body"].split()[0]) == ("orders", ["orders"], b"%d" % (end - 1))


def test_p6_filters_find_rows_by_any_column(tmp_path: Path) -> None:
    """delta-rs takes columns without statistics for null, unless the table says which columns have some."""
    half_sealed(tmp_path, 1500)
    lake.publish(tmp_path, formats=["delta"])
    folder = folder_of(tmp_path, "messages")
    rows = DeltaTable(folder).to_pyarrow_table(columns=["offset", "name", "created"])
    assert DeltaTable(folder).to_pyarrow_table(filters=[("name", "=", "orders")]).num_rows == rows.num_rows > 0
    dataset = DeltaTable(folder).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.register("messages", dataset)
        asked = "select count(*) from messages where name = 'orders' and \"offset\" >= 100 and expires is null"
        assert connection.execute(asked).fetchall() == [(rows.num_rows - 100,)]
    assert polars.scan_delta(str(folder)).filter(polars.col("name") == "orders").collect().height == rows.num_rows


def test_p6_a_table_of_an_earlier_remuda_is_described_anew(tmp_path: Path) -> None:
    half_sealed(tmp_path, 1500)
    lake.publish(tmp_path, formats=["delta"])
    commit = folder_of(tmp_path, "messages") / "_delta_log" / f"{0:020d}.json"
    commit.write_text(commit.read_text().replace(',"delta.dataSkippingStatsColumns":"offset"', ""))
    asked = [("name", "=", "orders")]
    assert DeltaTable(folder_of(tmp_path, "messages")).to_pyarrow_table(filters=asked).num_rows == 0
    lake.publish(tmp_path, formats=["delta"])
    assert DeltaTable(folder_of(tmp_path, "messages")).to_pyarrow_table(filters=asked).num_rows == 1000
    assert DeltaTable(folder_of(tmp_path, "messages")).version() == 1
    lake.publish(tmp_path, formats=["delta"])
    assert DeltaTable(folder_of(tmp_path, "messages")).version() == 1


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_metadata_is_small(tmp_path: Path, kind: str) -> None:
    """At most 10 KB for each sealed segment, also of the fiftieth; and links share the bytes of the log."""
    written: list[int] = []
    with broker_at(tmp_path) as broker:
        publisher = TablePublisher(tmp_path, [kind])
        for turn in range(56):
            broker.publish([Message("orders", (b"%d " % turn).ljust(1000, b".")) for _ in range(80)])
            seal(broker)
            before = _bytes(tmp_path)
            added = sum(one.added for one in publisher.publish())
            if added:
                new = {path: size for path, size in _bytes(tmp_path).items() if path not in before}
                written.append(sum(new.values()) // added)
    assert len(written) > 50
    assert max(written[1:]) <= 10_000
    data = folder_of(tmp_path, "messages") / "data"
    assert {os.stat(path).st_ino for path in data.glob("messages-*.parquet")} <= {
        os.stat(path).st_ino for path in (tmp_path / "sealed").iterdir()
    }


def _bytes(root: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in (root / "tables").rglob("*") if path.suffix != ".parquet"}


def test_links_go_when_nobody_can_need_them(tmp_path: Path) -> None:
    with broker_at(tmp_path, success_retention="1ms") as broker:
        publish(broker, 20, "keep")
        publish(broker, 700)
        seal(broker)
        lake.publish(tmp_path, formats=["delta"])
        finish_and_expire(broker)
        lake.publish(tmp_path, formats=["delta"])
    keep = frozenset(
        f"data/{path.rpartition('/')[2]}" for path in DeltaTable(folder_of(tmp_path, "messages")).file_uris()
    )
    assert remove_links(tmp_path, "messages", keep, 3600) == 0
    time.sleep(0.05)
    assert remove_links(tmp_path, "messages", keep, 0.01) > 0
    assert by_delta(tmp_path)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_p6_versions_whose_files_have_gone_are_not_travelled_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    with broker_at(tmp_path, success_retention="1ms") as broker:
        publish(broker, 20, "keep")
        publish(broker, 700)
        seal(broker)
        end = lake.publish(tmp_path, formats=[kind])[0].end
        old = version_at(tmp_path, "messages", kind, end)
        finish_and_expire(broker)
        new = int(lake.publish(tmp_path, formats=[kind])[0].version)
        assert version_at(tmp_path, "messages", kind, end) == old
        for module in (publishing, iceberg, delta):
            monkeypatch.setattr(module, "GRACE_SECONDS", 0.0)
        for module in (iceberg, delta):
            monkeypatch.setattr(module, "LEEWAY_SECONDS", 0.0)
        links = set((folder_of(tmp_path, "messages") / "data").glob("*.parquet"))
        lake.publish(tmp_path, formats=[kind])
        assert set((folder_of(tmp_path, "messages") / "data").glob("*.parquet")) < links
    assert version_at(tmp_path, "messages", kind, end) == new != old
    assert READERS[kind](tmp_path, new) == READERS[kind](tmp_path)
    if kind == "iceberg":
        table = catalog(tmp_path).load_table("remuda.messages")
        assert [one.snapshot_id for one in table.metadata.snapshots] == [new]


def test_a_damaged_file_is_named_and_not_listed(tmp_path: Path) -> None:
    half_sealed(tmp_path, 1500)
    file = sorted((tmp_path / "sealed").glob("messages-*"))[0]
    data = bytearray(file.read_bytes())
    data[100] ^= 255
    file.write_bytes(data)
    told = next(one for one in lake.publish(tmp_path, formats=["delta"]) if one.table == "messages")
    assert told.damaged == (f"sealed/{file.name}",)
    assert by_delta(tmp_path)[0] > 0


def test_l3_a_file_that_somebody_removed_is_named(tmp_path: Path) -> None:
    """One that the collector took is not."""
    with broker_at(tmp_path, success_retention="1ms") as broker:
        publish(broker, 1500)
        seal(broker)
        lake.publish(tmp_path)
        finish_and_expire(broker)
        expired = next(one for one in lake.publish(tmp_path) if one.table == "messages")
        assert (expired.dropped > 0, expired.damaged) == (True, ())
        publish(broker, 1500, "kept")
        seal(broker)
        lake.publish(tmp_path)
        file = sorted((tmp_path / "sealed").glob("messages-*"))[-1]
        file.unlink()
        told = next(one for one in lake.publish(tmp_path) if one.table == "messages")
        assert (told.dropped, told.damaged) == (1, (f"sealed/{file.name}",))


def test_l3_a_file_that_was_removed_before_it_was_ever_listed_is_named(tmp_path: Path) -> None:
    half_sealed(tmp_path, 1500)
    file = sorted((tmp_path / "sealed").glob("messages-*"))[0]
    file.unlink()
    for _ in range(2):
        told = [one for one in lake.publish(tmp_path) if one.table == "messages"]
        assert [one.damaged for one in told] == [(f"sealed/{file.name}",)] * 2


def test_p6_tables_that_were_copied_into_a_log_list_its_files_at_once(tmp_path: Path) -> None:
    """A copy of a link is another file under the same name."""
    root = tmp_path / "data"
    half_sealed(root, 1500)
    lake.publish(root)
    shutil.copytree(root / "tables", tmp_path / "copy")
    shutil.rmtree(root / "tables")
    for name in ("messages/data", "messages/_delta_log", "events/data"):
        (root / "tables" / name).mkdir(parents=True)
    for path in (tmp_path / "copy" / "messages" / "data").iterdir():
        shutil.copy(path, root / "tables" / "messages" / "data")
    lake.publish(root)
    assert by_delta(root) == by_iceberg(root) == list(range(1000))


def test_p6_a_folder_that_holds_older_versions_too_is_not_read_as_plain_parquet(tmp_path: Path) -> None:
    """A file that was shrunk is in it twice."""
    half_sealed(tmp_path, 1500)
    everything = str(folder_of(tmp_path, "messages") / "data" / "*.parquet")
    readers: list[Callable[[], object]] = [
        lambda: pq.read_table(folder_of(tmp_path, "messages") / "data"),
        lambda: polars.read_parquet(everything),
        lambda: duckdb.execute(f"select count(*) from read_parquet('{everything}')").fetchall(),
    ]
    for _ in range(2):
        lake.publish(tmp_path)
        for read in readers:
            with pytest.raises(Exception, match=r"READ-THIS-TABLE-AS-DELTA-OR-ICEBERG|must end with PAR1"):
                read()  # Polars does not say which file it is
        assert by_delta(tmp_path) == by_iceberg(tmp_path) == list(range(1000))
        DeltaTable(folder_of(tmp_path, "messages")).vacuum(
            0, dry_run=False, enforce_retention_duration=False, full=True
        )


def test_p6_a_link_that_somebody_removed_is_made_again(tmp_path: Path) -> None:
    half_sealed(tmp_path, 1500)
    before = [one.version for one in lake.publish(tmp_path)]
    next((folder_of(tmp_path, "messages") / "data").glob("messages-*.parquet")).unlink()
    assert [one.version for one in lake.publish(tmp_path)] == before
    assert by_delta(tmp_path) == by_iceberg(tmp_path) == list(range(1000))


@pytest.mark.parametrize("group", [False, True])
def test_tables_are_for_those_who_may_read_the_log(tmp_path: Path, group: bool) -> None:
    with broker_at(tmp_path / "data", group=group, lake="both") as broker:
        publish(broker, 1500)
        seal(broker)
    lake.publish(tmp_path / "data")
    tables = tmp_path / "data" / "tables"
    paths = [tables, *tables.rglob("*")]
    modes = {(path.is_dir(), path.stat().st_mode & 0o777) for path in paths if not path.name.endswith(".parquet")}
    assert modes == ({(True, 0o770), (False, 0o660)} if group else {(True, 0o700), (False, 0o600)})


def test_before_there_are_tables_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(RemudaError, match="there is no directory"):
        version_at(tmp_path / "nowhere", "messages", "delta", 5)
    with pytest.raises(RemudaError, match="there is no directory"):
        catalog(tmp_path / "nowhere")
    with broker_at(tmp_path) as broker:
        broker.publish(Message("orders", b"1"))
    with pytest.raises(NotFound, match=r"there are no Iceberg tables under .*/tables' yet; publish them: remuda lake"):
        catalog(str(tmp_path))
    assert not (tmp_path / "tables").exists()
    wrong: Any
    for wrong in (None, 5, ""):
        with pytest.raises(InvalidOption, match="give a directory as a path or a URL"):
            catalog(wrong)
    told = CliRunner().invoke(app, ["lake", "publish", str(tmp_path), "--format", "delta"])
    assert told.stdout.splitlines()[0] == "messages (delta): no table yet, since there is no sealed file to list"


def test_what_is_in_the_way_is_named(tmp_path: Path) -> None:
    half_sealed(tmp_path, 600)
    folder_of(tmp_path, "messages").mkdir(parents=True)
    (folder_of(tmp_path, "messages") / "_delta_log").write_text("not a folder")
    with pytest.raises(StorageError, match=r"tables' cannot be read or written: .*_delta_log.*what is in the way"):
        lake.publish(tmp_path)


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    with pytest.raises(RemudaError, match="there is no directory"):
        lake.publish(tmp_path / "nowhere")
    with broker_at(tmp_path):
        pass
    with pytest.raises(InvalidOption, match="a table's format is delta or iceberg, not 'hudi'"):
        lake.publish(tmp_path, formats=["hudi"])
    wrong: Any
    for wrong in ("delta", None, 5, []):
        with pytest.raises(InvalidOption, match="formats is a list, of delta and iceberg, not"):
            lake.publish(tmp_path, formats=wrong)
    with pytest.raises(InvalidOption, match="there is no table 'lives'; the tables are messages, events"):
        version_at(tmp_path, "lives", "delta", 5)
    with pytest.raises(InvalidOption, match="number must be a whole number from 0 on, not -1"):
        version_at(tmp_path, "messages", "delta", -1)


def test_the_command_publishes_and_says_what_it_did(tmp_path: Path) -> None:
    half_sealed(tmp_path / "data", 600)
    runner = CliRunner()
    told = runner.invoke(app, ["lake", "publish", str(tmp_path / "data"), "--format", "delta"])
    assert told.exit_code == 0, told.output
    assert "messages (delta): 1 files added, 0 dropped, up to " in told.stdout
    missing = runner.invoke(app, ["lake", "publish", str(tmp_path / "nowhere")])
    assert (missing.exit_code, "there is no directory" in missing.output) == (1, True)
