"""`remuda serve` and `remuda users`: a broker for other programs and languages, and who may use it."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from remuda.cli.password import Password


class ServeCommand(TyperCommand):
    """Allows `--dashboard` without an address, which typer's options do not."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--dashboard" in args:
            after = args.index("--dashboard") + 1
            if after == len(args) or args[after].startswith("-"):
                args = [*args[:after], "", *args[after:]]
        return super().parse_args(ctx, args)


users = typer.Typer(help="Users of `remuda serve`, and what each may do.", no_args_is_help=True)


def serve(
    data: Annotated[str, typer.Option(metavar="DIR", help="The broker's directory; created if missing.")],
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to listen for AMQP 0-9-1.")
    ] = "127.0.0.1:5672",
    wire: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Where to listen for remuda://; port 5680 by default, none turns it off."
        ),
    ] = None,
    users: Annotated[
        str | None, typer.Option(metavar="FILE", help="Users who may log in; required to listen beyond this machine.")
    ] = None,
    tls_cert: Annotated[str | None, typer.Option(metavar="FILE", help="TLS certificate, for amqps.")] = None,
    tls_key: Annotated[str | None, typer.Option(metavar="FILE", help="The certificate's key.")] = None,
    vhost: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A virtual host besides '/'. May be repeated.")
    ] = None,
    dashboard: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:PORT]",
            help="Also serve the dashboard, at 127.0.0.1:8321 or a free port by default.",
        ),
    ] = None,
    dashboard_users: Annotated[
        str | None, typer.Option(metavar="FILE", help="Users who may log in to the dashboard; see dashboard-user.")
    ] = None,
    sync: Annotated[
        str, typer.Option(help="When to sync messages to disk: always (before a confirm), interval, or os.")
    ] = "always",
    max_connections: Annotated[int, typer.Option(min=1, help="Most connections at once.")] = 10_000,
    max_channels: Annotated[int, typer.Option(min=1, max=65535, help="Most channels per connection.")] = 2047,
    max_message: Annotated[int, typer.Option(min=1, metavar="BYTES", help="Size of the largest message.")] = 128 << 20,
    heartbeat: Annotated[
        int, typer.Option(min=0, max=65535, metavar="SECONDS", help="Heartbeat interval; 0 turns heartbeats off.")
    ] = 60,
) -> None:
    """Serve a directory to RabbitMQ clients and remote buses. Runs until Ctrl-C or SIGTERM."""
    from remuda.broker.opening import open_broker
    from remuda.broker.shared.remote import PORT
    from remuda.bus.observing.logs import configure
    from remuda.model.errors import InvalidOption
    from remuda.server.addresses import is_loopback, read_address
    from remuda.server.amqp.connection import Limits
    from remuda.server.serving import AmqpListener, Listener, WireListener, run, tls_context
    from remuda.server.users import Users, check_vhost

    host, port = read_address(listen, 5672)
    if (tls_cert is None) != (tls_key is None):
        raise InvalidOption("--tls-cert and --tls-key belong together; give both")
    limits = Limits(
        channel_max=max_channels, connection_max=max_connections, message_max=max_message, heartbeat=heartbeat
    )
    known = None if users is None else Users.load(users)
    tls = None if tls_cert is None or tls_key is None else tls_context(tls_cert, tls_key)
    amqp = AmqpListener(
        host,
        port,
        users=known,
        tls=tls,
        vhosts=["/", *(check_vhost(name) for name in vhost or [])],
        limits=limits,
    )
    listeners: list[Listener] = [amqp]
    if wire is None:
        # Without TLS, passwords over remuda:// must stay on this machine, wherever AMQP listens.
        place = (host if tls is not None or is_loopback(host) else "127.0.0.1", PORT if port else 0)
        listeners.append(WireListener(*place, users=known, tls=tls))
    elif wire != "none":
        listeners.append(WireListener(*read_address(wire, PORT, option="--wire"), users=known, tls=tls))
    if dashboard is None and dashboard_users is not None:
        raise InvalidOption("--dashboard-users says who may use the dashboard; add --dashboard")
    configure()

    def ready(addresses: list[str]) -> None:
        typer.echo(f"ready: {data} at {' and '.join(addresses)} (Ctrl-C stops it)")

    if dashboard is None:
        with open_broker(data, sync=sync) as broker:
            run(broker, listeners, ready)
        return
    from remuda.bus.bus import Bus
    from remuda.server.dashboard import DashboardListener

    with Bus(data, sync=sync) as bus:
        listeners.append(DashboardListener(bus, dashboard or None, users=dashboard_users))
        run(bus.broker, listeners, ready)


@users.command("add")
def add(
    file: Annotated[str, typer.Argument(help="The users file; created if missing.")],
    name: Annotated[str, typer.Argument(help="The user's name.")],
    vhost: Annotated[str, typer.Option(help="The virtual host the user may enter.")] = "/",
    configure: Annotated[str, typer.Option(metavar="PATTERN", help="Names the user may declare and delete.")] = ".*",
    write: Annotated[str, typer.Option(metavar="PATTERN", help="Names the user may publish to.")] = ".*",
    read: Annotated[str, typer.Option(metavar="PATTERN", help="Names the user may consume from.")] = ".*",
    password: Password = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Add a user, or change a password and permissions."""
    from remuda.cli import output
    from remuda.server.users import add_user

    new = add_user(file, name, password, {vhost: {"configure": configure, "write": write, "read": read}})
    text = f"{name} is {'now' if new else 'still'} in {file}, for vhost {vhost}"
    output.done(text, as_json, user=name, file=file, vhost=vhost, new=new)


@users.command("list")
def show(
    file: Annotated[str, typer.Argument(help="The users file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the users and what each may do."""
    from remuda.cli import output
    from remuda.server.users import list_users

    if as_json:
        output.json(list_users(file))
        return
    for name, vhosts in list_users(file).items():
        for vhost, granted in vhosts.items():
            typer.echo(f"{name}  {vhost}  " + "  ".join(f"{access}={pattern}" for access, pattern in granted.items()))


@users.command("remove")
def remove(
    file: Annotated[str, typer.Argument(help="The users file.")],
    name: Annotated[str, typer.Argument(help="The user's name.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Remove a user from the file. Open connections stay open."""
    from remuda.cli import output
    from remuda.server.users import remove_user

    remove_user(file, name)
    output.done(f"{name} is no longer in {file}", as_json, user=name, file=file)
