"""The worker: intake, worker threads and a publisher, each monitored by name."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from importlib.metadata import version as installed_version
from types import TracebackType
from typing import Final

import msgspec

from remuda.amqp.client.amqp_delivery import Delivery
from remuda.amqp.client.channel import Channel
from remuda.amqp.client.confirms import Outgoing
from remuda.amqp.client.connection import Connection
from remuda.amqp.client.consumer import Consumer
from remuda.amqp.codec.properties import PERSISTENT, Properties, encode_properties
from remuda.amqp.connection_options import parse_url
from remuda.amqp.errors import AmqpError, Closed, ConsumerCancelled
from remuda.model.errors import Conflict, InvalidOption, RemudaError
from remuda.model.values.durations import SECOND, Duration
from remuda.model.values.option_reading import read_duration
from remuda.model.values.texts import shown
from remuda.signals import wait_for_event
from remuda.worker import stamps
from remuda.worker.config import WorkerConfig
from remuda.worker.factory import Answer, InvalidTask, NotNow, WorkerFactory, factory_of, results_of
from remuda.worker.gate import Gate
from remuda.worker.health import HealthServer, Part
from remuda.worker.inputs import Input, Inputs, Shipment
from remuda.worker.jobs import Jobs, JobStatus
from remuda.worker.metrics import Counts
from remuda.worker.publisher import ResultPublisher
from remuda.worker.tasks import (
    Result,
    SourceInfo,
    Task,
    TaskAborted,
    TaskMessage,
    TaskStatus,
    encode_task,
    new_task_id,
)

_LOG: Final = logging.getLogger("remuda.worker")
_POLL: Final = 0.5
_HELD: Final = 0.05
_OUTCOMES: Final = {
    TaskStatus.RESULT_SUCCESS: "success",
    TaskStatus.RESULT_FAILURE: "failure",
    TaskStatus.RESULT_EXCEPTION: "exception",
    TaskStatus.INVALID_TASK: "invalid",
}


class Worker:
    """Runs tasks from RabbitMQ and sends their results.

        worker = Worker(WorkerConfig(input_queue="tasks", output_queue="results"), handle)
        worker.run()

    `handle` is a function of a `Task`, or a `WorkerFactory`.
    """

    def __init__(
        self,
        config: WorkerConfig,
        factory: WorkerFactory | Callable[[Task], Answer],
        *,
        name: str = "remuda-worker",
        version: str = "",
    ) -> None:
        if not isinstance(config, WorkerConfig):
            raise InvalidOption(f"config must be a WorkerConfig, not a {type(config).__name__}")
        if not isinstance(name, str) or not 0 < len(name.encode("utf-8", "replace")) <= 200:
            raise InvalidOption(f"name must be a string of 1 to 200 bytes, not {shown(name)}")
        if not isinstance(version, str) or len(version.encode("utf-8", "replace")) > 100:
            raise InvalidOption(f"version must be a string of at most 100 bytes, not {shown(version)}")
        self.config = config
        self.name = name
        self.counts = Counts()
        self.inputs = Inputs()
        self.failure: RemudaError | None = None
        """Why the worker cannot continue, if it cannot."""
        self._factory = factory_of(factory)
        self._source = SourceInfo(name, version or installed_version("remuda"))
        self._jobs = Jobs()
        self._gate = Gate(self._factory.health_check, config.return_delay)
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._work: queue.SimpleQueue[Input | None] = queue.SimpleQueue()
        self._started = self._running = False
        self._connecting = True
        self._patience = config.grace
        self._guard = threading.Lock()
        self._consumer: Consumer | None = None
        self._health: HealthServer | None = None
        options = parse_url(config.url, attempts=config.attempts)
        replace = msgspec.structs.replace
        self._intake = Connection(replace(options, name=f"{name} intake"), on_change=self._changed)
        self._results = Connection(replace(options, name=f"{name} results"), on_change=self._changed)
        self._intake_channel: Channel
        self._publisher: ResultPublisher
        self._threads: list[threading.Thread] = []

    # Starting and stopping.

    def start(self) -> None:
        """Connect, declare the queues and start. Raises an error of one clear line if that fails (W1)."""
        if self._started:
            raise Conflict("this worker was started before; create another one")
        self._started = True
        try:
            self._connect()
            results_channel = self._results.channel(confirms=True)
            self._declare(results_channel)
            self._intake_channel = self._intake.channel(prefetch=self.config.prefetch)
            self._publisher = ResultPublisher(results_channel, self.inputs, self.counts, self.config.return_delay)
            if self.config.threads + self.config.prefetch_buffer > self.config.prefetch:
                _LOG.warning("prefetch_buffer: AMQP fetches %d tasks at most, so no more are", self.config.prefetch)
            if self._gate.is_open():
                self._consumer = self._intake_channel.consume(self.config.input_queue)
            if self.config.health_port is not None:
                self._health = HealthServer(self, self.config.health_address, self.config.health_port)
        except BaseException as error:
            self._close()
            if isinstance(error, RemudaError):
                self.failure = error
            self._ended.set()  # so that `run` and `stop` do not wait
            raise
        self._results_channel = results_channel
        self._threads = [threading.Thread(target=self._take_in, name="worker intake", daemon=True)]
        for number in range(1, self.config.threads + 1):
            self._threads.append(threading.Thread(target=self._do_work, name=f"worker task {number}", daemon=True))
        for thread in (self._publisher, *self._threads):
            thread.start()
        with self._guard:
            self._running = True
            stopped = self._stopping.is_set()
        self._changed()
        if stopped:
            self._stop_in_background(self._patience)

    def run(self) -> None:
        """Work until `stop` is called or the broker is lost for good."""
        if not self._started:
            self.start()
        wait_for_event(self._ended)
        if self.failure is not None:
            raise self.failure

    def stop(self, grace: Duration | None = None) -> None:
        """Stop taking tasks, finish those accepted, and end (W7).

        After `grace`, tasks that have not begun go back to the input queue, which does not count as a retry; tasks that
        still run are asked to abort, and the broker delivers them again. A task may stop its own worker; this returns
        at once then. A `start` in another thread raises an error if the worker is not yet connected; otherwise the
        worker starts, and stops by itself.
        """
        patience = self.config.grace if grace is None else read_duration("grace", grace) / SECOND
        if not self._started or self._ended.is_set():
            return
        with self._guard:
            self._stopping.set()
            self._patience = patience
            running, connecting = self._running, self._connecting
        if running:
            if threading.current_thread() in self._threads:
                self._stop_in_background(patience)
            else:
                self._stop(patience)
        elif connecting:  # so that `start` raises, even if the broker is down
            self._intake.close()
            self._results.close()

    @property
    def stopping(self) -> bool:
        """Whether it was asked to stop, or cannot continue."""
        return self._stopping.is_set()

    def _connect(self) -> None:
        self._intake.open()
        self._results.open()
        with self._guard:
            self._connecting = False
            if self._stopping.is_set():
                raise Conflict("the worker was stopped before it was connected")

    def _stop_in_background(self, patience: float) -> None:
        threading.Thread(target=self._stop, args=(patience,), name="worker end", daemon=True).start()

    def _stop(self, patience: float) -> None:
        deadline = time.monotonic() + patience
        self._threads[0].join(max(deadline - time.monotonic(), 1.0))
        self._await_empty(deadline)
        for held in self.inputs.all():
            if held.begin():
                self._publisher.send(Shipment(held, [self._again(held.delivery)], "not-now"))
            else:
                held.abort()
        self._await_empty(time.monotonic() + 2.0, aborted_too=False)
        self._end()

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop(None if error is None else 0.0)

    @property
    def health_port(self) -> int | None:
        """The port on which health is served, if it is."""
        return None if self._health is None else self._health.port

    @property
    def strays(self) -> int:
        """Confirms that came for results which were not sent."""
        return self._results_channel.tracker.strays if self._threads else 0

    def health(self) -> list[Part]:
        """Every part by name, with its problem if it has one (W6)."""
        if not self._started or not self._threads:
            return [Part("worker", "not started")]
        parts = [
            _connection_part("intake connection", self._intake),
            _channel_part("intake channel", self._intake, self._intake_channel),
            self._consumer_part(),
            _connection_part("results connection", self._results),
            _channel_part("results channel", self._results, self._results_channel),
        ]
        for thread in (self._publisher, *self._threads):
            name = thread.name.removeprefix("worker ")
            parts.append(Part(f"{name} thread", "" if thread.is_alive() else "ended", vital=True))
        parts += [Part("worker", self._gate.sick), Part("intake", self._gate.problem)]
        if self.failure is not None:
            parts.append(Part("broker", str(self.failure), vital=True))
        return parts

    # The intake thread.

    def _take_in(self) -> None:
        try:
            while not self._stopping.is_set():
                if not self._gate.is_open():
                    self._hold()
                    self._stopping.wait(_HELD)
                    continue
                consumer = self._consumer
                try:
                    if consumer is None:
                        self._consume_again()
                        continue
                    deliveries = consumer.get(1000, _POLL)
                except ConsumerCancelled as cancelled:
                    _LOG.warning("%s", cancelled)
                    self._consumer = None
                    continue
                for delivery in deliveries:
                    self._receive(delivery)
            if self._consumer is not None and self._intake_channel.open:
                self._consumer.cancel()
                while deliveries := self._consumer.get(1000, 0):
                    for delivery in deliveries:
                        self._receive(delivery)
        except ConsumerCancelled:
            pass  # by this worker, and its last deliveries have been taken
        except AmqpError as error:
            self._fail(error)

    def _hold(self) -> None:
        """Take no more, and return what was not begun, so that other workers get it."""
        consumer, self._consumer = self._consumer, None
        if consumer is None or not self._intake_channel.open:
            return
        consumer.cancel()
        with contextlib.suppress(ConsumerCancelled):
            while deliveries := consumer.get(1000, 0):
                for delivery in deliveries:
                    self._receive(delivery)
        for held in self.inputs.all():
            if held.task is not None and held.begin():
                self._publisher.send(Shipment(held, [self._again(held.delivery)], "not-now"))

    def _consume_again(self) -> None:
        """The intake was held, or the queue was deleted while it was consumed: declare it and continue."""
        try:
            self._declare(self._results_channel)
            self._consumer = self._intake_channel.consume(self.config.input_queue)
        except RemudaError as error:
            if self._intake.failure is not None or self._results.failure is not None:
                raise
            _LOG.warning("queue %r cannot be consumed: %s", self.config.input_queue, error)
            self._stopping.wait(self.config.return_delay)

    def _receive(self, delivery: Delivery) -> None:
        self.counts.received += 1
        held = Input(delivery, self._intake_channel)
        self.inputs.add(held)
        decision = stamps.decide(delivery, self.config)
        if isinstance(decision, stamps.Run):
            held.task = Task(decision.message, retries=decision.retries, headers=stamps.headers_of(delivery))
            self._work.put(held)
        elif isinstance(decision, stamps.Forward):
            self._pass_on(held, decision.queue, "forwarded")
        elif isinstance(decision, stamps.Retry):
            properties = stamps.restamped(delivery, {stamps.RETRY: decision.retries})
            message = Outgoing("", self.config.retry_queue, properties, delivery.body)
            self._publisher.send(Shipment(held, [message], "retried"))
        else:
            _LOG.warning("a message is rejected: %s: %s", decision.reason, decision.text)
            self._publisher.send(Shipment(held, self._rejection(delivery, decision), "rejected"))

    def _pass_on(self, held: Input, queue: str, outcome: str) -> None:
        """Send a message, as it came, to another queue."""
        message = Outgoing("", queue, stamps.restamped(held.delivery, {}), held.delivery.body)
        self._publisher.send(Shipment(held, [message], outcome))

    def _rejection(self, delivery: Delivery, decision: stamps.Reject) -> list[Outgoing]:
        """The error response, and the message itself if there is a queue for rejected messages."""
        mark = {stamps.REJECTED: decision.reason}
        messages = []
        if self.config.output_queue:
            original = decision.message or TaskMessage(task_id=new_task_id(), context={"original": delivery.body})
            invalid = decision.reason == stamps.INVALID
            status = TaskStatus.INVALID_TASK if invalid else TaskStatus.RESULT_EXCEPTION
            response = Result(f"{decision.reason}: {decision.text}".encode(), status)
            messages.append(self._outgoing(response, original, mark))
        if self.config.rejected_queue:
            properties = stamps.restamped(delivery, mark)
            messages.append(Outgoing("", self.config.rejected_queue, properties, delivery.body))
        return messages

    # The task threads.

    def _do_work(self) -> None:
        while (held := self._work.get()) is not None:
            if not held.alive:
                self.inputs.remove(held)
                continue
            if not held.begin():
                continue
            if not self._gate.is_open():
                self._publisher.send_later(Shipment(held, [self._again(held.delivery)], "not-now"))
                continue
            self._do(held)

    def _do(self, held: Input) -> None:
        task = held.task
        assert task is not None
        status = self._jobs.status(task.message)
        if status is JobStatus.PAUSED and self.config.paused_queue:
            self._pass_on(held, self.config.paused_queue, "paused")
            return
        if not status.works and status is not JobStatus.PAUSED:
            _LOG.info("task %s is dropped: its job is %s", task.id, status)
            self._publisher.send(Shipment(held, [], "inactive"))
            return
        self.counts.started += 1
        began = time.perf_counter()
        try:
            work = self._factory.accept(task)
            results = results_of(work())
            messages = self._outgoing_all(results, task.message)
        except NotNow as refusal:
            _LOG.info("task %s goes back to the queue: %s", task.id, refusal or "not now")
            self._gate.refused(str(refusal))
            self._publisher.send_later(Shipment(held, [self._again(held.delivery)], "not-now"))
            return
        except TaskAborted:
            results = [Result(b"the worker aborted the task", TaskStatus.RESULT_EXCEPTION)]
            messages = self._outgoing_all(results, task.message)
        except InvalidTask as error:
            results = [Result(_text_of(error), TaskStatus.INVALID_TASK)]
            messages = self._outgoing_all(results, task.message)
        except BaseException as error:
            text = _text_of(error)
            _LOG.warning(
                "task %s failed: %s: %s", task.id, type(error).__name__, text.decode(), exc_info=_loggable(error)
            )
            who = f"{self._source.name} {self._source.version}: {type(error).__name__}: "
            results = [Result(who.encode() + text, TaskStatus.RESULT_EXCEPTION)]
            messages = self._outgoing_all(results, task.message)
        finally:
            self.counts.worked(time.perf_counter() - began)
        self._gate.took()
        if not held.alive:
            self.inputs.remove(held)
            self.counts.add("aborted")
            _LOG.info("the results of task %s are dropped, since the broker delivers it again", task.id)
            return
        outcome = _OUTCOMES.get(results[0].status, "success") if results else "success"
        self._publisher.send(Shipment(held, messages, outcome))

    def _outgoing_all(self, results: list[Result], task: TaskMessage) -> list[Outgoing]:
        wanted = [result for result in results if result.queue or self.config.output_queue]
        return [self._outgoing(result, task, {}) for result in wanted]

    def _outgoing(self, result: Result, task: TaskMessage, headers: dict[str, str]) -> Outgoing:
        priority = task.priority if task.priority is not None and 0 <= task.priority <= 255 else None
        properties = Properties(
            content_type="application/json",
            delivery_mode=PERSISTENT,
            priority=priority,
            headers=headers or None,
        )
        body = encode_task(result.message(task, self._source))
        return Outgoing("", result.queue or self.config.output_queue, encode_properties(properties), body)

    def _again(self, delivery: Delivery) -> Outgoing:
        """The message as it came, to be sent to the input queue again."""
        retries = stamps.retries_of(delivery, self.config)
        entries = {stamps.RETRY: retries} if retries else {}
        return Outgoing("", self.config.input_queue, stamps.restamped(delivery, entries), delivery.body)

    # Queues, connections and the end.

    def _declare(self, channel: Channel) -> None:
        for name in self.config.queues:
            try:
                channel.declare_queue(name, arguments=self.config.queue_arguments)
            except Closed as error:
                raise Conflict(
                    f"queue {name!r} cannot be used as a {self.config.queue_type} queue: {error.text}; "
                    "change queue_type, or delete the queue"
                ) from error

    def _changed(self) -> None:
        """Called by the connections when their state changes; must not block."""
        lost = self.inputs.drop_lost()
        if lost:
            _LOG.warning("%d unfinished tasks went back to the broker; they are asked to abort", lost)
        for connection in (self._intake, self._results):
            if connection.failure is not None and not self._stopping.is_set():
                self._fail(connection.failure)

    def _fail(self, error: RemudaError) -> None:
        if self.failure is None and self._running and not self._ended.is_set():
            self.failure = error
            self._stopping.set()
            threading.Thread(target=self._end, name="worker end", daemon=True).start()

    def _await_empty(self, deadline: float, *, aborted_too: bool = True) -> None:
        """Wait until no inputs are left, or none but aborted tasks."""
        while self.failure is None and time.monotonic() < deadline:
            if not any(aborted_too or held.task is None or not held.task.aborted for held in self.inputs.all()):
                return
            time.sleep(0.02)

    def _end(self) -> None:
        self._stopping.set()
        for _ in self._threads:
            self._work.put(None)
        if self._threads:
            self._publisher.stop()
            if threading.current_thread() is not self._publisher:
                self._publisher.join(5)
        self._close()
        self._ended.set()

    def _close(self) -> None:
        self._stopping.set()
        for held in self.inputs.all():
            held.abort()
        self._intake.close()
        self._results.close()
        if self._health is not None:
            self._health.close()

    def _consumer_part(self) -> Part:
        if not self._intake.up:
            return Part("consumer", "down with its connection")
        if self._gate.problem:
            return Part("consumer")  # as it should be; `intake` says why
        gone = self._consumer is None or self._consumer.ended is not None
        return Part("consumer", f"queue {self.config.input_queue} is not consumed" if gone else "")


def _text_of(error: BaseException) -> bytes:
    try:
        return str(error).encode("utf-8", "replace")
    except Exception:
        return b"its text is unknown, since its __str__ fails"


def _loggable(error: BaseException) -> BaseException | None:
    """The error, if its `__str__` works, which a log record needs."""
    try:
        str(error)
    except Exception:
        return None
    return error


def _connection_part(name: str, connection: Connection) -> Part:
    problem = "" if connection.up else f"down: {connection.last_error or 'not connected yet'}"
    if connection.up and connection.blocked is not None:
        problem = f"blocked by the broker: {connection.blocked}"
    return Part(name, problem)


def _channel_part(name: str, connection: Connection, channel: Channel) -> Part:
    return Part(name, "" if channel.open else f"closed: {connection.last_error or 'not open yet'}")
