"""Rules of alarms, one on each line, and which queues break them.

orders*: waiting > 1000 for 5m
*: oldest > 10m
billing: dead letters > 5 in 10m
*: no consumer for 1m
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from remuda.bus.verbs import like
from remuda.model.errors import InvalidOption
from remuda.model.values.durations import HOUR, micros, text
from remuda.model.values.texts import counted
from remuda.server.http.service_values import QueueSummary

_log = logging.getLogger("remuda.server")
FILE: Final = "alerts.txt"
"""Where the rules of a directory are unless another file is named."""
_RULE: Final = re.compile(
    r"(?P<queues>.+?)\s*:\s+(?:(?P<what>waiting|dead letters|oldest)\s*>\s*(?P<bound>\S+)(?:\s+in\s+(?P<window>\S+))?"
    r"|(?P<nobody>no consumer))(?:\s+for\s+(?P<hold>\S+))?"
)
DeadSince = Callable[[int], dict[str, int]]
"""How many messages of each queue ended without success since a time."""


class Rule(msgspec.Struct, frozen=True):
    """What a queue must not do."""

    line: str
    queues: str
    """A name, in which * stands for any characters."""
    what: str
    """`waiting`, `oldest`, `dead letters` or `no consumer`."""
    bound: int = 0
    window: int = 0
    """For dead letters: how far back they are counted; 0 for all there are."""
    hold: int = 0
    """How long it must be so before there is an alarm."""

    def fits(self, queue: QueueSummary) -> bool:
        return like(self.queues, queue.name)

    def broken(self, queue: QueueSummary, now: int, dead: dict[str, int]) -> str | None:
        """What is wrong with a queue, in words; None if nothing is."""
        if self.what == "no consumer":
            return (
                f"{queue.waiting:,} wait, and no consumer takes them" if queue.waiting and not queue.consumers else None
            )
        if self.what == "oldest":
            age = now - queue.oldest if queue.oldest is not None else 0
            return f"the oldest message waits for {text(age // 1_000_000 * 1_000_000)}" if age > self.bound else None
        if self.what == "waiting":
            return (
                f"{counted(queue.waiting, 'message')} wait{'s' * (queue.waiting == 1)}"
                if queue.waiting > self.bound
                else None
            )
        count = dead.get(queue.name, 0) if self.window else queue.parked
        within = f" in {text(self.window)}" if self.window else ""
        return f"{counted(count, 'dead letter')}{within}" if count > self.bound else None


class Alarm(msgspec.Struct, frozen=True, rename="camel"):
    """A queue that breaks a rule."""

    queue: str
    rule: str
    what: str
    since: int


class Change(msgspec.Struct, frozen=True):
    """An alarm that began or ended."""

    alarm: Alarm
    began: bool


class Watch:
    """Judges queues by rules, again and again. Rules of a file are read again when it changes."""

    def __init__(self, rules: Sequence[Rule] = (), file: Path | None = None) -> None:
        self.rules = tuple(rules)
        self.trouble: str | None = None
        """Why the file's rules are not followed, but those that were read before."""
        self._file = file
        self._version: tuple[int, int] | None = None
        self._lock = threading.Lock()
        self._broken: dict[tuple[str, str], int] = {}
        """Since when a queue breaks a rule, by queue and rule."""
        self.alarms: tuple[Alarm, ...] = ()

    def has_work(self) -> bool:
        """Read the file again if it has changed; tells whether there is anything to judge, or an alarm to end."""
        if self._file is not None:
            try:
                found = self._file.stat()
                version = (found.st_mtime_ns, found.st_size)
            except OSError:
                version = None
            if version != self._version:
                self._version = version
                try:
                    self.rules = () if version is None else tuple(rules_of(self._file))
                    self.trouble = None
                except InvalidOption as error:
                    self.trouble = str(error)
                    _log.warning("the rules of alarms are not followed: %s", error)
        return bool(self.rules or self.alarms)

    def judge(self, queues: Iterable[QueueSummary], dead_since: DeadSince, now: int) -> list[Change]:
        """Look at the queues; returns what began and what ended since the last look."""
        with self._lock:
            return self._judge(queues, dead_since, now)

    def _judge(self, queues: Iterable[QueueSummary], dead_since: DeadSince, now: int) -> list[Change]:
        dead = {rule.window: dead_since(now - rule.window) for rule in self.rules if rule.window}
        broken: dict[tuple[str, str], int] = {}
        found: list[Alarm] = []
        for queue in queues:
            for rule in self.rules:
                if not rule.fits(queue):
                    continue
                what = rule.broken(queue, now, dead.get(rule.window, {}))
                if what is not None:
                    key = queue.name, rule.line
                    since = broken[key] = self._broken.get(key, now)
                    if now - since >= rule.hold:
                        found.append(Alarm(queue.name, rule.line, what, since))
        self._broken = broken
        before = {(one.queue, one.rule): one for one in self.alarms}
        after = {(one.queue, one.rule): one for one in found}
        self.alarms = tuple(found)
        return [
            *(Change(one, True) for key, one in after.items() if key not in before),
            *(Change(one, False) for key, one in before.items() if key not in after),
        ]


def read_rules(lines: Iterable[str], where: str = "rule") -> list[Rule]:
    """The rules on lines; empty ones and those that begin with # are left out."""
    plain = (line.strip() for line in lines)
    return [_read(line, where) for line in plain if line and not line.startswith("#")]


def rules_of(path: Path) -> list[Rule]:
    try:
        return read_rules(path.read_text("utf-8").splitlines(), str(path))
    except UnicodeDecodeError:
        raise InvalidOption(f"{str(path)!r} is not text in UTF-8") from None
    except OSError as error:
        raise InvalidOption(f"the rules {str(path)!r} cannot be read: {error.strerror}") from None


def _read(line: str, where: str) -> Rule:
    found = _RULE.fullmatch(line)
    if found is None:
        raise InvalidOption(
            f"{where}: {line[:80]!r} is not a rule; write QUEUES: waiting > 1000, oldest > 10m, dead letters > 5 in "
            "10m, or no consumer, each with for 5m if it has to last; * in QUEUES stands for any characters"
        )
    what = found["what"] or "no consumer"
    hold = micros(found["hold"]) if found["hold"] else 0
    window = micros(found["window"]) if found["window"] else 0
    if window and (what != "dead letters" or not 60_000_000 <= window <= HOUR):
        raise InvalidOption(f"{where}: {line[:80]!r}: only dead letters are counted in a time, of 1m to 1h")
    if what == "no consumer":
        return Rule(line, found["queues"], what, 0, 0, hold)
    given = found["bound"]
    if what == "oldest":
        return Rule(line, found["queues"], what, micros(given), 0, hold)
    if not (given.isascii() and given.isdigit() and len(given) < 16):
        raise InvalidOption(f"{where}: {line[:80]!r}: {given!r} is not a whole number")
    return Rule(line, found["queues"], what, int(given), window, hold)
