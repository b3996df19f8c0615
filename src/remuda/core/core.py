"""The core decides: commands and the time go in, results come back, and what follows is drained as effects.

It is composed of parts with one duty each: `Registry` (queues come, change and go), `Publishing`, `Consuming`,
`Operating`, `Exchanging` and, after a restart, `Replaying`. None owns a file, a thread or a clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from remuda.core.compacter import Compacter
from remuda.core.consuming import Consuming
from remuda.core.effects import Effects
from remuda.core.exchanging import Exchanging
from remuda.core.extensions import FactsOf, HandlerFor, MessageOf, StrategyFor, no_handler, unknown, unreadable
from remuda.core.operating import Begun, Operating
from remuda.core.publishing import Publishing
from remuda.core.queues.queue import Queue
from remuda.core.queues.strategies import by_type
from remuda.core.recorder import Recorder
from remuda.core.recovery.reloading import Left, adopt
from remuda.core.recovery.replaying import Replaying
from remuda.core.recovery.spool import Spool
from remuda.core.registry import Registry
from remuda.core.routing import Routing
from remuda.model.ids import Snowflakes
from remuda.model.operations import commands as verbs
from remuda.model.operations.commands import Command
from remuda.model.operations.filters import MessageFilter, Which
from remuda.model.operations.results import ParkedMessage, QueueInfo
from remuda.model.queues.flow_info import FlowInfo
from remuda.model.queues.options import QueueOptions
from remuda.model.records import CREATED, QueueChange, Record
from remuda.model.state import State
from remuda.model.topic_types import TopicTypes


class Core:
    """All queues of one broker."""

    def __init__(
        self,
        snowflakes: Snowflakes,
        *,
        auto_queue_creation: bool = True,
        default_queue: str | None = None,
        default_options: QueueOptions | None = None,
        compacter: Compacter | None = None,
        types: TopicTypes | None = None,
        strategy_for: StrategyFor = by_type,
        handler_for: HandlerFor = no_handler,
        facts_of: FactsOf = unknown,
        message_of: MessageOf = unreadable,
    ) -> None:
        self.snowflakes = snowflakes
        self.compacter = compacter or Compacter()
        self.recorder = Recorder()
        self.routing = Routing(default_queue)
        self.spool = Spool()
        self.registry = registry = Registry(
            self.recorder,
            self.routing,
            auto_queue_creation=auto_queue_creation,
            default_options=default_options,
            strategy_for=strategy_for,
            handler_for=handler_for,
            facts_of=facts_of,
        )
        self.queues: dict[str, Queue] = registry.queues
        self.consuming = consuming = Consuming(registry)
        self.publishing = publishing = Publishing(registry, self.compacter, snowflakes, self.spool)
        publishing.message_of = message_of
        publishing.types = types
        registry.report = publishing.report
        self.operating = operating = Operating(registry)
        exchanging = Exchanging(self.recorder, self.routing)
        self._replaying = Replaying(registry, publishing, exchanging, self.compacter, snowflakes, self.spool)
        self._verbs: dict[type, Callable[[Any], Any]] = {
            verbs.Publish: publishing.publish,
            verbs.SkipSpooled: publishing.skip_spooled,
            verbs.Subscribe: consuming.subscribe,
            verbs.SetCredit: consuming.set_credit,
            verbs.Unsubscribe: consuming.unsubscribe,
            verbs.Pull: consuming.pull,
            verbs.CancelPull: consuming.cancel_pull,
            verbs.HandOver: consuming.hand_over,
            verbs.Settle: consuming.settle,
            verbs.Renew: consuming.renew,
            verbs.Reclaim: consuming.reclaim,
            verbs.Abandon: consuming.abandon,
            verbs.DeclareQueue: registry.declare,
            verbs.ConfigureQueue: registry.configure,
            verbs.SetStatus: registry.set_status,
            verbs.RemoveQueue: registry.remove,
            verbs.Clear: operating.clear,
            verbs.Reprocess: operating.reprocess,
            verbs.RequeueFront: operating.requeue_front,
            verbs.Forget: operating.forget,
            verbs.Move: operating.move,
            verbs.PauseKey: registry.pause_key,
            verbs.EndUnreadable: operating.end_unreadable,
            verbs.DeclareExchange: exchanging.declare,
            verbs.RemoveExchange: exchanging.remove,
            verbs.Bind: exchanging.bind,
            verbs.Unbind: exchanging.unbind,
        }

    def apply(self, command: Command, now: int) -> Any:
        """Carry out a command. Refusals are raised as Remuda's own errors, before anything has changed."""
        self.recorder.at(now)
        return self._verbs[type(command)](command)

    def tick(self, now: int) -> None:
        """Do what has become due."""
        self.recorder.at(now)
        self.registry.tick()

    def next_wake(self) -> int:
        """When `tick` will next have something to do."""
        return self.registry.next_wake()

    def drain(self) -> Effects:
        """The effects of all commands since the last drain."""
        return self.recorder.drain()

    # Questions

    def info(self, name: str) -> QueueInfo:
        return self.registry.info(name)

    def flow(self, name: str, limit: int, now: int) -> FlowInfo:
        self.recorder.at(now)
        return self.registry.flow(name, limit)

    def parked(self, name: str, chosen: MessageFilter, limit: int) -> list[ParkedMessage]:
        return self.operating.parked(name, chosen, limit)

    def waiting(self, name: str, which: Which) -> list[tuple[int, int]]:
        """The runs of messages that wait, delayed ones last; or those that are handled."""
        queue = self.registry.queue(name)
        if which is Which.HANDLED:
            return [(piece.first, piece.count) for piece in queue.flights if piece.state is State.FETCHED]
        delayed = [
            (piece.first, piece.count)
            for piece in queue.delayed
            if which is Which.WAITING or piece.redelivered == (which is Which.RETURNED)
        ]
        if which is Which.RETURNED:
            return delayed
        return [(first, count) for _, _, level in queue.ready.levels() for first, count, _ in level.runs()] + delayed

    def notes(self, name: str, offset: int, after: int = 0) -> list[int]:
        """The offsets of the notes on a message that is in this queue, or parked there, without the first ones."""
        return self.registry.queue(name).notes.places(offset, after)

    # Recovery

    @property
    def found(self) -> dict[str, int]:
        """Queues whose creation the log has lost, recreated for their messages, and how many of these were found."""
        return self._replaying.found

    def replay(self, record: Record) -> None:
        """Apply one record of the log."""
        self._replaying.replay(record)

    def learn_facts(self) -> None:
        """After the last record: look up the ids and sizes of messages that moved, for the limits of their queues."""
        self._replaying.learn_facts()

    def resume(self, now: int, begun: Begun = lambda event, first, count: None, *, keep: bool = False) -> None:
        """After the last record: put back all deliveries, and end the messages that memory queues have lost.

        With `keep`, consumers may have survived the restart: deliveries stay in flight until they are reclaimed, and
        `release_unclaimed` puts back the rest.
        """
        self.recorder.at(now)
        self.learn_facts()
        retracted = self.spool.retract(self.recorder.now)
        if retracted is not None:
            self.recorder.change(retracted)
        for name in self.found:
            # Recorded, so that the next start finds the queue as this one leaves it.
            queue = self.queues[name]
            self.recorder.change(QueueChange(CREATED, name, self.recorder.now, queue.options, queue.status))
        self.publishing.wake_unheard()
        self.operating.resume(begun, keep=keep)

    def go_on(self, old: Core, now: int, left: Left) -> None:
        """After the last record, in the process that wrote it: an error interrupted a command of the `old` core, whose
        consumers go on with this one."""
        recorder, before = self.recorder, old.recorder
        recorder.at(max(now, before.now))
        recorder.go_on(before)
        self.learn_facts()
        retracted = self.spool.retract(recorder.now)
        if retracted is not None:
            recorder.change(retracted)
        self.consuming.joined = old.consuming.joined
        adopt(self.registry, old.registry, left)

    def release_unclaimed(self, now: int, begun: Begun) -> None:
        """Put back the deliveries that no consumer reclaimed in the time it had for that."""
        self.recorder.at(now)
        self.operating.release_unclaimed(begun)
