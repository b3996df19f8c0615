"""The methods for administrators, operators and spectators, which are the same on every broker.

Each method that changes something is a verb of `remuda.model.operations.verbs`, whose signature it has: the verb makes
a command, and the backend executes it. The others are the questions of `remuda.broker.questions`.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, get_args, get_origin, get_type_hints

from remuda.broker import questions
from remuda.broker.backend import Answers
from remuda.broker.questions import Question
from remuda.model.operations import verbs
from remuda.model.operations.commands import Returns

if TYPE_CHECKING:
    from remuda.model.operations.commands import Command

P = ParamSpec("P")
R = TypeVar("R")


Asked = TypeVar("Asked", bound=Callable[..., Any])


def _verb(verb: Callable[P, Returns[R]]) -> Callable[Concatenate[Any, P], R]:
    """The method of a verb for threads."""

    @_as(verb)
    def method(self: Verbs, /, *arguments: P.args, **more: P.kwargs) -> R:
        result: R = self._do(verb(*arguments, **more))  # type: ignore[arg-type]
        return result

    return method


def _verb_async(verb: Callable[P, Returns[R]]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """The method of a verb for coroutines."""

    @_as(verb)
    async def method(self: AsyncVerbs, /, *arguments: P.args, **more: P.kwargs) -> R:
        result: R = await self._do(verb(*arguments, **more))  # type: ignore[arg-type]
        return result

    return method


def _question(question: Callable[P, Question[R]]) -> Callable[Concatenate[Any, P], R]:
    """The method of a question for threads."""

    @_as(question)
    def method(self: Verbs, /, *arguments: P.args, **more: P.kwargs) -> R:
        return question(*arguments, **more).of(self._backend)

    return method


def _question_async(question: Callable[P, Question[R]]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """The method of a question for coroutines."""

    @_as(question)
    async def method(self: AsyncVerbs, /, *arguments: P.args, **more: P.kwargs) -> R:
        return await self._ask(question(*arguments, **more))

    return method


def _as(declared: Callable[..., Any]) -> Callable[[Asked], Asked]:
    """Make a method look as if it were written out: with `self`, and the type of what it returns."""

    def dress(method: Asked) -> Asked:
        update_wrapper(method, declared)
        signature, made = inspect.signature(declared), get_type_hints(declared)["return"]
        returns = made if get_origin(made) is Question else made.__orig_bases__[0]
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        first, *_ = signature.parameters.values() or [own]
        if first.kind is not inspect.Parameter.POSITIONAL_ONLY:
            own = own.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)
        method.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[own, *signature.parameters.values()], return_annotation=get_args(returns)[0]
        )
        return method

    return dress


class Verbs(ABC):
    """For threads."""

    _backend: Answers
    place = ""
    """The URL it was opened at, without a password."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self.place or '(unnamed)'}>"

    @abstractmethod
    def _do(self, command: Command) -> Any:
        """Execute a command, and wait until its effects are stored."""

    create_queue = _verb(verbs.create_queue)
    configure_queue = _verb(verbs.configure_queue)
    set_status = _verb(verbs.set_status)
    pause = _verb(verbs.pause)
    resume = _verb(verbs.resume)
    remove_queue = _verb(verbs.remove_queue)
    create_router = _verb(verbs.create_router)
    bind = _verb(verbs.bind)
    unbind = _verb(verbs.unbind)
    remove_router = _verb(verbs.remove_router)
    clear = _verb(verbs.clear)
    reprocess = _verb(verbs.reprocess)
    requeue_front = _verb(verbs.requeue_front)
    forget = _verb(verbs.forget)
    move = _verb(verbs.move)
    pause_key = _verb(verbs.pause_key)
    resume_key = _verb(verbs.resume_key)

    queue = _question(questions.queue)
    queues = _question(questions.queues)
    routers = _question(questions.routers)
    parked = _question(questions.parked)
    flow = _question(questions.flow)
    waiting = _question(questions.waiting)
    notes = _question(questions.notes)
    message = _question(questions.message)
    workers = _question(questions.workers)
    order_worker = _question(questions.order_worker)
    cancel_running = _question(questions.cancel_running)
    tell_worker = _question(questions.tell_worker)
    worker_left = _question(questions.worker_left)
    spectate = _question(questions.spectate)
    health = _question(questions.health)
    on_notice = _question(questions.on_notice)
    off_notice = _question(questions.off_notice)


class AsyncVerbs(ABC):
    """For coroutines."""

    _backend: Answers
    place = ""
    """The URL it was opened at, without a password."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self.place or '(unnamed)'}>"

    @abstractmethod
    async def _do(self, command: Command) -> Any:
        """Execute a command, and wait until its effects are stored."""

    @abstractmethod
    async def _ask(self, question: Question[R]) -> R:
        """Put a question to the backend."""

    create_queue = _verb_async(verbs.create_queue)
    configure_queue = _verb_async(verbs.configure_queue)
    set_status = _verb_async(verbs.set_status)
    pause = _verb_async(verbs.pause)
    resume = _verb_async(verbs.resume)
    remove_queue = _verb_async(verbs.remove_queue)
    create_router = _verb_async(verbs.create_router)
    bind = _verb_async(verbs.bind)
    unbind = _verb_async(verbs.unbind)
    remove_router = _verb_async(verbs.remove_router)
    clear = _verb_async(verbs.clear)
    reprocess = _verb_async(verbs.reprocess)
    requeue_front = _verb_async(verbs.requeue_front)
    forget = _verb_async(verbs.forget)
    move = _verb_async(verbs.move)
    pause_key = _verb_async(verbs.pause_key)
    resume_key = _verb_async(verbs.resume_key)

    queue = _question_async(questions.queue)
    queues = _question_async(questions.queues)
    routers = _question_async(questions.routers)
    parked = _question_async(questions.parked)
    flow = _question_async(questions.flow)
    waiting = _question_async(questions.waiting)
    notes = _question_async(questions.notes)
    message = _question_async(questions.message)
    workers = _question_async(questions.workers)
    order_worker = _question_async(questions.order_worker)
    cancel_running = _question_async(questions.cancel_running)
    spectate = _question_async(questions.spectate)
    health = _question_async(questions.health)
    on_notice = _question_async(questions.on_notice)
    off_notice = _question_async(questions.off_notice)
