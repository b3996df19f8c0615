"""A process that lost its directory while it stood still writes nothing more to it (S5)."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from remuda import Message, StorageError, open_broker
from remuda.broker.options import Sync


def _lost() -> NoReturn:
    raise StorageError("the directory was taken over")


def _written(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(directory.glob("tail/*.log"))).rstrip(b"\0")


@pytest.mark.source
@pytest.mark.parametrize("sync", list(Sync))
@pytest.mark.parametrize("count", [1, 20])
def test_s5_nothing_is_written_by_who_lost_the_directory(
    tmp_path: Path, sync: Sync, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = open_broker(tmp_path, sync=sync.value, shared=False)
    monkeypatch.setattr(broker.runtime, "check_fence", lambda: None)  # whoever writes looks, not upkeep beside it
    try:
        broker.create_queue("orders", type="pull")
        broker.publish(Message("orders.new", b"1"))
        broker.runtime.fence = _lost
        before = _written(tmp_path)
        with pytest.raises(StorageError, match="taken over"):
            broker.publish([Message("orders.new", b"2")] * count)
        assert _written(tmp_path) == before
    finally:
        broker.runtime.fence = None
        broker.close()
