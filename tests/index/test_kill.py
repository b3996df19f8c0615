"""T4: a follower that is killed at any moment loses nothing and counts nothing twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

import remuda
from remuda import Message, open_broker
from remuda.index import Query, open_index, rebuild
from remuda.index.opensearch.index import OpenSearchIndex
from tests.index.kit import caught_up, every, ids, source
from tests.index.naive import Naive

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]  # a server starts in them too
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Messages whose events lie far behind them, and some that were moved."""
    folder = tmp_path_factory.mktemp("kill") / "data"
    chance = random.Random(3)
    with open_broker(folder, sync="os") as broker:
        broker.create_queue("a", type="pull")
        broker.create_queue("b", type="pull")
        for number in range(14):
            broker.publish([Message("a.x", b'["word"]', mime_type="application/json", key=str(number))] * 20)
            for _ in range(8):
                if delivery := broker.pull("a", chance.randint(1, 4)):
                    if chance.random() < 0.2:
                        delivery.dead(reason="moved", to="b")
                    else:
                        delivery.ack()
    return folder


@pytest.mark.parametrize("kind", ["sqlite", "opensearch"])
def test_a_killed_follower_goes_on(
    kind: str, log: Path, tmp_path: Path, victims: Victims, request: pytest.FixtureRequest
) -> None:
    """T4"""
    place = str(tmp_path / "index")
    if kind == "opensearch":
        place = f"{request.getfixturevalue('opensearch').replace('http', 'opensearch')}/kill-{uuid4().hex[:8]}"
    ends = [victims.run_until_killed(log, place, "follow", steps) for steps in (1, 4, 2)]
    assert ends == sorted(set(ends)), "each goes on where the one before it was killed"
    truth = Naive(log)
    index = caught_up(open_index(place), log)
    try:
        assert every(index, Query(), 500) == truth.search(Query())
        assert index.counts() == truth.counts()
        assert every(index, Query(text="word", queue="b"), 500) == truth.search(Query(text="word", queue="b"))
    finally:
        index.drop()
        index.close()


@pytest.mark.parametrize("kind", ["sqlite", "opensearch"])
def test_a_killed_rebuild_leaves_the_old_index(
    kind: str, log: Path, tmp_path: Path, victims: Victims, request: pytest.FixtureRequest
) -> None:
    place = str(tmp_path / "index")
    if kind == "opensearch":
        place = f"{request.getfixturevalue('opensearch').replace('http', 'opensearch')}/kill-{uuid4().hex[:8]}"
    expected = Naive(log).search(Query())
    caught_up(open_index(place), log)
    victims.run_until_killed(log, place, "rebuild", 2)
    index = open_index(place)
    try:
        assert every(index, Query(), 500) == expected
        assert victims.run(log, place, "rebuild", 0)[-1] == "done"
        index.refresh()
        assert every(index, Query(), 500) == expected
    finally:
        index.drop()
        index.close()


def test_t4_a_rebuild_killed_before_its_aliases_were_switched_is_completed(
    tmp_path: Path, opensearch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T4: the next to follow the log completes the switch, or searches would find the old index for ever."""
    data, place = tmp_path / "data", f"{opensearch.replace('http', 'opensearch')}/switch-{uuid4().hex[:8]}"

    def killed(**_: object) -> None:
        raise KeyboardInterrupt

    with open_broker(data, sync="os") as broker:
        broker.publish(Message("a.x", b"", id="1"))
        caught_up(open_index(place), data).close()
        broker.publish(Message("b.x", b"", id="2"))
        victim = OpenSearchIndex(place)
        monkeypatch.setattr(victim._client.indices, "update_aliases", killed)
        with pytest.raises(KeyboardInterrupt):
            rebuild(victim, source(data))
        broker.publish(Message("a.x", b"", id="3"))
        index = caught_up(open_index(place), data)
    try:
        assert ids(every(index, Query())) == ["3", "2", "1"]
        rebuild(index, source(data))
        index.refresh()
        assert ids(every(index, Query())) == ["3", "2", "1"]
    finally:
        index.drop()
        index.close()
        victim.close()


class Victims:
    """Runs the work in processes that can be killed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run_until_killed(self, log: Path, place: str, task: str, steps: int) -> int:
        """Kill a victim in the middle of its work, after some steps. Gives the last offset that it told."""
        told = self.run(log, place, task, steps)
        assert len(told) == steps, "it was done before it could be killed"
        return int(told[-1])

    def run(self, log: Path, place: str, task: str, steps: int) -> list[str]:
        """The lines that a victim told until it waited to be killed, or was done."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{log} {place} {task} {steps}\n")
        self._process.stdin.flush()
        victim = int(self._line())
        told: list[str] = []
        while (line := self._line()) != "ended":
            told.append(line)
            if len(told) == steps:
                os.kill(victim, signal.SIGKILL)
        return told

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process that starts victims has ended"
        return line.strip()


@pytest.fixture(scope="module")
def victims() -> Iterator[Victims]:
    source = str(Path(remuda.__file__).parent.parent)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.index.victim"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": source},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    guard = threading.Timer(500, process.kill)
    guard.daemon = True
    guard.start()
    try:
        yield Victims(process)
    finally:
        guard.cancel()
        process.kill()
        process.communicate()
