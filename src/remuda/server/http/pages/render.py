"""Templates, and how numbers, times and states are shown. Everything is escaped on the server."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from remuda.model.queues.options import status_word
from remuda.model.queues.system_queues import is_own
from remuda.model.state import WORDS as STATES
from remuda.model.state import State
from remuda.model.values.durations import DAY, HOUR, MILLISECOND, MINUTE, SECOND
from remuda.server.http.security.users import Role

HERE: Final = Path(__file__).parent
_CUT: Final = 76
TONES: Final = {
    State.QUEUED: "wait",
    State.FETCHED: "busy",
    State.SUCCESS: "good",
    State.COMPLETED: "good",
    State.KICKED: "good",
    State.RETRY: "warn",
    State.DEAD: "bad",
    State.INVALID: "bad",
    State.NOT_INTERESTED: "warn",
}


def number(value: float) -> str:
    """1234567 as 1,234,567."""
    return f"{int(value):,}"


def rate(value: float) -> str:
    if value >= 100:
        return number(round(value))
    return f"{value:.1f}" if value >= 0.05 else "< 0.1" if value else "0"


def span(duration: int) -> str:
    """A duration in microseconds, rounded for reading."""
    if duration < MILLISECOND:
        return f"{duration} µs"
    if duration < SECOND:
        return f"{duration / MILLISECOND:.3g} ms"
    if duration < MINUTE:
        return f"{duration / SECOND:.3g} s"
    if duration < HOUR:
        return _two(duration, MINUTE, "min", SECOND, "s")
    if duration < DAY:
        return _two(duration, HOUR, "h", MINUTE, "min")
    return _two(duration, DAY, "d", HOUR, "h")


def _two(duration: int, large: int, larger: str, small: int, smaller: str) -> str:
    rest = duration % large // small
    return f"{duration // large} {larger}" + (f" {rest} {smaller}" if rest else "")


def ago(moment: int) -> str:
    passed = time.time_ns() // 1000 - moment
    if passed < 0:
        return f"in {span(-passed)}"
    return "just now" if passed < 2 * SECOND else f"{_coarse(passed)} ago"


def _coarse(duration: int) -> str:
    for unit, size in (("d", DAY), ("h", HOUR), ("min", MINUTE), ("s", SECOND)):
        if duration >= size:
            return f"{duration // size} {unit}"
    return "0 s"


def moment(value: int) -> str:
    return _told(value, "%Y-%m-%d %H:%M:%S.%f")


def clock(value: int) -> str:
    return _told(value, "%H:%M:%S.%f")


def _told(value: int, form: str) -> str:
    then = _utc(value)
    return f"{value} microseconds since 1970" if then is None else then.strftime(form)[:-3]


def iso(value: int) -> str:
    then = _utc(value)
    return "" if then is None else then.isoformat().replace("+00:00", "Z")


def _utc(value: int) -> datetime | None:
    """None for a time that no calendar has, which a producer may have given nevertheless."""
    try:
        return datetime.fromtimestamp(value / 1e6, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def size(value: int) -> str:
    if value < 1024:
        return f"{value} B"
    return f"{value / 1024:.1f} KiB" if value < 1 << 20 else f"{value / (1 << 20):.1f} MiB"


def path(value: str) -> str:
    """A name as one part of an address."""
    return quote(value, safe="")


def query(**words: Any) -> str:
    """The query string of an address, without empty values."""
    given = {name: value for name, value in words.items() if value not in (None, "", [])}
    return f"?{urlencode(given, doseq=True)}" if given else ""


def ended(exception: str) -> str:
    """The name of a group of failures; a reason that was cut says so."""
    return f"{exception}…" if len(exception) > _CUT else exception


def said_besides(sample: str, exception: str) -> str:
    """What a failure says beyond its name."""
    return "" if sample == exception else sample.removeprefix(f"{exception}: ")


def state_name(value: State | str, moved_to: str | None = None) -> str:
    return STATES[State(value)] if moved_to is None else "moved"


def tone(value: State | str, moved_to: str | None = None) -> str:
    return TONES.get(State(value), "calm") if moved_to is None else "calm"


_environment = Environment(
    loader=FileSystemLoader(HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters.update(
    number=number, rate=rate, span=span, ago=ago, moment=moment, clock=clock, iso=iso, size=size, path=path,
    state=state_name, tone=tone, ended=ended, said_besides=said_besides,
)  # fmt: skip
_environment.tests["own"] = is_own
_environment.globals.update(query=query, STATES=STATES, State=State, status_word=status_word)


_LIVE: Final = frozenset(one.name for one in (HERE / "templates" / "parts").glob("*.html"))
"""The pages of which a part is fetched again and again, from the same address."""


def is_live(request: Request) -> bool:
    """Whether a page that is shown asks for its live part again."""
    return "hx-request" in request.headers


def noted(request: Request) -> list[tuple[str, str]]:
    """What is to be shown once, on the next page."""
    guard, session = (getattr(request.state, name, None) for name in ("guard", "session"))
    notes: list[tuple[str, str]] = [] if guard is None else guard.notes.pop(session, [])
    return notes


def page(request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """Render a page for the user of a request, with the notes for it; for htmx, the part of it that is live."""
    user = getattr(request.state, "user", None)
    if is_live(request) and template in _LIVE:
        template = f"parts/{template}"
    else:
        values["notes"] = noted(request)
    root: str = request.scope.get("root_path", "")
    content = _environment.get_template(template).render(
        base=root,
        user=user,
        operator=user is not None and user.may(Role.OPERATOR),
        csrf=getattr(request.state, "csrf", ""),
        here=request.url.path[len(root) :],
        address=str(request.url.path) + (f"?{request.url.query}" if request.url.query else ""),
        has_login=getattr(getattr(request.state, "guard", None), "has_login", False),
        **values,
    )
    return HTMLResponse(content, status)
