"""Drivers of real Spark queries are killed at their commits, and everything is compared with what a count of one's own
says. In the tests a few; of as many as you like: `python -m tests.spark.kills DIR --kills 30`."""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable

from remuda.broker.threads import EmbeddedBroker
from remuda.index import open_index
from remuda.index.opening import default_place
from remuda.spark.lake.store import local_side
from tests.spark.samples import broker_at, finish, publish, seal

_PATIENCE = 300.0
_FOLLOWER = """
import sys
from remuda.spark import session
from tests.spark.plans import INTERPRETED
from remuda.spark.pipelines.streaming_queries import Place
from remuda.spark.pipelines.jobs import JOBS

data, lake, names, rows, continuous = sys.argv[1:]
spark = session("kills", quick=True, config=INTERPRETED)
place = Place(url=data, lake=lake, continuous=continuous == "True", options={"maxRows": rows})
queries = [query for name in names.split(",") for query in JOBS[name](spark, place)]
for query in queries:
    query.awaitTermination()
"""


def driver(data: Path, lake: str, names: str, rows: int, *, continuous: bool) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", _FOLLOWER, str(data), lake, names, str(rows), str(continuous)],
        cwd=Path(__file__).parents[2], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def commits(lake: str) -> int:
    """How many micro-batches the pipelines of a lake have noted as done."""
    return len(list((local_side(lake) / "_checkpoints").glob("*/commits/[0-9]*")))


def kill_at_commits(
    data: Path, lake: str, names: str, after: Sequence[int], chance: random.Random, *, rows: int = 200
) -> None:
    """Start a driver for each number, and kill it when so many batches were done, or a moment later. One that a failed
    query ended is started again, as `remuda pipeline run` does: that is a death like any other, and is told."""
    failures = 2
    for count in after:
        begun = commits(lake)
        running = driver(data, lake, names, rows, continuous=True)
        end = time.monotonic() + _PATIENCE
        try:
            while commits(lake) < begun + count:
                if running.poll() is not None:
                    told = running.communicate()[1].decode()
                    print(told)
                    assert failures, told[:8000]
                    failures -= 1
                    running = driver(data, lake, names, rows, continuous=True)
                assert time.monotonic() < end, f"no batch was done in {_PATIENCE:.0f} s"
                time.sleep(0.01)
            time.sleep(chance.random() * 0.4)
        finally:
            running.kill()
            if running.stderr is not None and not running.stderr.closed:
                running.communicate()


def finish_all(data: Path, lake: str, names: str, rows: int) -> None:
    """What is left, once and to its end."""
    running = driver(data, lake, names, rows, continuous=False)
    told = running.communicate(timeout=900)[1].decode()
    assert running.returncode == 0, told[:12000]  # the cause comes first, then Java's stacks


def play(root: Path, kills: int, seed: int, names: str, *, collecting: bool) -> dict[str, int]:
    """Kills spread over commits, beside a broker that publishes, seals and perhaps collects; then all is compared."""
    data, lake, chance = root / "data", str(root / "lake"), random.Random(seed)
    options = {"success_retention": "1ms", "collect_after_archive": lake} if collecting else {}
    published = {"done": 0, "waits": 0}
    stopped = threading.Event()

    def feed(broker: EmbeddedBroker) -> None:
        """Of each round most are handled, and some wait."""
        while not stopped.wait(chance.random()):
            one_round(broker, published)
            if collecting:
                broker.collect()

    with broker_at(data, **options) as broker:
        one_round(broker, published)
        feeder = threading.Thread(target=feed, args=(broker,))
        feeder.start()
        try:
            for _ in range(kills):
                kill_at_commits(data, lake, names, [chance.randint(1, 6)], chance)
        finally:
            stopped.set()
            feeder.join()
        broker.runtime.sync()
        finish_all(data, lake, names, 2000)
    return compare(data, lake, published, names.split(","), collecting=collecting)


def one_round(broker: EmbeddedBroker, published: dict[str, int]) -> None:
    for name, count in (("done", 120), ("waits", 30)):
        publish(broker, count, name, start=published[name])
        published[name] += count
    finish(broker, "done")
    seal(broker)


def compare(
    data: Path, lake: str, published: dict[str, int], names: Sequence[str], *, collecting: bool
) -> dict[str, int]:
    """The tables against what was published, counted here; raises where a row is lost, doubled or wrong."""
    total = sum(published.values())
    if "archive" in names:
        rows = _rows(lake, "messages", "offset", "queue", "body")
        assert sorted(rows["offset"].to_pylist()) == list(range(total))
        for name, count in published.items():
            mine = rows.filter(pa.compute.equal(rows["queue"], name))
            assert sorted(int(body.split()[0]) for body in mine["body"].to_pylist()) == list(range(count)), name
        positions = sorted(_rows(lake, "events", "position")["position"].to_pylist())
        assert positions == list(range(len(positions)))
    if "lifecycle" in names:
        found = _rows(lake, "lifecycle", "offset", "queue", "state")
        assert sorted(found["offset"].to_pylist()) == list(range(total))
        states = set(zip(found["queue"].to_pylist(), found["state"].to_pylist(), strict=True))
        assert states == {("done", "X"), ("waits", "Q")}, states
    if "metrics" in names:
        windows = _rows(lake, "metrics", "start", "queue", "published", "succeeded", "waiting")
        places = list(zip(windows["start"].to_pylist(), windows["queue"].to_pylist(), strict=True))
        assert len(set(places)) == len(places), "a window is there once"
        sums = windows.group_by("queue").aggregate([("published", "sum"), ("succeeded", "sum")]).to_pylist()
        if not collecting:  # else a window is counted again from what is left, if it is more
            assert {one["queue"]: (one["published_sum"], one["succeeded_sum"]) for one in sums} == {
                "done": (published["done"], published["done"]),
                "waits": (published["waits"], 0),
            }
    if "index" in names:
        index = open_index(default_place(str(data)))
        counted = index.counts()
        index.close()
        if not collecting:
            assert sum(sum(of.values()) for of in counted.values()) == total, counted
    return published


def _rows(lake: str, table: str, *columns: str) -> pa.Table:
    files = DeltaTable(f"{lake}/{table}").file_uris()
    return ds.dataset(files, format="parquet").to_table(columns=list(columns))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dir", type=Path)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--pipelines", default="archive,lifecycle,metrics,index")
    parser.add_argument("--keep", action="store_true", help="collect nothing, and compare metrics and index exactly")
    given = parser.parse_args()
    print(f"seed {given.seed}")
    told = play(given.dir, given.kills, given.seed, given.pipelines, collecting=not given.keep)
    print(f"{given.kills} kills: {told} published, nothing lost, nothing doubled")


if __name__ == "__main__":
    main()
