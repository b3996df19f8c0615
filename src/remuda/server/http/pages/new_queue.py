"""A page that creates a queue with any of its options (Q13, U1). The fields follow from the options themselves."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from remuda.model.errors import InvalidOption
from remuda.model.queues.options import QueueOptions, as_written
from remuda.server.http.pages.pageset import Form, PageSet, in_thread
from remuda.server.http.pages.render import page
from remuda.server.http.service import MessagingService

_DEFAULTS: Final = QueueOptions()
_NO: Final = "no"
_YES: Final = "yes"


class Field(NamedTuple):
    """An option as a form asks for it."""

    name: str
    choices: tuple[str, ...]
    """Empty for a text."""
    usual: str


def _fields() -> tuple[Field, ...]:
    usual = as_written(_DEFAULTS)
    return tuple(_field(name, getattr(_DEFAULTS, name), usual[name]) for name in QueueOptions.__struct_fields__)


def _field(name: str, value: Any, usual: Any) -> Field:
    if isinstance(value, bool):
        return Field(name, (_NO, _YES), _YES if value else _NO)
    if isinstance(value, Enum):
        return Field(name, tuple(one.value for one in type(value)), str(usual))
    return Field(name, (), "none" if usual in (None, []) else str(usual))


FIELDS: Final = _fields()


def options_of(form: Form) -> dict[str, Any]:
    """The options that a form sets; what it leaves empty is not set."""
    options: dict[str, Any] = {}
    for field in FIELDS:
        text = (form.get(field.name) or "").strip()
        if not text:
            continue
        usual = getattr(_DEFAULTS, field.name)
        if isinstance(usual, bool):
            if text not in field.choices:
                raise InvalidOption(f"{field.name} must be yes or no, not {text[:40]!r}")
            options[field.name] = text == _YES
        elif isinstance(usual, tuple):
            options[field.name] = [part.strip() for part in text.split(",") if part.strip()]
        elif text.isascii() and text.isdigit() and len(text) < 19:
            options[field.name] = int(text)
        else:
            options[field.name] = text
    return options


class NewQueuePages(PageSet):
    """One form."""

    async def asked(self, request: Request) -> Response:
        return page(request, "new_queue.html", fields=FIELDS)

    async def create(self, request: Request) -> Response:
        form = await self.form(request)
        name, who = (form.get("name") or "").strip(), request.state.user.name
        created = await in_thread(self._service.create_queue, name, options_of(form), who)
        said = f"{name} was created." if created else f"{name} exists already, with these options."
        return self.say(request, said, f"/queues/{quote(name, safe='')}")


def routes(service: MessagingService) -> list[BaseRoute]:
    pages = NewQueuePages(service)
    guarded = pages.guarded
    return [
        Route("/create-queue", guarded(pages.asked), methods=["GET"]),
        Route("/create-queue", guarded(pages.create), methods=["POST"]),
    ]
