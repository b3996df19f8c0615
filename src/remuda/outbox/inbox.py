"""The inbox (O3): a message id is handled once per group, however often it is delivered.

A handler that asks for a connection or session by type gets one whose transaction also records that the message was
handled: both commit, or neither does. For other handlers the record is written right after they end. What the handler
answered is part of the record, and is answered again to whoever asks again.
"""

from __future__ import annotations

import functools
import inspect
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, TypeVar, get_type_hints

from remuda.bus.handlers.context import Context
from remuda.bus.handlers.exceptions import NotNow
from remuda.model.errors import InvalidOption
from remuda.model.values.durations import Duration
from remuda.outbox import crash_points, transaction
from remuda.outbox.admin import Administration
from remuda.outbox.answers import Answer
from remuda.outbox.database import drivers
from remuda.outbox.database.connections import PostgresSession, SqliteSession, connect, dialect_of
from remuda.outbox.database.statements import Statement, Statements
from remuda.outbox.database.table_names import Names
from remuda.outbox.outbox import read_seconds

F = TypeVar("F", bound=Callable[..., Any])
_CLAIM: Final = 60.0
_COLLECT: Final = 3600.0
_CONTEXT: Final = "remuda_context"


class Inbox:
    """Records handled messages in the database at `url`. `provide` says how to create the connections or sessions that
    handlers ask for by type: `{psycopg.Connection: pool.connection}`, `{Session: sessionmaker(engine)}`."""

    def __init__(
        self,
        url: str,
        *,
        provide: Mapping[type, Callable[[], Any]] | None = None,
        schema: str = "public",
        prefix: str = "remuda_",
        keep: Duration = "7d",
    ) -> None:
        dialect_of(url)
        if provide is not None and not isinstance(provide, Mapping):
            raise InvalidOption(f"provide must map types to functions that create a value, not {provide!r}")
        for kind, make in (provide or {}).items():
            if not isinstance(kind, type) or not callable(make):
                raise InvalidOption(
                    f"provide must map a type to a function that creates a value, not {kind!r} to {make!r}"
                )
        self.url = url
        self.names = Names(prefix, schema)
        self._provide = dict(provide or {})
        self._keep = read_seconds("keep", keep)
        self._idle: list[PostgresSession | SqliteSession] = []
        self._guard = threading.Lock()
        self._collected = time.monotonic()

    def create_tables(self) -> list[int]:
        """Create or upgrade the tables, which the outbox shares."""
        with Administration.open(self.url, self.names) as administration:
            return administration.upgrade()

    def once(self, function: F) -> F:
        """Make a handler run once per message id. Write it below `@bus.subscribe(...)`."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidOption(f"{function.__qualname__} is a generator: calling it would run nothing of its body")
        try:
            hints = get_type_hints(function, include_extras=True)
        except Exception as error:
            raise InvalidOption(f"the annotations of {function!r} cannot be read: {error}") from error
        signature = inspect.signature(function)
        asked = {name: self._provide[hints[name]] for name in signature.parameters if hints.get(name) in self._provide}
        if len(asked) > 1:
            raise InvalidOption(
                f"{function.__qualname__} asks for {', '.join(asked)}; a transaction needs exactly one connection"
            )
        wrapper = self._wrapped(function, *next(iter(asked.items()), (None, None)))
        wrapper.takes_no_list = "its inbox knows one message at a time"  # type: ignore[attr-defined]
        kept = [one for name, one in signature.parameters.items() if name not in asked]
        kept = [one for one in kept if one.kind is not one.VAR_KEYWORD]
        context = inspect.Parameter(_CONTEXT, inspect.Parameter.KEYWORD_ONLY, annotation=Context)
        wrapper.__signature__ = signature.replace(parameters=[*kept, context])  # type: ignore[attr-defined]
        wrapper.__annotations__ = {name: kind for name, kind in hints.items() if name not in asked} | {
            _CONTEXT: Context
        }
        return wrapper  # type: ignore[return-value]

    def collect(self) -> int:
        """Forget messages handled longer ago than `keep`; this also happens every hour by itself."""
        with Administration.open(self.url, self.names) as administration:
            return administration.collect_inbox(self._keep)

    def close(self) -> None:
        with self._guard:
            idle, self._idle = self._idle, []
        for session in idle:
            session.close()

    def _wrapped(
        self, function: Callable[..., Any], name: str | None, make: Callable[[], Any] | None
    ) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def handle_async(*, remuda_context: Context, **given: Any) -> Any:
                import asyncio

                if make is None or name is None:
                    own = await asyncio.to_thread(self._begin, remuda_context)
                    if own is None:
                        return await asyncio.to_thread(self._answered, remuda_context)
                    try:
                        result = await function(**given)
                        answer = Answer.of(result, remuda_context)
                    except BaseException:
                        await asyncio.to_thread(self._end, own, remuda_context, False)
                        raise
                    await asyncio.to_thread(self._end, own, remuda_context, True, answer)
                    return result
                async with _opened_async(make) as connection, transaction.Transaction(connection, _nothing):
                    first = await self._record_async(connection, remuda_context)
                    if first:
                        result = await function(**given, **{name: connection})
                        await self._note_answer_async(connection, remuda_context, Answer.of(result, remuda_context))
                        crash_points.point("handled")
                return result if first else await asyncio.to_thread(self._answered, remuda_context)

            return handle_async

        @functools.wraps(function)
        def handle(*, remuda_context: Context, **given: Any) -> Any:
            if make is None or name is None:
                own = self._begin(remuda_context)
                if own is None:
                    return self._answered(remuda_context)
                try:
                    result = function(**given)
                    answer = Answer.of(result, remuda_context)
                except BaseException:
                    self._end(own, remuda_context, False)
                    raise
                crash_points.point("handled")
                self._end(own, remuda_context, True, answer)
                return result
            with _opened(make) as connection, transaction.Transaction(connection, _nothing):
                first = self._record(connection, remuda_context)
                if first:
                    result = function(**given, **{name: connection})
                    self._note_answer(connection, remuda_context, Answer.of(result, remuda_context))
                    crash_points.point("handled")
            crash_points.point("handled and committed")
            return result if first else self._answered(remuda_context)

        return handle

    def _record(self, connection: Any, context: Context) -> bool:
        """Record the message in the handler's transaction; False if it was handled before.

        If another transaction is handling it at the same time, the database makes this one wait for its end.
        """
        target, statement = self._statement(connection, "inbox")
        with drivers.explain_errors(self.names, target.dialect):
            return bool(target.insert(statement.sql, statement.values(_row(context))))

    async def _record_async(self, connection: Any, context: Context) -> bool:
        target, statement = self._statement(connection, "inbox")
        with drivers.explain_errors(self.names, target.dialect):
            return bool(await target.insert(statement.sql, statement.values(_row(context))))

    def _note_answer(self, connection: Any, context: Context, answer: bytes | None) -> None:
        """Add the answer to the record, in the handler's transaction."""
        if answer is not None:
            target, statement = self._statement(connection, "inbox_answer")
            with drivers.explain_errors(self.names, target.dialect):
                target.execute(statement.sql, statement.values(_row(context) | {"answer": answer}))

    async def _note_answer_async(self, connection: Any, context: Context, answer: bytes | None) -> None:
        if answer is not None:
            target, statement = self._statement(connection, "inbox_answer")
            with drivers.explain_errors(self.names, target.dialect):
                await target.execute(statement.sql, statement.values(_row(context) | {"answer": answer}))

    def _statement(self, connection: Any, name: str) -> tuple[drivers.Driver, Statement]:
        target = drivers.driver(connection)
        return target, Statements(target.dialect, self.names, target.style)(name)

    def _answered(self, context: Context) -> Any:
        """What the handler answered when it handled this message."""
        with self._guard:
            idle = self._idle.pop() if self._idle else None
        session = idle or connect(self.url, self.names)
        try:
            found = session.run("inbox_answered", **_row(context))
        except BaseException:
            session.close()
            raise
        # Handlers with connections of their own leave none of the inbox's open.
        session.close() if idle is None else self._give_back(session)
        return Answer.again(found[0][0] if found else None, context)

    def _begin(self, context: Context) -> PostgresSession | SqliteSession | None:
        """Claim a message for a handler that asks for no connection. None if it was handled before."""
        session, row = self._session(), _row(context)
        try:
            if isinstance(session, PostgresSession):
                session.run("inbox_lock", name=f"{row['consumer']}\n{row['id']}")
                if not session.run("inbox_known", **row):
                    return session
                session.run("inbox_unlock", name=f"{row['consumer']}\n{row['id']}")
            elif session.run("inbox_claim", lease=_CLAIM, **row):
                return session
            elif not session.run("inbox_known", **row)[0][0]:
                raise NotNow(f"{row['id']} is being handled elsewhere", after="1s")
        except BaseException:
            session.close()
            raise
        self._give_back(session)
        return None

    def _end(
        self, session: PostgresSession | SqliteSession, context: Context, success: bool, answer: bytes | None = None
    ) -> None:
        row: dict[str, Any] = _row(context)
        try:
            if isinstance(session, SqliteSession):
                session.run("inbox_done" if success else "inbox_undo", **row, answer=answer)
            else:
                if success:
                    with session.transaction():
                        session.run("inbox", **row)
                        if answer is not None:
                            session.run("inbox_answer", **row, answer=answer)
                session.run("inbox_unlock", name=f"{row['consumer']}\n{row['id']}")
        except BaseException:
            session.close()
            raise
        self._give_back(session)

    def _session(self) -> PostgresSession | SqliteSession:
        with self._guard:
            due = time.monotonic() - self._collected > _COLLECT
            if due:
                self._collected = time.monotonic()
            found = self._idle.pop() if self._idle else None
        if due:
            self.collect()
        return found or connect(self.url, self.names)

    def _give_back(self, session: PostgresSession | SqliteSession) -> None:
        with self._guard:
            self._idle.append(session)


def _row(context: Context) -> dict[str, str]:
    return {"consumer": context.queue, "id": context.message.id}


def _nothing() -> None:
    """Called after the commit: no relay has to be woken."""


@contextmanager
def _opened(make: Callable[[], Any]) -> Iterator[Any]:
    made = make()
    if not _is_connection(made) and hasattr(made, "__enter__"):
        with made as connection:
            yield connection
        return
    try:
        yield made
    finally:
        made.close()


@asynccontextmanager
async def _opened_async(make: Callable[[], Any]) -> AsyncIterator[Any]:
    made = make()
    if not _is_connection(made) and hasattr(made, "__aenter__"):
        async with made as connection:
            yield connection
        return
    if inspect.isawaitable(made):
        made = await made
    try:
        yield made
    finally:
        await made.close()


def _is_connection(made: Any) -> bool:
    if transaction.is_session(made):
        return True
    try:
        drivers.driver(made)
    except InvalidOption:
        return False
    return True
