"""A broker is chosen by its URL."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from remuda.broker.opening import open_async_broker, open_broker
from remuda.model.errors import DirectoryInUse, DirectoryNotWritable, ForeignDirectory, InvalidOption
from tests.conformance.kit import numbered, queue_names


def test_a_path_is_a_directory(tmp_path: Path) -> None:
    for url in (tmp_path / "one", str(tmp_path / "two"), f"file://{tmp_path}/three", f"file://{tmp_path}/with%20space"):
        with open_broker(url) as broker:
            broker.publish(numbered(1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "three", "two", "with space"]


def test_a_directory_below_others_is_made(tmp_path: Path) -> None:
    with open_broker(tmp_path / "a" / "b" / "c"):
        assert (tmp_path / "a" / "b" / "c").is_dir()


def test_memory_leaves_nothing_behind_and_shares_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open_broker("memory://") as one, open_broker("memory://") as other:
        one.publish(numbered(1))
        assert queue_names(one) == ["orders"]
        assert queue_names(other) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["redis://localhost", "kafka://localhost/"])
def test_an_unknown_scheme_is_refused(url: str) -> None:
    with pytest.raises(InvalidOption, match=r"no broker speaks \w+://; give a directory, file:///path"):
        open_broker(url)


def test_a_directory_has_one_broker_at_a_time_unless_it_is_shared(tmp_path: Path) -> None:
    with open_broker(tmp_path / "broker", shared=False) as broker:
        with pytest.raises(DirectoryInUse):
            open_broker(tmp_path / "broker", shared=False)
        broker.publish(numbered(1))
    with open_broker(tmp_path / "broker") as again:
        assert queue_names(again) == ["orders"]


def test_a_foreign_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("my life's work")
    with pytest.raises(ForeignDirectory):
        open_broker(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DirectoryNotWritable):
        open_broker(tmp_path / "file")


def test_refused_options_leave_the_directory_free(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption):
        open_broker(tmp_path / "broker", worker=5000)
    with open_broker(tmp_path / "broker"):
        pass


def test_coroutines_open_the_same_places(tmp_path: Path) -> None:
    async def scene() -> list[str]:
        async with await open_async_broker(tmp_path / "broker") as broker:
            return [info.name for info in await broker.queues()]

    with open_broker(tmp_path / "broker") as broker:
        broker.publish(numbered(1))
    assert asyncio.run(scene()) == ["orders"]


def test_one_broker_has_both_faces() -> None:
    with open_broker("memory://") as broker:

        async def scene() -> None:
            await broker.aio.publish(numbered(1))

        asyncio.run(scene())
        assert broker.queue("orders").waiting == 1


def test_a_name_that_is_too_long_is_told(tmp_path: Path) -> None:
    """L7."""
    with pytest.raises(DirectoryNotWritable, match="too long"):
        open_broker(tmp_path / ("x" * 300))


@pytest.mark.parametrize("clock", [5, "now", True])
def test_a_clock_is_a_function(clock: Any) -> None:
    with pytest.raises(InvalidOption, match="clock must be a function"):
        open_broker("memory://", clock=clock)
