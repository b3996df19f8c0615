"""`bus.dashboard()`: the application for one bus, after its options and the installed extra are checked."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from remuda.model.errors import InvalidOption
from remuda.model.values.extras import MissingExtra
from remuda.model.values.option_reading import unknown
from remuda.server.http.security.users import Users

if TYPE_CHECKING:
    from remuda.bus.bus import Bus
    from remuda.server.http.security.guard import Guard, Identify


def dashboard(
    bus: Bus,
    *,
    users: Users | str | os.PathLike[str] | None = None,
    identify: Identify | None = None,
    hosts: Iterable[str] | None = None,
    **more: Any,
) -> Guard:
    """The ASGI application; `users` is a file written by `remuda dashboard-user`."""
    if users is not None and identify is not None:
        raise InvalidOption("give either users or identify, not both")
    if isinstance(hosts, str):
        raise InvalidOption(f"hosts is a list of names, not {hosts!r}")
    known = users if users is None or isinstance(users, Users) else Users.load(users)
    require_extra()
    from remuda.server.http.app import create_app

    allowed = {"searcher", "index", "rules", "lake", "body_limit", "streams"}
    for name in more:
        if name not in allowed:
            raise unknown("option", name, ["users", "identify", "hosts", *sorted(allowed)])
    return create_app(bus, users=known, identify=identify, hosts=hosts, **more)


def require_extra() -> None:
    """Raise `MissingExtra` with the line that installs what is missing."""
    try:
        import jinja2
        import prometheus_client
        import starlette
    except ImportError as error:
        raise MissingExtra("The HTTP API and the dashboard", "server") from error
    del jinja2, prometheus_client, starlette
