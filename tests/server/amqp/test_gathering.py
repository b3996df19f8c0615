"""Publications of all connections share commits (S2)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from remuda.server.amqp.messages.commit_group import CommitGroup

_LIMIT = 100.0


class Commits:
    """Works that take as long as a slow disk, and what was under way together."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._under_way = 0
        self.together: list[int] = []

    async def work(self) -> None:
        self._under_way += 1
        await asyncio.sleep(0)
        self.together.append(self._under_way)
        await asyncio.sleep(self._seconds)
        self._under_way -= 1


def _run(play: Callable[[CommitGroup], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(_LIMIT):
            await play(CommitGroup())

    asyncio.run(main())


def test_what_comes_during_a_commit_goes_with_the_next() -> None:
    async def play(gathering: CommitGroup) -> None:
        commits = Commits(0.05)
        first = [gathering.add(commits.work, 1) for _ in range(3)]
        await asyncio.sleep(0.01)
        second = [gathering.add(commits.work, 1) for _ in range(5)]
        await asyncio.gather(*first, *second)
        assert commits.together == [3, 3, 3, 5, 5, 5, 5, 5]

    _run(play)


def test_publishers_that_take_turns_come_to_share_one_commit() -> None:
    """Each waits for its confirm before it sends more: one commit waits for those whom the last one confirmed."""

    async def play(gathering: CommitGroup) -> None:
        commits = Commits(0.02)

        async def publisher(late: float) -> None:
            await asyncio.sleep(late)
            while commits.together[-8:] != [4] * 8:
                await gathering.add(commits.work, 1)
                await asyncio.sleep(0.001)

        await asyncio.gather(*(publisher(0.015 * number) for number in range(4)))

    _run(play)


def test_what_comes_on_one_channel_before_its_commit_goes_with_it_in_one_piece() -> None:
    """A commit waits until all of the window that it confirmed last is there, in however many parts it comes."""

    async def play(gathering: CommitGroup) -> None:
        commits = Commits(0.05)
        await gathering.add(commits.work, 100)
        gathering._patience = _LIMIT  # however slow this machine is
        monotonic = asyncio.get_running_loop().time
        gathering._since = monotonic() + _LIMIT
        late = gathering.add(commits.work, 25)
        for _ in range(3):
            for _ in range(3):
                await asyncio.sleep(0)
            assert len(commits.together) == 1
            gathering.grow(25)
        await late
        assert commits.together == [1, 1]

    _run(play)


def test_what_takes_for_ever_holds_up_nobody() -> None:
    """As where a queue confirms when a consumer has answered, and none does."""

    async def play(gathering: CommitGroup) -> None:
        never = gathering.add(asyncio.Event().wait, 1)  # type: ignore[arg-type]
        await gathering.add(Commits(0.0).work, 1)
        await gathering.add(Commits(0.0).work, 1)
        assert not never.done()

    _run(play)


def test_one_that_fails_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> None:
        raise ZeroDivisionError

    async def play(gathering: CommitGroup) -> None:
        commits = Commits(0.0)
        await asyncio.gather(gathering.add(fails, 1), gathering.add(commits.work, 1))
        await gathering.add(commits.work, 1)
        assert commits.together == [1, 1]

    _run(play)
    assert "could not be handed" in caplog.text
