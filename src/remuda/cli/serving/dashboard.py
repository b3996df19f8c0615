"""`remuda dashboard` and `remuda dashboard-user`: the web page and the HTTP API, and who may use them."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from remuda.cli.password import Password


def dashboard(
    target: Annotated[str, typer.Argument(metavar="DIR|URL|APP", help="A directory, a URL, or an app (app:bus).")],
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to listen.")] = "127.0.0.1:8321",
    users: Annotated[
        str | None, typer.Option(metavar="FILE", help="Users who may log in; required to listen beyond this machine.")
    ] = None,
    host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A host name of this server. May be repeated.")
    ] = None,
    certificate: Annotated[str | None, typer.Option(metavar="FILE", help="TLS certificate, for HTTPS.")] = None,
    key: Annotated[str | None, typer.Option(metavar="FILE", help="The certificate's key.")] = None,
    index: Annotated[
        str | None, typer.Option(metavar="PATH|URL", help="The search index; DIR/index if it exists.")
    ] = None,
    lake: Annotated[str, typer.Option(help="The pipelines' lake.")] = "lake",
    rules: Annotated[
        str | None, typer.Option(metavar="FILE", help="Rules of alarms, one on each line; DIR/alerts.txt if it exists.")
    ] = None,
    run: Annotated[bool, typer.Option("--run", help="Also run the app's handlers.")] = False,
    create: Annotated[bool, typer.Option("--create", help="Create the directory if it does not exist.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Serve the dashboard and the HTTP API until Ctrl-C."""
    from remuda.bus.bus import Bus
    from remuda.cli import output
    from remuda.cli.target import check_exists, is_app, load_bus
    from remuda.model.errors import InvalidOption
    from remuda.server.http.mounting import dashboard as application
    from remuda.server.http.security.users import Users
    from remuda.server.http.serving import Server, check_safe, names_of, read_listen

    where = read_listen(listen)
    known = None if users is None else Users.load(users)
    check_safe(where, known)
    if (certificate is None) != (key is None):
        raise InvalidOption("--certificate and --key belong together; give both")
    if not create:
        check_exists(target, "nothing was started")
    bus = load_bus(target) if is_app(target) else Bus(target)
    app = application(bus, users=known, hosts=names_of(where, host or []), index=index, lake=lake, rules=rules)
    server = Server(app, where, certificate=certificate, key=key)
    try:
        bus.broker.queues()
        if run:
            bus.start()
        output.done(f"dashboard at {server.address} (Ctrl-C stops it)", as_json, dashboard=server.address)
        sys.stdout.flush()
        server.run()
    finally:
        bus.close()


def dashboard_user(
    file: Annotated[str, typer.Argument(help="The users file; created if missing.")],
    name: Annotated[str, typer.Argument(help="The user's name.")],
    role: Annotated[str, typer.Option(help="viewer (may look) or operator (may also change things).")] = "operator",
    password: Password = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Let a user of a users file log in to the dashboard, or change the password or role."""
    from remuda.cli import output
    from remuda.server.http.security.users import add_user

    new = add_user(file, name, password, role)
    text = f"{name} is {'now' if new else 'still'} in {file} as {role}"
    output.done(text, as_json, user=name, file=file, role=role, new=new)
