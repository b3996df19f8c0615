"""Declares, configures and creates queues. What RabbitMQ does not store of them is in the definitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from remuda.broker.options import BrokerOptions
from remuda.broker.rabbitmq.shared_state import queue_definitions as defined
from remuda.broker.rabbitmq.shared_state.definitions_journal import Definitions
from remuda.broker.rabbitmq.shared_state.queue_definitions import QueueDefinition, change
from remuda.broker.rabbitmq.shared_state.rabbit_topology import RabbitTopology
from remuda.broker.rabbitmq.support import DEAD, refuse, refuse_change
from remuda.model.errors import BrokerClosed, Conflict, InvalidOption, NotFound, RemudaError
from remuda.model.operations.commands import ConfigureQueue, DeclareQueue, NamedOptions, SetStatus
from remuda.model.operations.results import Declared, Differences, differences
from remuda.model.queues.options import AutoDestroy, QueueOptions, Status
from remuda.model.values.texts import BROKER_CLOSED, no_queue


class Queues:
    """Creates and changes queues. Waits for RabbitMQ."""

    def __init__(
        self,
        definitions: Definitions,
        topology: RabbitTopology,
        options: BrokerOptions,
        clock: Callable[[], int],
    ) -> None:
        self.closed = False
        self._definitions = definitions
        self._topology = topology
        self._options = options
        self._clock = clock

    def check_open(self) -> None:
        if self.closed:
            raise BrokerClosed(BROKER_CLOSED)

    def definition(self, name: str) -> QueueDefinition:
        try:
            return self._definitions.queues[name]
        except KeyError:
            raise NotFound(no_queue(name, self._definitions.queues)) from None

    def declare(self, command: DeclareQueue, status: Status = Status.RUNNING) -> Declared:
        self.check_open()
        name = command.queue
        known = self._definitions.queues.get(name)
        created = False
        if known is None:
            check_name(name)
            options = self._with_defaults(command.options)
            refuse(options)
            kept = None if status is Status.RUNNING else status
            proposed = change(defined.CREATED, name, self._clock(), options=options, status=kept)
            created = self._definitions.propose(proposed)
            known = self.definition(name)
        elif known.status is Status.NOT_INITIALIZED and status is Status.RUNNING:
            options = known.options.with_values(command.options or {})
            refuse(options)
            created = self._definitions.propose(change(defined.INITIALIZED, name, self._clock(), options=options))
            known = self.definition(name)
        elif command.options is not None:
            refuse(known.options.with_values(command.options))
        if known.status is Status.NOT_INITIALIZED:
            return Declared(created, {})
        try:
            self._topology.make(name, known)
        except RemudaError:
            if created:
                self._definitions.propose(change(defined.REMOVED, name, self._clock()))
            raise
        if created:
            for target in (known.options.expired_queue, known.options.dead_letter_queue):
                if target is not None and target not in self._definitions.queues:
                    self.ensure(target)
        return Declared(created, {} if created else differences(command.options, known.options))

    def ensure(self, name: str, named: NamedOptions = None, status: Status = Status.RUNNING) -> QueueDefinition:
        """Make sure that a queue exists, here and in RabbitMQ; create it if that is allowed. A subscriber that sets no
        type leaves it to others to initialize it."""
        self.check_open()
        known = self._definitions.queues.get(name)
        if known is None or (known.status is Status.NOT_INITIALIZED and status is Status.RUNNING):
            self._check_creation(name, known)
            self.declare(DeclareQueue(name, named), status)
            return self.definition(name)
        if known.status is not Status.NOT_INITIALIZED:
            self._topology.make(name, known)
        return known

    def ensure_all(self, names: Sequence[str], named: NamedOptions) -> dict[str, Differences]:
        """Make sure that all queues to publish to exist. If one may not be created, none is."""
        if not self._options.auto_queue_creation:
            for name in names:
                if name not in self._definitions.queues:
                    self.ensure(name)
        differs = {}
        for name in names:
            existed = name in self._definitions.queues
            known = self.ensure(name, named)
            if existed and (found := differences(named, known.options)):
                differs[name] = found
        return differs

    def configure(self, command: ConfigureQueue) -> QueueOptions:
        self.check_open()
        known = self.definition(command.queue)
        options = known.options.with_values(command.options)
        if known.status is Status.NOT_INITIALIZED:
            refuse(options)
        else:
            if options.type is not known.options.type:
                raise InvalidOption(
                    f"queue {command.queue!r} is a {known.options.type.value} queue and stays one; "
                    "create another queue for another type"
                )
            refuse_change(known.options, options)
            self._topology.make(command.queue, known)
            self._topology.rebind(command.queue, known.options, options)
        self._definitions.propose(
            change(defined.CONFIGURED, command.queue, self._clock(), options=options, who=command.who)
        )
        return options

    def set_status(self, command: SetStatus) -> None:
        self.check_open()
        known = self.definition(command.queue)
        if Status.NOT_INITIALIZED in (command.status, known.status):
            raise Conflict(
                f"queue {command.queue!r} is {known.status.value} and cannot be set to {command.status.value}; "
                "the first publish, or creating it with a type, initializes a queue"
            )
        self._definitions.propose(
            change(defined.STATUS, command.queue, self._clock(), status=command.status, who=command.who)
        )

    def forget_destroyed(self, queue: str, definition: QueueDefinition) -> bool:
        """Remove the definition of a queue that RabbitMQ deleted after its last consumer. Returns whether it did."""
        by_itself = definition.options.auto_destroy is AutoDestroy.NO_CONSUMERS
        if by_itself and not self._topology.knows(queue):
            self._definitions.propose(change(defined.REMOVED, queue, self._clock()))
            return True
        return False

    def _check_creation(self, name: str, known: QueueDefinition | None) -> None:
        if known is None and not self._options.auto_queue_creation:
            raise NotFound(
                f"there is no queue {name!r} and auto_queue_creation is off; nothing was stored or created. "
                f"Create it first: broker.create_queue({name!r})"
            )

    def _with_defaults(self, named: NamedOptions) -> QueueOptions:
        return self._options.queue_defaults if named is None else self._options.queue_defaults.with_values(named)


def check_name(name: str) -> None:
    """Raise for a name that no queue can have on RabbitMQ."""
    if name.startswith("amq."):
        raise InvalidOption(f"queue {name!r} cannot be created: RabbitMQ reserves names that begin with amq.")
    if len((name + DEAD).encode()) > 255:
        raise InvalidOption(
            f"queue {name[:40]!r}… cannot be created: with {DEAD!r} for its dead letters, its name is longer than 255 "
            "bytes"
        )
    if name.endswith(DEAD):
        raise InvalidOption(f"queue {name!r} cannot be created: names that end with {DEAD!r} are for dead letters")
