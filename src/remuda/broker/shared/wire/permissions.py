"""What a user of the wire may do: configure, write and read are granted for patterns of names, and checked before
anything happens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from remuda.model.document import Document
from remuda.model.errors import NotAllowed
from remuda.model.notes import NOTE
from remuda.model.operations.commands import (
    ON_THE_WIRE,
    Access,
    Bind,
    DeclareExchange,
    Publish,
    Pull,
    Settle,
    Unbind,
    needs_of,
)
from remuda.model.operations.worker_orders import Orders, Worker
from remuda.model.queues.routing import ALTERNATE, Binding
from remuda.model.topics import root

CONFIGURE: Final = Access.CONFIGURE
WRITE: Final = Access.WRITE
READ: Final = Access.READ
OF_VHOSTS: Final = "vhost:"
"""What the names of AMQP's vhosts begin with, except those of `/`: nobody has access to them here."""
_KNOWN: Final = 10_000
_NEEDS: Final = {command: needs_of(command) for command in ON_THE_WIRE}
_OF_A_QUEUE: Final = frozenset({"flow", "notes", "parked", "waiting"})
_HARMLESS: Final = frozenset(
    {
        "health", "flush", "watch", "notices", "queues", "exchanges", "document", "known",
        "workers", "tell_worker", "worker_left",
    }
)  # fmt: skip
"""Queries that every user may ask; what they may not see is left out of the answer."""


class Grants(msgspec.Struct, frozen=True):
    """For each kind of access, the pattern of names that it is granted for; None for no names."""

    user: str
    configure: str | None = None
    write: str | None = None
    read: str | None = None


class Permissions:
    """One user's grants, and what each command needs. Raises `NotAllowed` with the user, the access and the name."""

    def __init__(self, grants: Grants) -> None:
        self.grants = grants
        self._patterns: dict[str, re.Pattern[str]] = {
            access: re.compile(pattern)
            for access in (CONFIGURE, WRITE, READ)
            if (pattern := getattr(grants, access)) is not None
        }
        self._known: dict[tuple[str, str], bool] = {}

    def may(self, access: str, name: str) -> bool:
        granted = self._known.get((access, name))
        if granted is None:
            pattern = self._patterns.get(access)
            granted = pattern is not None and not name.startswith(OF_VHOSTS) and pattern.search(name) is not None
            if len(self._known) >= _KNOWN:
                self._known.clear()
            self._known[access, name] = granted
        return granted

    def sees(self, name: str) -> bool:
        """Whether any access to a queue or an exchange is granted."""
        return any(self.may(access, name) for access in self._patterns)

    def check(self, access: str, kind: str, name: str) -> None:
        if not self.may(access, name):
            raise self._refusal(f"{access} access to {kind} {name!r}")

    def _refusal(self, what: str) -> NotAllowed:
        return NotAllowed(
            f"{what} is refused for user {self.grants.user!r}; nothing was changed. "
            "Have it granted in the server's users file"
        )

    # Commands

    def check_command(self, command: Any) -> None:
        if isinstance(command, Publish):
            self._check_publish(command)
            return
        needs = _NEEDS.get(type(command))
        if needs is None:
            raise self._refusal(f"{type(command).__name__} over the wire")
        for field, need in needs:
            self.check(need.access, need.kind, getattr(command, field))
        self._check_options(getattr(command, "queue", ""), getattr(command, "options", None))
        match command:
            case Pull(clear_after=clears) if clears != "none":
                self.check(CONFIGURE, "queue", command.queue)
            case Settle() if command.settlement.to is not None:
                self.check(WRITE, "queue", command.settlement.to)
            case DeclareExchange():
                for binding in command.bindings:
                    self._check_target(binding)
            case Bind() | Unbind():
                self._check_target(command.binding)

    def _check_publish(self, command: Publish) -> None:
        if command.exchange is not None:
            self.check(WRITE, "router", command.exchange)
        elif command.queue is not None:
            self.check(WRITE, "queue", command.queue)
        else:
            for topic in _topics_of(command):
                if command.note is None or topic != NOTE:
                    self.check(WRITE, "topic", topic)
        if command.note is not None:
            self.check(READ, "queue", command.note.queue)
        if command.unbound is not None:
            self.check(WRITE, "queue", command.unbound)
        if command.options:
            for name in (command.queue, command.unbound):
                if name is not None:
                    self._check_options(name, command.options)
            if command.queue is None and command.unbound is None:
                for topic in _topics_of(command):
                    self._check_options(root(topic), command.options)

    def _check_options(self, queue: str, options: Mapping[str, Any] | None) -> None:
        """Options can create a queue, fill it from topics, and make it fill other queues."""
        if not options:
            return
        self.check(CONFIGURE, "queue", queue)
        for name in ("topics", "patterns"):
            for topic in options.get(name) or ():
                self.check(READ, "topic", topic)
        for name in ("dead_letter_queue", "expired_queue"):
            target = options.get(name)
            if target:
                self.check(READ, "queue", queue)
                self.check(WRITE, "queue", target)

    def _check_target(self, binding: Binding) -> None:
        for kind, name in (
            ("queue", binding.queue), ("topic", binding.topic), ("router", binding.exchange),
            ("router", binding.arguments.get(ALTERNATE)),
        ):  # fmt: skip
            if name is not None:
                self.check(WRITE, kind, str(name))

    # Queries

    def check_query(self, query: str, values: tuple[Any, ...]) -> None:
        if query == "info":
            if not self.sees(values[0]):
                raise self._refusal(f"any access to queue {values[0]!r}")
        elif query == "cancel_running":  # as to clear it, or to answer for it
            self.check(CONFIGURE, "queue", values[0])
        elif query in _OF_A_QUEUE:
            self.check(READ, "queue", values[0])
        elif query not in _HARMLESS:
            what = "reading the log" if query.startswith("log_") else query
            raise self._refusal(f"{what}, which needs full access to all names,")

    def only_seen(self, query: str, answer: Any) -> Any:
        """An answer without what the user may not see."""
        if query == "queues":
            return [info for info in answer if self.sees(info.name)]
        if query == "exchanges":
            return {name: exchange for name, exchange in answer.items() if self.sees(name)}
        if query == "workers":
            return [seen for worker in answer if (seen := self._seen_of(worker)).queues]
        if isinstance(answer, Orders):
            cancel = tuple(one for one in answer.cancel if self.may(READ, one.queue))
            return msgspec.structs.replace(answer, cancel=cancel)
        if isinstance(answer, Document):
            views = tuple(view for view in answer.queues if self.may(READ, view.queue))
            if not views:
                raise self._refusal(f"read access to every queue of message {answer.message.id!r}")
            return msgspec.structs.replace(answer, queues=views)
        return answer

    def _seen_of(self, worker: Worker) -> Worker:
        """A worker as a user sees it: with the queues that it may read, and without the id by which others know it."""
        return msgspec.structs.replace(
            worker,
            id="",
            queues=tuple(queue for queue in worker.queues if self.may(READ, queue.name)),
            running=tuple(call for call in worker.running if self.may(READ, call.queue)),
        )


def _topics_of(command: Publish) -> set[str]:
    """Every topic that a batch goes to."""
    messages = command.messages
    alike = not isinstance(messages.name, list) and not isinstance(messages.topics, list)
    rows = range(min(len(messages.bodies), 1 if alike else len(messages.bodies)))
    return {topic for row in rows for topic in messages.topics_of(row)}
