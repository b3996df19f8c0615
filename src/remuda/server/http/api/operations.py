"""Operations of the API: each routes a request, enforces its role and limits, and documents itself."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from remuda.model.errors import InvalidOption, RemudaError
from remuda.server.http.api.problems import Problem, problem_of
from remuda.server.http.security.users import Role, User
from remuda.server.http.service import MessagingService

T = TypeVar("T")
JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"

ApiHandler = Callable[["Call"], Awaitable[Any]]


class Parameter(msgspec.Struct, frozen=True):
    """A query parameter."""

    name: str
    description: str
    schema: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "string"})


class Operation(msgspec.Struct, frozen=True):
    """One thing the API can do."""

    method: str
    path: str
    handler: ApiHandler
    summary: str
    answer: Any = None
    status: int = 200
    request: Any = None
    parameters: tuple[Parameter, ...] = ()
    requests: tuple[str, ...] = (JSON,)
    answers: tuple[str, ...] = (JSON,)
    role: Role = Role.VIEWER
    problems: tuple[int, ...] = ()
    optional: bool = False
    """Whether the request may come without a body."""

    @property
    def path_names(self) -> list[str]:
        return re.findall(r"{(\w+)", self.path)


class Call:
    """A request, with what its handler needs to answer it."""

    def __init__(self, request: Request, operation: Operation, service: MessagingService, body_limit: int) -> None:
        self.request = request
        self.operation = operation
        self.service = service
        self.body_limit = body_limit

    @property
    def user(self) -> User:
        user: User = self.request.state.user
        return user

    def path(self, name: str) -> str:
        value: str = self.request.path_params[name]
        if "\ufffd" in value and b"%EF%BF%BD" not in self.request.scope.get("raw_path", b"").upper():
            raise InvalidOption(f"{name} is not UTF-8 in the address")
        return value

    async def run(self, function: Callable[..., T], *arguments: Any, **more: Any) -> T:
        """Run something that may wait for the disk in a thread, beside the event loop."""
        return await run_in_threadpool(function, *arguments, **more)

    async def bytes(self) -> bytes:
        return await read_body(self.request, self.body_limit)

    async def decoded(self, kind: type[T]) -> T:
        """The request's JSON as a value of this type."""
        content = await self.bytes()
        if not content and self.operation.optional:
            content = b"{}"
        return decode(content, kind)

    def text(self, name: str) -> str | None:
        values = self.request.query_params.getlist(name)
        if len(values) > 1:
            raise InvalidOption(f"{name} was given {len(values)} times; once is enough")
        if values and not values[0].isprintable():
            raise InvalidOption(f"{name} contains unprintable characters")
        return values[0] if values and values[0] else None

    def number(self, name: str, default: int, least: int = 0, most: int = 1 << 62) -> int:
        given = self.text(name)
        if given is None:
            return default
        if not given.isascii() or not given.isdigit() or len(given) > 19 or not least <= int(given) <= most:
            raise InvalidOption(f"{name} must be a whole number from {least} to {most}, not {given[:40]!r}")
        return int(given)

    def check_parameters(self) -> None:
        known = {parameter.name for parameter in self.operation.parameters}
        for name in self.request.query_params:
            if name not in known:
                listed = ", ".join(sorted(known)) or "none"
                raise InvalidOption(f"unknown parameter {name[:60]!r}; the parameters are: {listed}")


def decode(content: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(400, "Invalid request", f"the request's body is invalid: {error}") from None


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body; raises as soon as it is too long."""
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and len(declared) < 20 and int(declared) > limit:
        raise _too_long(limit)
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > limit:
            raise _too_long(limit)
        pieces.append(piece)
    return b"".join(pieces)


def _too_long(limit: int) -> Problem:
    return Problem(
        413, "Request too large", f"a request has at most {limit} bytes; split it", headers={"Connection": "close"}
    )


def routes(operations: list[Operation], service: MessagingService, body_limit: int) -> list[Route]:
    """A route for each path. A request with another method is told the methods that exist."""
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        by_path.setdefault(operation.path, {})[operation.method] = operation
    made = []
    for path in by_path:
        made.append(Route(path, _endpoint(by_path[path], service, body_limit), methods=None))
    return made


class _endpoint:  # noqa: N801 - used like a function; Starlette accepts methods=None only for classes
    def __init__(self, operations: dict[str, Operation], service: MessagingService, body_limit: int) -> None:
        self._operations = operations
        self._service = service
        self._limit = body_limit

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        answer = await self._answer(request)
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        operation = self._operations.get(method)
        if operation is None:
            allowed = ", ".join(sorted(self._operations))
            return Problem(405, "Method not allowed", f"use {allowed}", headers={"Allow": allowed}).response()
        try:
            user = request.state.user
            if user is not None and not user.may(operation.role):
                raise Problem(403, "Forbidden", f"{user.name} is a viewer; only an operator may do this")
            if operation.request is not None:
                _check_type(request, operation)
            elif method != "GET":
                await _check_no_body(request, self._limit)
            call = Call(request, operation, self._service, self._limit)
            call.check_parameters()
            value = await operation.handler(call)
        except Problem as problem:
            return problem.response()
        except RemudaError as error:
            return problem_of(error).response()
        except ClientDisconnect:
            return Response(status_code=400)
        if isinstance(value, Response):
            return value
        if value is None:
            return Response(status_code=204)
        return Response(msgspec.json.encode(value, enc_hook=str), operation.status, media_type=JSON)


async def _check_no_body(request: Request, limit: int) -> None:
    """Refuse a body that would be ignored: its sender may believe that it limits what is done."""
    if (await read_body(request, limit)).strip() not in (b"", b"{}"):
        raise Problem(400, "Invalid request", "this takes no body; nothing was done")


def _check_type(request: Request, operation: Operation) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not kind and operation.optional:
        return
    if kind not in operation.requests:
        wanted = " or ".join(operation.requests)
        raise Problem(415, "Unsupported media type", f"send {wanted}, not {kind[:80] or 'nothing'}")
