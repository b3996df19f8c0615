"""What all pages share: forms with their token, notes shown on the next page, and error pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from remuda.model.errors import RemudaError
from remuda.server.http.api.operations import read_body
from remuda.server.http.api.problems import Problem, problem_of
from remuda.server.http.pages.render import page
from remuda.server.http.service import MessagingService

T = TypeVar("T")

FORM_LIMIT: Final = 4 << 20
_NOTES: Final = 1000
_NOTES_EACH: Final = 20


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    return await run_in_threadpool(function, *arguments)


class PageSet:
    """A set of pages over one service."""

    def __init__(self, service: MessagingService) -> None:
        self._service = service

    async def form(self, request: Request) -> Form:
        content = await read_body(request, FORM_LIMIT)
        try:
            pairs = parse_qsl(content.decode(), keep_blank_values=True, max_num_fields=20_000, errors="strict")
        except ValueError:
            raise Problem(400, "Invalid form", "the form cannot be read; nothing was done") from None
        form = Form(pairs)
        request.state.guard.check_csrf(request.state.session, form.get("csrf"))
        return form

    def say(self, request: Request, text: str, where: str, tone: str = "good") -> Response:
        """Go to another page, and show a note there."""
        all_notes = request.state.guard.notes
        while len(all_notes) >= _NOTES:
            del all_notes[next(iter(all_notes))]
        notes = all_notes.setdefault(request.state.session, [])
        notes.append((tone, text))
        del notes[:-_NOTES_EACH]
        root = request.scope.get("root_path", "")
        if not where.startswith("/") or where.startswith(("//", "/\\")):
            where = "/"
        return RedirectResponse(f"{root}{where}", 303)

    def guarded(self, handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """Show an error page where the handler raises."""

        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except Problem as problem:
                return error_page(request, problem.status, problem.detail)
            except RemudaError as error:
                answered = problem_of(error)
                return error_page(request, answered.status, answered.detail)

        return answer


class Form:
    """The fields of a form, each possibly several times."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._pairs = pairs

    def get(self, name: str) -> str | None:
        return next((value for key, value in self._pairs if key == name), None)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self._pairs if key == name]

    def names(self) -> set[str]:
        return {name for name, _ in self._pairs}


def error_page(request: Request, status: int, detail: str) -> Response:
    if request.headers.get("hx-request") and status == 503:
        return page(request, "parts/gone.html", 200, detail=detail)
    return page(request, "error.html", status, detail=detail, code=status)
