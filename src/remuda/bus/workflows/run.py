"""A run of a workflow, as its function sees it: what was recorded is given back, what is new is done and recorded."""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import os
import random
import sys
import threading
import uuid
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from typing import Any, Final

import msgspec

from remuda.bus.execution import watchdog
from remuda.bus.execution.processes.parent import parent
from remuda.bus.handlers.exceptions import Dead, NotInterested, NotNow, Reject, Retry, Suspended
from remuda.bus.handlers.loops import LoopHolder, drive, drive_async
from remuda.bus.handlers.result import storable
from remuda.bus.observing import progress
from remuda.bus.publishing import bodies
from remuda.bus.settings.retry import RetryPolicy, RetrySpec, policy
from remuda.bus.workflows import numbers
from remuda.bus.workflows.definition import Definition
from remuda.bus.workflows.errors import Diverged, NotRecordable, StepFailed, Unwound, WorkflowCancelled
from remuda.bus.workflows.history import (
    ATTEMPT,
    ERROR,
    RUN,
    STARTED,
    VERSION,
    WORKFLOW,
    History,
    StepRecord,
    note_message,
)
from remuda.bus.workflows.link import Link, in_thread
from remuda.model.errors import (
    Duplicate,
    InvalidMessage,
    InvalidOption,
    NotHeld,
    QueueFull,
    QueueNotAccepting,
    StorageError,
)
from remuda.model.message import Message
from remuda.model.messages import Messages
from remuda.model.notes import Note
from remuda.model.values.durations import SECOND, Duration
from remuda.model.values.option_reading import read_duration
from remuda.model.values.texts import read_text, shown

Steps = Generator[Any, Any, Any]

FOREVER: Final = 3650 * 24 * 3600 * SECOND
_LOOK: Final = SECOND
"""How often a run that is busy looks whether it was cancelled."""
_FULL: Final = SECOND
"""How soon a run tries again to publish to a queue that took nothing more."""
_FEW: Final = 16
"""How many steps `gather` runs side by side in threads."""
_TEXT: Final = 4000
_UNRECORDED: Final = ("random", "uuid")
"""Steps that have a number and no record: they follow from the number."""
_FINAL: Final = (NotRecordable, Reject, NotInterested, Dead)
"""Errors of a step that are never retried, whatever its policy says."""
_inside: contextvars.ContextVar[RecordedRun | None] = contextvars.ContextVar("remuda-step", default=None)
"""The run whose step is being done here."""


class Undo(msgspec.Struct, frozen=True):
    """How to undo a finished step."""

    number: int
    name: str
    function: Callable[..., Any]
    value: Any


class StepCall(msgspec.Struct, frozen=True):
    """A step as it is written, with its options."""

    call: Callable[[], Any]
    name: str
    retry: RetryPolicy | int | None = None
    limit: int | None = None
    undo: Callable[..., Any] | None = None


def step(
    function: Callable[..., Any],
    /,
    *args: Any,
    name: str | None = None,
    retry: RetrySpec = None,
    timeout: Duration | None = None,
    undo: Callable[..., Any] | None = None,
    **kwargs: Any,
) -> StepCall:
    """A step for `run.gather`, with the options of `run.step`."""
    label = _label(function, name)
    if undo is not None and not callable(undo):
        raise InvalidOption(f"undo must be a function, which takes what the step returned, not {shown(undo)}")
    limit = None if timeout is None else read_duration("timeout", timeout)
    return StepCall(partial(function, *args, **kwargs), label, policy(retry), limit, undo)


def _plain_step(call: Callable[[], Any]) -> StepCall:
    return StepCall(call, _label(getattr(call, "func", call), None))


class RecordedRun:
    """What a workflow's function gets first. In a coroutine every method that takes time is awaited."""

    def __init__(
        self, link: Link, place: Note, message: Message, workflow: str, *, encoding: str, is_async: bool
    ) -> None:
        self._link = link
        self._place = place
        self._message = message
        self._encoding = encoding
        self._is_async = is_async
        self._holder = LoopHolder()
        self._workflow = workflow
        self._version = 0
        self._retry = RetryPolicy()
        self._timeout: int | None = None
        self._side_by_side = False
        self._next = 0
        self._undos: list[Undo] = []
        self._failures: list[tuple[BaseException, int, bool]] = []
        self._looked = 0
        self.ended: BaseException | None = None
        """Why no further step is done here: it waits, diverged, was cancelled or taken over."""
        self.history = History()
        self.unwinding = False
        self._made: dict[int, StepRecord] = {}
        """What this run has recorded itself, by the number of the note."""
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Run {self.id} of {self._workflow}, version {self._version}, at step {self._next}>"

    # What it is

    @property
    def id(self) -> str:
        return self._message.id

    @property
    def workflow(self) -> str:
        return self._workflow

    @property
    def version(self) -> int:
        return self._version

    @property
    def message(self) -> Message:
        return self._message

    @property
    def replaying(self) -> bool:
        """Whether a step that was recorded already comes. Log only where none does, and nothing is logged twice."""
        return self._next <= self.history.last

    # Steps

    def step(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        name: str | None = None,
        retry: RetrySpec = None,
        timeout: Duration | None = None,
        undo: Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Call a function, or await a coroutine, and record what it returns; if that was recorded, return it instead.

        One that fails is retried by its policy, and meanwhile the run holds no worker. `undo` is called with the result
        if the workflow fails later, or is cancelled.
        """
        made = step(function, *args, name=name, retry=retry, timeout=timeout, undo=undo, **kwargs)
        return self._do(self._stepping(self._open(made.name, "step"), made))

    def gather(self, *calls: StepCall | Callable[[], Any]) -> Any:
        """Run several steps side by side, and return their results in this order. Each is a call without arguments
        (`functools.partial(charge, order)`), or `step(charge, order, undo=refund)` with options of its own."""
        made = [call if isinstance(call, StepCall) else _plain_step(call) for call in calls]
        steps = [self._stepping(self._open(one.name, "step"), one) for one in made]
        return self._beside_async(steps) if self._is_async else self._beside(steps)

    def sleep(self, duration: Duration) -> Any:
        """Wait, for days if need be: no thread is held, and a restart changes nothing."""
        length = read_duration("duration", duration)
        return self._do(self._sleeping(self._open("sleep", "sleep"), length))

    def now(self) -> Any:
        """The time, in microseconds since the epoch, as it was when it was asked first."""
        return self._do(self._telling(self._open("now", "now"), self._link.now))

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Tell how far the run has come: the last word is shown while it runs, and costs no record."""
        progress.tell(self._place.queue, self._place.offset, done, total, note)

    def random(self) -> float:
        """A number from 0 to 1: the same whenever the run comes here again, and another in any other run."""
        return random.Random(self._seed("random")).random()

    def uuid(self) -> str:
        """A unique id: the same whenever the run comes here again."""
        return str(uuid.UUID(bytes=self._seed("uuid")[:16], version=4))

    # Machinery

    def _do(self, steps: Steps) -> Any:
        return drive_async(steps) if self._is_async else drive(steps, self._holder)

    def _seed(self, what: str) -> bytes:
        number = self._open(what, what)
        text = f"{what}\0{self.id}\0{self._message.created}\0{self._place.offset}\0{number}"
        return sha256(text.encode("utf-8", "surrogatepass")).digest()

    def _policy(self, chosen: RetryPolicy | int | None) -> RetryPolicy:
        if chosen is None:
            return self._retry
        return chosen if isinstance(chosen, RetryPolicy) else msgspec.structs.replace(self._retry, max_retries=chosen)

    def check_ended(self) -> None:
        if self.ended is not None:
            raise self.ended

    def _open(self, label: str, kind: str) -> int:
        """The number of the next step. Raises `Diverged` if another was recorded there."""
        self.check_ended()
        if _inside.get() is self:
            raise InvalidOption(
                f"run.{kind} was called inside a step of workflow {self._workflow}: a step is recorded as a whole, and "
                "what is in it runs again with it. Call it from the workflow's own function"
            )
        number = numbers.checked(self._next)
        self._next += 1
        found = self.history.get(number)
        if found is not None and (found.name, found.kind) != (label, kind):
            raise self._end(Diverged(self._difference(number, found, label, kind)))
        if found is None and self.unwinding and kind not in _UNRECORDED:
            raise self._end(Unwound())
        return number

    def _end(self, error: BaseException) -> BaseException:
        """From now on every step raises this, even if the function catches it."""
        self.ended = error
        return error

    def _difference(self, number: int, found: StepRecord, label: str, kind: str) -> str:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("remuda."):
            frame = frame.f_back
        where = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        return (
            f"step {number} of workflow {self._workflow}, run {self.id}, was {_words(found.name, found.kind)} when it "
            f"was recorded, and is {_words(label, kind)} now, at {where}: the code was changed under a running "
            f"workflow. Nothing was done, and nothing is lost. Bring back the old code as version {self._version} and "
            f"give the new code a higher one (@bus.workflow(version={self._version + 1})); then reprocess the message"
        )

    def check_complete(self, where: str = "ended") -> None:
        """The function comes to something new, or has returned: nothing that was recorded may be left."""
        if self.history.last < self._next:
            return
        left = next(one for one in self.history.steps() if one.number >= self._next)
        raise self._end(
            Diverged(
                f"workflow {self._workflow}, run {self.id}, {where} before step {left.number}, which was recorded as "
                f"{_words(left.name, left.kind)}: the code was changed under a running workflow. Nothing is lost: "
                f"bring back the old code as version {self._version}, give the new code a higher one "
                f"(@bus.workflow(version={self._version + 1})), and reprocess the message"
            )
        )

    def load(self) -> Steps:
        """Read what was recorded."""
        place = self._place
        found = yield self._link.notes(place.queue, place.offset)
        history = History(found)
        with self._lock:  # a step beside this one may have recorded something since
            for number, record in self._made.items():
                history.learn(number, record)
            self.history = history
        self._looked = self._link.now()

    def use(self, definition: Definition) -> None:
        self._version, self._retry, self._timeout = definition.version, definition.retry, definition.timeout

    def check_cancelled(self) -> None:
        found = self.history.get(numbers.CANCELLED)
        if found is not None and not self.unwinding:
            told = found.value()
            raise self._end(WorkflowCancelled(f"cancelled by {told.get('who') or 'somebody'}"))

    def _look(self) -> Steps:
        """Before something new is done: whether the code went past a step, or the run was cancelled meanwhile."""
        self.check_complete("came to something new")
        if self._link.now() - self._looked > _LOOK:
            yield from self.load()
        self.check_cancelled()

    def record(
        self,
        number: int,
        kind: str,
        label: str,
        value: Any = None,
        *,
        others: Sequence[Message] = (),
        more: Mapping[str, str] = {},
    ) -> Steps:
        """Note something on the run's message, with messages that are published in the same step. Returns what is
        recorded: what this holder says, or what another has said before."""
        body, mime_type = value if isinstance(value, tuple) else bodies.encode(value, self._encoding)
        place = Note(
            self._place.queue, self._place.offset, self.history.epoch * numbers.EPOCH + number, self._place.lease
        )
        headers = {RUN: self.id, WORKFLOW: self._workflow, VERSION: str(self._version), **more}
        row = note_message(place, kind, label, body, mime_type, headers)
        while True:
            try:
                yield self._link.publish(Messages.of([*others, row]), place)
                break
            except Duplicate:
                yield from self.load()
                found = self.history.get(number)
                if found is None:
                    raise
                return found
            except NotHeld:
                raise self._end(Suspended("another worker has taken it over", 0)) from None
            except (QueueFull, QueueNotAccepting) as error:
                raise self._end(self.suspended(storable(str(error))[:_TEXT], _FULL)) from None
            except StorageError as error:
                if not error.passing:
                    raise
                yield self._link.pause(1.0)
        started = int(more[STARTED]) if STARTED in more else None
        attempt = int(more.get(ATTEMPT, "1"))
        made = StepRecord(number, label, kind, self._link.now(), started, attempt, more.get(ERROR), -1, body, mime_type)
        with self._lock:
            self._made[place.number] = made
            self.history.learn(place.number, made)
        return made

    def _stepping(self, number: int, step: StepCall) -> Steps:
        found = self.history.get(number)
        was_recorded = found is not None
        if found is None:
            yield from self._look()
            how = self._policy(step.retry)
            found = yield from self.attempt(number, "step", step.name, step.call, how, step.limit)
        if found.error is not None:
            told = found.value()
            raise self.failure(number, StepFailed(found.name, told["type"], told["text"]), was_recorded)
        value = found.value(bodies.return_type(getattr(step.call, "func", step.call)))
        if step.undo is not None:
            self._undos.append(Undo(number, step.name, step.undo, value))
        return value

    def failure(self, number: int, error: Exception, was_recorded: bool) -> Exception:
        """The error by which a step fails, which is known again when it ends the run."""
        self._failures.append((error, number, was_recorded))
        return error

    def failed_by(self, error: BaseException | None) -> tuple[int, bool] | None:
        """The step whose failure has led to this error, and whether that was recorded before the function was called
        this time."""
        seen: set[int] = set()
        while error is not None and id(error) not in seen:
            seen.add(id(error))
            for known, number, was_recorded in self._failures:
                if known is error:
                    return number, was_recorded
            error = error.__cause__ or error.__context__
        return None

    def attempt(
        self,
        number: int,
        kind: str,
        label: str,
        call: Callable[[], Any],
        how: RetryPolicy,
        limit: int | None = None,
    ) -> Steps:
        """Make the next attempt of a step, and record how it ended; suspends the run if another follows."""
        failures = self.history.failed_attempts(number)
        now = self._link.now()
        due = int(failures[-1].value()["due"]) if failures else 0
        if due > now:
            raise self.suspended(f"step {label} is tried again", due - now)
        count = len(failures) + 1
        more = {STARTED: str(now), ATTEMPT: str(count)}
        failed = partial(self._attempt_failed, number, kind, label, how, count, more)
        limit = self._timeout if limit is None else limit
        if limit is not None:
            seconds = limit / SECOND
            ignored = partial(self._ignored, failed, seconds)
            call = (
                partial(_limited_async, call, seconds) if self._is_async else partial(_limited, call, seconds, ignored)
            )
        inside = _inside.set(self)
        try:
            value = yield call()
            found = self._encoded(value)
        except NotNow as error:
            raise self.suspended(storable(f"step {label}: {error}")[:_TEXT], error.after) from None
        except Exception as error:
            return (yield from failed(error))
        finally:
            _inside.reset(inside)
        return (yield from self.record(number, kind, label, found, more=more))

    def _attempt_failed(
        self, number: int, kind: str, label: str, how: RetryPolicy, count: int, more: dict[str, str], error: Exception
    ) -> Steps:
        """Record how an attempt failed, as the end of the step or until the next attempt."""
        name, text = type(error).__name__, storable(str(error))[:_TEXT]
        delay = _delay(how, error, count)
        if delay is None and kind == "step":
            told = {"type": name, "text": text}
            return (yield from self.record(number, kind, label, told, more={**more, ERROR: name}))
        told = {"type": name, "text": text, "due": str(self._link.now() + (delay or 0))}
        yield from self.record(numbers.attempt(number, count), "attempt", label, told, more={**more, ERROR: name})
        if delay is None:
            raise error
        raise self.suspended(storable(f"step {label}, attempt {count}: {name}: {text}")[:_TEXT], delay) from None

    def _ignored(self, failed: Callable[[Exception], Steps], seconds: float) -> None:
        """The time of an attempt is up, and what it calls does not come back. The watchdog records that it failed, so
        that whoever takes the run over does not call it at once again."""
        error = TimeoutError(f"{watchdog.too_long(seconds)}, and ignored the interrupt")
        with contextlib.suppress(Suspended, Exception):
            drive(failed(error), LoopHolder())
        if parent() is not None and not self._side_by_side:
            os._exit(1)  # nobody else can take this process's place

    def _encoded(self, value: Any) -> tuple[bytes, str]:
        try:
            return bodies.encode(list(value) if isinstance(value, tuple) else value, self._encoding)
        except InvalidMessage as error:
            raise NotRecordable(f"it was done, but what it returned cannot be recorded: {error}") from None

    def _sleeping(self, number: int, length: int) -> Steps:
        found = self.history.get(number)
        if found is None:
            yield from self._look()
            found = yield from self.record(number, "sleep", "sleep", self._link.now() + length)
        left = int(found.value()) - self._link.now()
        if left > 0:
            self.before_waiting()
            raise self._end(self.suspended("sleeping", left))

    def before_waiting(self) -> None:
        """Something recorded has not ended yet."""
        if self.unwinding:
            raise self._end(Unwound())
        self.check_cancelled()

    def suspended(self, reason: str, after: int) -> Suspended:
        """Go on then, or as soon as somebody notes something that is not known here yet."""
        return Suspended(reason, after, self.history.count + 1)

    def _telling(self, number: int, ask: Callable[[], Any]) -> Steps:
        found = self.history.get(number)
        if found is None:
            yield from self._look()
            found = yield from self.record(number, "now", "now", ask())
        return found.value()

    def _beside(self, steps: list[Steps]) -> list[Any]:
        if not steps:
            return []
        self._side_by_side = True
        with ThreadPoolExecutor(min(len(steps), _FEW)) as executor:
            futures = [executor.submit(contextvars.copy_context().run, drive, one, self._holder) for one in steps]
        self._side_by_side = False
        found = [(error, None if error else one.result()) for one in futures for error in (one.exception(),)]
        return self._together(found)

    async def _beside_async(self, steps: list[Steps]) -> list[Any]:
        import asyncio

        async def guarded(one: Steps) -> tuple[BaseException | None, Any]:
            try:
                return None, await drive_async(one)
            except (Suspended, WorkflowCancelled, Exception) as error:
                return error, None

        return self._together(list(await asyncio.gather(*map(guarded, steps))))

    def _together(self, found: list[tuple[BaseException | None, Any]]) -> list[Any]:
        """The results of steps side by side; else the gravest of what happened, after all have ended."""
        errors = [error for error, _ in found if error is not None]
        waits = [error for error in errors if isinstance(error, Suspended)]
        for error in errors:
            if not isinstance(error, Suspended | StepFailed):
                raise error
        if waits:
            soonest = min(waits, key=lambda one: one.after)
            raise self._end(self.suspended(str(soonest), soonest.after))
        if errors:
            raise errors[0]
        return [value for _, value in found]

    # Undoing

    @property
    def undos(self) -> list[Undo]:
        """How to undo what is done, the newest step first."""
        return sorted(self._undos, key=lambda one: -one.number)

    def revive(self) -> None:
        """The function has ended: its undos may use the history."""
        self.ended = None


def _delay(how: RetryPolicy, error: Exception, count: int) -> int | None:
    """How long to wait after this attempt of a step; None if it was the last."""
    if isinstance(error, Retry):
        return None if how.after(count) is None else error.after
    return how.after(count) if how.retries(error) and not isinstance(error, _FINAL) else None


def _limited(call: Callable[[], Any], seconds: float, ignored: Callable[[], None] | None = None) -> Any:
    """What a call returns; it is interrupted when its time is up."""
    with watchdog.limit(seconds, ignored):
        value = call()
    return _awaited(value, seconds) if inspect.isawaitable(value) else value


async def _limited_async(call: Callable[[], Any], seconds: float) -> Any:
    """A plain function is called in a thread, where it can be interrupted and holds up no other coroutine."""
    if inspect.iscoroutinefunction(getattr(call, "func", call)):
        return await _awaited(call(), seconds)
    import asyncio

    thread = asyncio.ensure_future(in_thread(_limited, call, seconds))
    if not (await asyncio.wait({thread}, timeout=seconds + 2 * watchdog.GRACE))[0]:
        raise TimeoutError(f"{watchdog.too_long(seconds)}, and ignored the interrupt")
    value = thread.result()
    return await value if inspect.isawaitable(value) else value


async def _awaited(value: Awaitable[Any], seconds: float) -> Any:
    import asyncio

    try:
        async with asyncio.timeout(seconds) as limit:
            return await value
    except TimeoutError:
        if limit.expired():
            raise TimeoutError(watchdog.too_long(seconds)) from None
        raise


def _label(function: Any, name: str | None) -> str:
    if not callable(function):
        raise InvalidOption(f"a step is a function to call, not {function!r}: write run.step(charge, order)")
    if name is not None:
        read_text("name", name)
    label = name or getattr(function, "__name__", None) or type(function).__name__
    return storable(label)[:200]


def _words(name: str, kind: str) -> str:
    return f"step {name!r}" if kind == "step" else f"{kind} {name!r}" if name != kind else f"a {kind}"
