"""Messages that wait by key: keys take turns, and one that is held back holds up no other.

A virtual clock keeps the turns: each message costs its key a turn, less with a weight, and the key whose turn is
earliest goes next. A key that was away comes back at the clock's time, so it gains nothing by having been absent.

A key of which one message waits, and nothing else is known, is in `singles`; all others have a `Key`.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterator
from typing import Final

from remuda.core.flow.buckets import Weights, carried, put_right, weight_of
from remuda.core.flow.key_state import Key, RestingKeys, Turn
from remuda.core.flow.keys import UNKNOWN, KeyColumn
from remuda.core.flow.rules import KeyRules
from remuda.core.flow.singles import SingleMessages
from remuda.core.queues.ready import NEVER, Chunk, ReadyList, ReadyMessages, ReadyRun
from remuda.model.message import MAX_PRIORITY

KeyTimes = tuple[int, float, int, int]
_SPARE: Final = 1024


class KeyedMessages(ReadyMessages):
    """The waiting messages of one queue, a line for each key."""

    __slots__ = (
        "_asleep", "_ends", "_fresh", "_gone", "_high", "_known", "_latest", "_oldest", "_pending", "_resting",
        "_sweep_at", "_time", "_turns", "clock", "keys", "rules", "singles", "unknown",
    )  # fmt: skip

    def __init__(self, keys: KeyColumn, rules: KeyRules) -> None:
        super().__init__()
        self.keys = keys
        self.rules = rules
        self.clock = 0.0
        self._known: dict[int, Key] = {}
        self.singles = SingleMessages(keys)
        self._resting = RestingKeys()
        self._turns: list[Turn] = []
        """Keys that may go, as a heap, with entries that stand no longer."""
        self._asleep: list[tuple[int, int]] = []
        """When which key is to be looked at again, a heap."""
        self._fresh: list[Key] = []
        self._pending: list[Key] = []
        self._ends: list[tuple[int, int]] = []
        """The first deadline of each key, as a heap, with some that stand no longer."""
        self._oldest: list[tuple[int, int, int, int]] | None = None
        """Runs by priority and age, kept from the first time that somebody asks for the oldest."""
        self._high = 0
        self._sweep_at = _SPARE
        self._gone = 0
        """How many keys ran out of messages since the last sweep."""
        self._latest = 0.0
        """The latest turn of all: where the clock stands once nobody waits."""
        self.unknown: list[tuple[int, int]] = []
        """Messages that started, and when, whose keys are not known yet: in recovery, of those from another queue."""
        self._time = 0
        """The last time that was told."""

    # Who goes next

    def is_open(self, now: int) -> bool:
        """Whether a message may go now."""
        self._look(now)
        return self.singles.size > 0 or self._next() is not None

    def opens(self) -> int:
        """When the next key that waits for a time may go; for what is known at the last look."""
        return self._asleep[0][0] if self._asleep else NEVER

    def take_turns(self, count: int, now: int) -> list[ReadyRun]:
        """Take out the next `count` messages to go out, or as many as may go now."""
        taken: list[ReadyRun] = []
        self._look(now)
        while count > 0:
            entry = self._next()
            if self.singles.size and (entry is None or self._single_is_before(entry)):
                key = self._take_single()
                run = ReadyRun(key.newest, 1, NEVER, 0)
            elif entry is None:
                break
            else:
                heapq.heappop(self._turns)
                key = self._known[entry[3]]
                assert key.line is not None, "a key that may go has messages"
                run = key.line.take(1)[0]
                self._left(key, key.line, 1, run.priority)
            key.entry = None
            if key.turn > self.clock:
                self.clock = key.turn
            key.turn += 1.0 / self.rules.weights.get(key.number, 1.0)
            if key.turn > self._latest:
                self._latest = key.turn
            self._see_whether_empty()
            if not key.pending:
                self._pending.append(key)
            key.pending += 1
            count -= 1
            last = taken[-1] if taken else None
            if (
                last is not None
                and last.first + last.count == run.first
                and last.deadline == run.deadline
                and last.priority == run.priority
            ):
                taken[-1] = ReadyRun(last.first, last.count + 1, run.deadline, run.priority)
            else:
                taken.append(run)
            if key.line is not None and not self.rules.ordered:  # one that waits for its answer is looked at then
                self._place(key, now)
        return taken

    def _single_is_before(self, entry: Turn) -> bool:
        """Whether the first of the singles goes before the first of the others."""
        if entry[0] != MAX_PRIORITY:
            return False
        offset, turn = self.singles.front(), self.singles.front_turn()
        return turn < entry[1] or (turn == entry[1] and offset < entry[2])

    def _take_single(self) -> Key:
        """Take out the first of the singles. Its key is known from now on."""
        singles = self.singles
        offset = singles.front()
        number = self.keys.get(offset)
        turn = singles.front_turn()
        singles.pop(number)
        self.size -= 1
        key = self.key(number)
        key.turn, key.newest = turn, offset
        return key

    def _look(self, now: int) -> None:
        """See which of the keys that changed, or whose time has come, may go."""
        self._time = now
        if self._pending:
            for key in self._pending:
                key.pending = 0
                self._touch(key)
            self._pending.clear()
        asleep = self._asleep
        while asleep and asleep[0][0] <= now:
            time, number = heapq.heappop(asleep)
            known = self._known.get(number)
            if known is not None and known.sleeps == time:
                known.sleeps = 0
                self._touch(known)
        if self._fresh:
            fresh, self._fresh = self._fresh, []
            for key in fresh:
                key.fresh = False
                self._place(key, now)

    def _place(self, key: Key, now: int) -> None:
        """Give a key its place among those that may go, or note when to look at it again."""
        line = key.line
        if line is None:
            key.entry = None
            key.since = 0
            return
        at = self.opens_at(key, now)
        if at > now:
            key.entry = None
            key.since = key.since or now
            if at < NEVER and key.sleeps != at:
                key.sleeps = at
                heapq.heappush(self._asleep, (at, key.number))
            return
        key.since = 0
        if key.turn < self.clock:
            key.turn = self.clock
        priority, first = line.head()
        entry = MAX_PRIORITY - priority, key.turn, first, key.number
        if entry != key.entry:
            key.entry = entry
            heapq.heappush(self._turns, entry)

    def opens_at(self, key: Key, now: int) -> int:
        """When a key may go; NEVER if it waits for something else than a time."""
        rules = self.rules
        most = rules.most_of(key.number, key.most)
        if (most and key.running + key.pending >= most) or key.held:
            return NEVER
        at = key.paused
        bucket = rules.bucket_of(key.number)
        if bucket is not None:
            at = max(at, bucket.opens(key.due, now, key.pending))
        return at

    def _next(self) -> Turn | None:
        """The first of the entries that stand."""
        turns = self._turns
        while turns:
            entry = turns[0]
            key = self._known.get(entry[3])
            if key is not None and key.entry == entry:
                return entry
            heapq.heappop(turns)
        return None

    def _touch(self, key: Key) -> None:
        if not key.fresh:
            key.fresh = True
            self._fresh.append(key)

    def _sweep(self) -> None:
        """Forget the keys of which nothing needs to be remembered."""
        now = self._time
        fresh, self._fresh = self._fresh, []
        for key in fresh:
            if key.line is not None:
                self._fresh.append(key)
            else:
                key.fresh, key.entry = False, None
        for key in [key for key in self._known.values() if key.is_idle(now)]:
            if key.turn > self.clock:
                self._resting.put(key.number, key.turn, self.clock)
            del self._known[key.number]
        self._sweep_at = 2 * len(self._known) + _SPARE
        self._gone = 0
        if len(self._turns) > self._sweep_at:
            self._turns = [key.entry for key in self._known.values() if key.entry is not None]
            heapq.heapify(self._turns)

    # What is in flight, and what is to be tried again

    def key(self, number: int) -> Key:
        key = self._known.get(number)
        if key is None:
            if len(self._known) > self._sweep_at:
                self._sweep()
            key = self._known[number] = Key(number)
            key.turn = self._resting.turn_of(number)
            if self.singles.size and self.singles.find(number) >= 0:
                self._join_line(key)
        return key

    def _join_line(self, key: Key) -> None:
        """The only message of a key stands in a line of its own from now on, and keeps its turn."""
        offset, key.turn = self.singles.remove(key.number)
        line = key.line = ReadyMessages()
        line.add(0, self.rules.holds, offset, 1)
        key.newest = offset
        key.entry = MAX_PRIORITY, key.turn, offset, key.number
        heapq.heappush(self._turns, key.entry)
        if self._oldest is not None:
            heapq.heappush(self._oldest, (0, offset, 1, key.number))

    def known(self) -> Iterator[Key]:
        """Every key but those of `singles`."""
        return iter(self._known.values())

    def begun(self, first: int, count: int, sign: int) -> None:
        """Messages are in flight from now on, or no longer."""
        for number, start, size in self.keys.runs(first, count):
            key = self.key(number)
            key.running += sign * size
            if sign > 0:
                key.pending = max(key.pending - size, 0)
                key.newest = max(key.newest, start + size - 1)
            self._touch(key)
            if sign < 0 and not key.lives:
                self._gone += 1
        if self._gone > len(self._known) // 2 + _SPARE:
            self._sweep()

    def delay(self, first: int, count: int, sign: int, *, holds: bool) -> None:
        """Messages are delayed from now on, or no longer. Those that are to be tried again hold their keys."""
        for number, start, size in self.keys.runs(first, count):
            key = self.key(number)
            key.later += sign * size
            key.newest = max(key.newest, start + size - 1)
            if holds:
                key.held += sign * size
                self._touch(key)

    def rest(self, first: int, count: int) -> None:
        """Delayed messages left, other than into their lines."""
        for number, _, _ in self.keys.runs(first, count):
            key = self._known.get(number)
            if key is not None:
                self._rest(key)

    def _rest(self, key: Key) -> None:
        """Of a key that has to be quiet: if nothing waits, what comes next begins to wait anew."""
        if key.line is None and not key.later:
            key.mark = 0

    # One message of a key instead of many

    def find(self, number: int) -> Key | None:
        """A key, if it is not one of `singles`."""
        return self._known.get(number)

    def quieten(self, number: int, until: int) -> None:
        """A message came, which is enough for a while."""
        self.key(number).mark = until

    def settles(self, number: int, now: int, quiet: int, longest: int) -> int:
        """When the key will have been quiet for long enough, or somebody has waited for the longest."""
        key = self.key(number)
        if (key.line is None and not key.later) or not key.mark:
            key.mark = now
        return min(now + quiet, key.mark + longest) if longest else now + quiet

    def spend(self, first: int, count: int, time: int, weights: Weights) -> None:
        """Messages started."""
        self._time = time
        if not self.rules.paces:
            return
        for number, start, size in self.keys.runs(first, count):
            if number == UNKNOWN:
                self.unknown += [(offset, time) for offset in range(start, start + size)]
            else:
                self.charge(number, time, weight_of(weights, start, size))

    def charge(self, number: int, time: int, weight: int) -> None:
        """Messages of a key started."""
        bucket = self.rules.bucket_of(number)
        if bucket is not None:
            key = self.key(number)
            key.due = bucket.spend(key.due, time, weight)
            if key.entry is not None:
                self._touch(key)

    def limit(self, number: int, most: int) -> None:
        """A message says how many of its key may be in flight; the newest one's word stands."""
        key = self.key(number)
        if key.most != most:
            key.most = most
            self._touch(key)

    def limits(self) -> list[tuple[int, int]]:
        """Keys whose messages say how many may be in flight."""
        return [(key.number, key.most) for key in self._known.values() if key.most and key.lives]

    def pause(self, number: int, until: int) -> None:
        key = self.key(number)
        key.paused = until
        self._touch(key)

    def learn(self, offset: int, number: int) -> None:
        """The key of a message that may wait here becomes known."""
        key = self._known.get(self.keys.get(offset))
        line = None if key is None else key.line
        if key is not None and line is not None:
            for priority, front, level in list(line.levels()):
                for first, count, deadline in level.remove(offset, 1):
                    line.drop(count)
                    self._left(key, line, count, priority)
                    self.keys.put(offset, number)
                    self.add(priority, front, first, count, deadline)
                    return
        self.keys.put(offset, number)

    def times(self) -> list[KeyTimes]:
        """Keys that wait for a time by their rate, or are paused: number, when the next is due, paused until, and the
        mark of those that merge messages."""
        now = self._time
        return [
            (key.number, key.due, key.paused, key.mark)
            for key in self._known.values()
            if key.due > now or key.paused > now or (key.mark and (key.lives or key.mark > now))
        ]

    def turn_back(self, now: int, ahead: int) -> None:
        """The clock was so far ahead, and is right again."""
        for key in self._known.values():
            due = put_right(key.due, now, ahead)
            if due != key.due:
                key.due = due
                self._touch(key)

    def resume(self, times: list[KeyTimes]) -> None:
        """After a restart or a change of rules: no second burst."""
        for number, due, paused, mark in times:
            key = self.key(number)
            key.due, key.paused, key.mark = due, paused, mark
            self._touch(key)

    def follow(self, before: KeyedMessages, now: int) -> None:
        """The rules changed: take over what the rates, pauses and limits of keys have come to."""
        alike = before.rules.settling == self.rules.settling
        before._time = now
        for number, due, paused, mark in before.times():
            due = carried(before.rules.bucket_of(number), self.rules.bucket_of(number), due, now)
            self.resume([(number, due, paused, mark if alike else 0)])
        for number, most in before.limits():
            self.limit(number, most)

    # The same as any queue's waiting messages

    def add(self, priority: int, front: bool, first: int, count: int, deadline: int = NEVER) -> None:
        rules = self.rules
        if rules.holds:
            front = True  # a line in the order of offsets
        plain = not priority and deadline == NEVER and front == rules.holds and not rules.settles
        for number, start, size in ((self.keys.get(first), first, 1),) if count == 1 else self.keys.runs(first, count):
            if size > 1 or not plain or not self._add_single(number, start):
                self._add(number, priority, front, start, size, deadline)

    def _add_single(self, number: int, offset: int) -> bool:
        """Whether the message is the only one of its key, and has joined the others of which that is so."""
        singles = self.singles
        if number in self._known or number == UNKNOWN or not singles.takes(offset) or singles.find(number) >= 0:
            return False
        if self._resting.turn_of(number) > self.clock:
            return False
        singles.append(number, offset, self.clock)
        self.size += 1
        return True

    def _add(self, number: int, priority: int, front: bool, first: int, count: int, deadline: int) -> None:
        key = self.key(number)
        line = key.line
        if line is None:
            line = key.line = ReadyMessages()
        before = line.soonest
        line.add(priority, front, first, count, deadline)
        self.size += count
        if first + count > key.newest:
            key.newest = first + count - 1
        if priority:
            self._high += count
        if line.soonest < before:
            heapq.heappush(self._ends, (line.soonest, number))
            if line.soonest < self.soonest:
                self.soonest = line.soonest
        if self._oldest is not None:
            heapq.heappush(self._oldest, (priority, first, count, number))
        if key.entry is None or priority or front:
            self._touch(key)

    def _left(self, key: Key, line: ReadyMessages, count: int, priority: int) -> None:
        """Messages left a key's line."""
        self.size -= count
        if priority:
            self._high -= count
        if not line.size:
            key.line = None
            if self.rules.settling[0]:
                self._rest(key)
            self._see_whether_empty()

    def _see_whether_empty(self) -> None:
        """Where nobody waits, all have had their turns."""
        if not self.size:
            self.clock = self._latest
            self._resting.clear()

    def remove(self, first: int, count: int) -> list[ReadyRun]:
        found: list[ReadyRun] = []
        if not self.size:
            return found
        for number, start, size in self.keys.runs(first, count):
            key = self._known.get(number)
            if key is None:
                if start <= self.singles.find(number) < start + size:
                    found.append(ReadyRun(self.singles.remove(number)[0], 1, NEVER, 0))
                    self.size -= 1
                continue
            line = key.line
            if line is None:
                continue
            for run in line.remove(start, size):
                found.append(run)
                self._left(key, line, run.count, run.priority)
            self._touch(key)
        self._see_whether_empty()
        return found

    def expire(self, now: int) -> list[ReadyRun]:
        gone: list[ReadyRun] = []
        ends = self._ends
        while ends and ends[0][0] <= now:
            _, number = heapq.heappop(ends)
            key = self._known.get(number)
            line = None if key is None else key.line
            if key is None or line is None:
                continue
            for run in line.expire(now):
                gone.append(run)
                self._left(key, line, run.count, run.priority)
                self._touch(key)
            if key.line is not None and line.soonest < NEVER:
                heapq.heappush(ends, (line.soonest, number))
        self.soonest = ends[0][0] if ends else NEVER
        return sorted(gone, key=_first)

    def overlap(self, first: int, count: int) -> list[ReadyRun]:
        if not self.size:
            return []
        if count > 2 * self.size + _SPARE:  # more than there are
            runs = [run for line in self._lines() for run in line.overlap(first, count)]
            singles = (ReadyRun(at, 1, NEVER, 0) for at in self.singles.offsets() if first <= at < first + count)
            return sorted([*runs, *singles], key=_first)
        found: list[ReadyRun] = []
        for number, start, size in self.keys.runs(first, count):
            key = self._known.get(number)
            if key is None:
                single = self.singles.find(number)
                if start <= single < start + size:
                    found.append(ReadyRun(single, 1, NEVER, 0))
            elif key.line is not None:
                found += key.line.overlap(start, size)
        return found

    def oldest(self, before: int) -> ReadyRun | None:
        if not self.size:
            return None
        if not self._oldest:
            self._oldest = [
                (priority, first, count, key.number)
                for key in self._known.values()
                if key.line is not None
                for priority, _, level in key.line.levels()
                for first, count, _ in level.runs()
            ]
            heapq.heapify(self._oldest)
        passed = []
        found: ReadyRun | None = None
        while self._oldest and found is None:
            priority, first, count, number = self._oldest[0]
            key = self._known.get(number)
            runs = [] if key is None or key.line is None else key.line.overlap(first, count)
            runs = [run for run in runs if run.priority == priority]
            if not runs:
                heapq.heappop(self._oldest)
            elif (run := min(runs, key=_first)).first < before:
                found = ReadyRun(run.first, min(run.count, before - run.first), run.deadline, priority)
            else:
                passed.append(heapq.heappop(self._oldest))
        for entry in passed:
            heapq.heappush(self._oldest, entry)
        if self.singles.size:
            single = self.singles.front()
            if single < before and (found is None or found.priority or single < found.first):
                return ReadyRun(single, 1, NEVER, 0)
        return found

    def levels(self) -> Iterator[tuple[int, bool, ReadyList]]:
        """As for any queue; the messages of all keys in the order of their offsets."""
        runs: dict[tuple[int, bool], list[tuple[int, int, int]]] = {}
        if self.singles.size:
            runs[0, self.rules.holds] = [(offset, 1, NEVER) for offset in self.singles.offsets()]
        for line in self._lines():
            for priority, front, level in line.levels():
                runs.setdefault((priority, front), []).extend(level.runs())
        for priority, front in sorted(runs, key=_in_order):
            merged = ReadyList()
            for first, count, deadline in sorted(runs[priority, front]):
                merged.append(first, count, deadline)
            yield priority, front, merged

    @property
    def by_rank(self) -> tuple[int, int]:
        return self._high, self.size - self._high

    def load(self, priority: int, front: bool, columns: bytes) -> None:
        data = array("q")
        data.frombytes(columns)
        for at in range(0, len(data), 3):
            self.add(priority, front, data[at], data[at + 1], data[at + 2])

    def freeze(self) -> list[tuple[int, bool, list[Chunk]]]:
        """The lines as they are now, one key after the other, and before them what is to be `singles` again."""
        levels: dict[tuple[int, bool], Chunk] = {}
        if self.singles.size:
            singles = levels[0, self.rules.holds] = Chunk()
            singles.data = self.singles.runs()
        for line in self._lines():
            for priority, front, level in line.levels():
                chunk = levels.get((priority, front))
                if chunk is None:
                    chunk = levels[priority, front] = Chunk()
                for run in level.runs():
                    chunk.data.extend(run)
        return [(*level, [levels[level]]) for level in sorted(levels, key=_in_order)]

    def thaw(self) -> None:
        pass  # what was frozen is a copy

    def _lines(self) -> Iterator[ReadyMessages]:
        for key in self._known.values():
            if key.line is not None:
                yield key.line


def _first(run: ReadyRun) -> int:
    return run.first


def _in_order(level: tuple[int, bool]) -> tuple[int, bool]:
    return -level[0], not level[1]
