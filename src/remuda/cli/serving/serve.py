"""`remuda serve` and `remuda users`: a broker for other programs and languages, and who may use it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from remuda.cli.password import Password

if TYPE_CHECKING:
    from remuda.server.amqp.protocol.connection import Limits


class ServeCommand(TyperCommand):
    """Allows `--dashboard` and `--management` without an address, which typer's options do not."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for option in ("--dashboard", "--management"):
            if option in args:
                after = args.index(option) + 1
                if after == len(args) or args[after].startswith("-"):
                    args = [*args[:after], "", *args[after:]]
        return super().parse_args(ctx, args)


def read_config(ctx: typer.Context, value: str | None) -> str | None:
    """Make a settings file's options the defaults of this command."""
    if value is not None and not ctx.resilient_parsing:
        ctx.default_map = settings_of(value, {param.name or "": param for param in ctx.command.params})
    return value


def settings_of(path: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """The table [serve] of a TOML file, by the names of the command's parameters."""
    from remuda.broker.toml import read_toml
    from remuda.model.errors import InvalidOption
    from remuda.model.values.option_reading import unknown

    tables, where = read_toml(path)
    table = tables.get("serve", {})
    if not isinstance(table, dict):
        raise InvalidOption(f"[serve] in {path!r} must be a table")
    places = {name.replace("-", "_"): where(f"serve.{name}") for name in table}
    found = {name.replace("-", "_"): value for name, value in table.items()}
    for name, value in found.items():
        if name not in known or name == "config":
            raise unknown("option", name, sorted(known.keys() - {"config"}), places[name])
        if value is True:
            found[name] = ""  # dashboard = true: at the usual address
        elif value is False:
            found[name] = None
        elif not isinstance(value, str | int | list):
            raise InvalidOption(f"{places[name]}: {name} cannot be {value!r}")
    return found


Tags = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TAG",
        help="administrator, monitoring, policymaker or management: what the user may do in the management API. "
        "May be repeated.",
    ),
]
_FOLLOWED = "servers that use the file follow within a second"
users = typer.Typer(help="Users of `remuda serve`, and what each may do.", no_args_is_help=True)


def serve(
    ctx: typer.Context,
    data: Annotated[
        str, typer.Option(metavar="DIR", envvar="REMUDA_DATA", help="The broker's directory; created if missing.")
    ],
    config: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            envvar="REMUDA_CONFIG",
            is_eager=True,
            callback=read_config,
            help="A TOML file whose table [serve] has these options; what is given here or in the environment wins.",
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", envvar="REMUDA_LISTEN", help="Where to listen for AMQP 0-9-1.")
    ] = "127.0.0.1:5672",
    tls_listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            envvar="REMUDA_TLS_LISTEN",
            help="Where to listen with TLS; --listen is then without. By default, a certificate is for --listen.",
        ),
    ] = None,
    wire: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            envvar="REMUDA_WIRE",
            help="Where to listen for remuda://; port 5680 by default, none turns it off.",
        ),
    ] = None,
    users: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            envvar="REMUDA_USERS",
            help="Users who may log in; required to listen beyond this machine. REMUDA_DEFAULT_USER and "
            "REMUDA_DEFAULT_PASS make the first one.",
        ),
    ] = None,
    tls_cert: Annotated[
        str | None, typer.Option(metavar="FILE", envvar="REMUDA_TLS_CERT", help="TLS certificate, for amqps.")
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option(metavar="FILE", envvar="REMUDA_TLS_KEY", help="The certificate's key.")
    ] = None,
    tls_ca: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            envvar="REMUDA_TLS_CA",
            help="Authorities of client certificates, with which clients log in as their common name (EXTERNAL).",
        ),
    ] = None,
    tls_client_cert: Annotated[
        str,
        typer.Option(
            metavar="optional|required", envvar="REMUDA_TLS_CLIENT_CERT", help="Whether clients need a certificate."
        ),
    ] = "optional",
    vhost: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", envvar="REMUDA_VHOST", help="A virtual host besides '/'. May be repeated."),
    ] = None,
    management: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:PORT]",
            envvar="REMUDA_MANAGEMENT",
            help="Also offer RabbitMQ's management API, at 127.0.0.1:15672 by default.",
        ),
    ] = None,
    definitions: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            envvar="REMUDA_DEFINITIONS",
            help="Definitions, such as RabbitMQ exports, to take over at the start.",
        ),
    ] = None,
    dashboard: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:PORT]",
            envvar="REMUDA_DASHBOARD",
            help="Also serve the dashboard, at 127.0.0.1:8321 or a free port by default.",
        ),
    ] = None,
    dashboard_users: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            envvar="REMUDA_DASHBOARD_USERS",
            help="Users who may log in to the dashboard; see dashboard-user.",
        ),
    ] = None,
    sync: Annotated[
        str,
        typer.Option(
            envvar="REMUDA_SYNC", help="When to sync messages to disk: always (before a confirm), interval, or os."
        ),
    ] = "always",
    dead: Annotated[
        str,
        typer.Option(
            metavar="keep|drop",
            envvar="REMUDA_DEAD",
            help="What becomes of messages that die in a queue without a dead-letter exchange.",
        ),
    ] = "keep",
    max_connections: Annotated[
        int, typer.Option(min=1, envvar="REMUDA_MAX_CONNECTIONS", help="Most connections at once.")
    ] = 10_000,
    max_channels: Annotated[
        int, typer.Option(min=1, max=65535, envvar="REMUDA_MAX_CHANNELS", help="Most channels per connection.")
    ] = 2047,
    max_message: Annotated[
        int,
        typer.Option(min=1, metavar="BYTES", envvar="REMUDA_MAX_MESSAGE", help="Size of the largest message."),
    ] = 128 << 20,
    heartbeat: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            metavar="SECONDS",
            envvar="REMUDA_HEARTBEAT",
            help="Heartbeat interval; 0 turns heartbeats off.",
        ),
    ] = 60,
    product: Annotated[
        str, typer.Option(envvar="REMUDA_PRODUCT", help="What the server calls itself towards AMQP clients.")
    ] = "RabbitMQ",
    log_format: Annotated[
        str, typer.Option(metavar="text|json", envvar="REMUDA_LOG_FORMAT", help="The log on stderr.")
    ] = "text",
) -> None:
    """Serve a directory to RabbitMQ clients and remote buses. Runs until Ctrl-C or SIGTERM."""
    from remuda.broker.opening import open_broker
    from remuda.broker.shared.guest.remote import PORT
    from remuda.bus.observing.logs import configure
    from remuda.model.errors import InvalidOption
    from remuda.server.addresses import is_loopback, read_address
    from remuda.server.amqp.protocol.connection import Limits
    from remuda.server.certificates import Certificates
    from remuda.server.first_user import first_user
    from remuda.server.management.definitions import read_definitions
    from remuda.server.serving import AmqpListener, Listener, WireListener, run
    from remuda.server.shovels.shovels import shovels_file
    from remuda.server.users import Users, check_vhost

    host, port = read_address(listen, 5672)
    if (tls_cert is None) != (tls_key is None):
        raise InvalidOption("--tls-cert and --tls-key belong together; give both")
    if tls_cert is None and (tls_listen or tls_ca):
        raise InvalidOption("--tls-listen and --tls-ca need a certificate; add --tls-cert and --tls-key")
    _one_of("--tls-client-cert", tls_client_cert, "optional", "required")
    _one_of("--dead", dead, "keep", "drop")
    _one_of("--log-format", log_format, "text", "json")
    if tls_client_cert == "required" and tls_ca is None:
        raise InvalidOption("--tls-client-cert required needs to know whose certificates; add --tls-ca")
    limits = Limits(
        channel_max=max_channels, connection_max=max_connections, message_max=max_message, heartbeat=heartbeat,
        drop_dead=dead == "drop", product=product,
    )  # fmt: skip
    configure(as_json=log_format == "json")
    users = first_user(data, users)
    known = None if users is None else Users.load(users)
    tls = None
    if tls_cert is not None and tls_key is not None:
        tls = Certificates(tls_cert, tls_key, tls_ca, required=tls_client_cert == "required")
    amqp = AmqpListener(
        host,
        port,
        users=known,
        tls=tls,
        tls_address=None if tls_listen is None else read_address(tls_listen, 5671, option="--tls-listen"),
        vhosts=["/", *(check_vhost(name) for name in vhost or [])],
        limits=limits,
        definitions=None if definitions is None else read_definitions(definitions),
        reread=partial(_changed_limits, ctx, config, limits),
        shovels=shovels_file(data),
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
    if management is not None:
        from remuda.server.management import listener as managing

        where = read_address(management or str(managing.PORT), managing.PORT, option="--management")
        listeners.append(managing.ManagementListener(amqp, where, users=known, tls=tls))

    def ready(addresses: list[str]) -> None:
        typer.echo(f"ready: {data} at {' and '.join(addresses)} (Ctrl-C stops it)")

    if dashboard is None:
        with open_broker(data, sync=sync) as broker:
            run(broker, listeners, ready, certificates=tls)
        return
    from remuda.bus.bus import Bus
    from remuda.server.dashboard import DashboardListener

    with Bus(data, sync=sync) as bus:
        listeners.append(DashboardListener(bus, dashboard or None, users=dashboard_users))
        run(bus.broker, listeners, ready, certificates=tls)


def _one_of(option: str, given: str, *known: str) -> None:
    from remuda.model.errors import InvalidOption

    if given not in known:
        raise InvalidOption(f"{option} is {' or '.join(known)}, not {given!r}")


_LIMITS = {
    "max_channels": "channel_max", "max_connections": "connection_max", "max_message": "message_max",
    "heartbeat": "heartbeat",
}  # fmt: skip
"""Options that may change while the server runs, and the limits that they are."""


def _changed_limits(ctx: typer.Context, config: str | None, before: Limits) -> Limits:
    """The limits as the settings file has them now. What the command or the environment gave stays."""
    import msgspec

    from remuda.model.errors import InvalidOption
    from remuda.server.amqp.protocol.connection import Limits

    if config is None:
        return before
    found = settings_of(config, {param.name or "": param for param in ctx.command.params})
    changes = {}
    for option, limit in _LIMITS.items():
        source = ctx.get_parameter_source(option)
        if source is not None and source.name in ("DEFAULT", "DEFAULT_MAP"):
            value = found.get(option)
            if value is None:
                value = getattr(Limits(), limit)
            if isinstance(value, bool) or not isinstance(value, int) or value < (option != "heartbeat"):
                raise InvalidOption(f"{option} in {config!r} must be a whole number above zero, not {value!r}")
            changes[limit] = value
    return msgspec.structs.replace(before, **changes)


@users.command("add")
def add(
    file: Annotated[str, typer.Argument(help="The users file; created if missing.")],
    name: Annotated[str, typer.Argument(help="The user's name.")],
    vhost: Annotated[str, typer.Option(help="The virtual host the user may enter; others stay as they are.")] = "/",
    configure: Annotated[str, typer.Option(metavar="PATTERN", help="Names the user may declare and delete.")] = ".*",
    write: Annotated[str, typer.Option(metavar="PATTERN", help="Names the user may publish to.")] = ".*",
    read: Annotated[str, typer.Option(metavar="PATTERN", help="Names the user may consume from.")] = ".*",
    tag: Tags = None,
    password: Password = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Add a user, or change a password and the permissions in one virtual host."""
    from remuda.cli import output
    from remuda.server.users import add_user

    granted = {"configure": configure, "write": write, "read": read}
    new = add_user(file, name, password, {vhost: granted}, tags=tag)
    text = f"{name} is {'now' if new else 'still'} in {file}, for vhost {vhost}; {_FOLLOWED}"
    output.done(text, as_json, user=name, file=file, vhost=vhost, new=new)


@users.command("set")
def change(
    file: Annotated[str, typer.Argument(help="The users file.")],
    name: Annotated[str, typer.Argument(help="The user's name.")],
    vhost: Annotated[str, typer.Option(help="The virtual host; others stay as they are.")] = "/",
    configure: Annotated[str | None, typer.Option(metavar="PATTERN", help="Names the user may declare.")] = None,
    write: Annotated[str | None, typer.Option(metavar="PATTERN", help="Names the user may publish to.")] = None,
    read: Annotated[str | None, typer.Option(metavar="PATTERN", help="Names the user may consume from.")] = None,
    tag: Tags = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Change a user's permissions in one virtual host, or the tags. What is not given stays; so does the password."""
    from remuda.cli import output
    from remuda.model.errors import InvalidOption
    from remuda.server.users import EVERYTHING, change_user, list_users, no_user

    known = list_users(file)
    if name not in known:
        raise no_user(file, name)
    given = {"configure": configure, "write": write, "read": read}
    wanted = {access: pattern for access, pattern in given.items() if pattern is not None}
    if not wanted and tag is None and vhost in known[name]:
        raise InvalidOption("nothing is changed; give --configure, --write, --read or --tag")
    granted = {vhost: {**known[name].get(vhost, EVERYTHING), **wanted}} if wanted or tag is None else {}
    change_user(file, name, vhosts=granted, tags=tag)
    text = f"{name} is changed in {file}; {_FOLLOWED}"
    output.done(text, as_json, user=name, file=file, vhost=vhost)


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
    vhost: Annotated[str | None, typer.Option(help="Only take away this virtual host.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Remove a user from the file, or from one virtual host. The user's connections there are closed."""
    from remuda.cli import output
    from remuda.model.errors import InvalidOption
    from remuda.server.users import change_user, list_users, remove_user

    if vhost is None:
        remove_user(file, name)
        text = f"{name} is no longer in {file}"
    else:
        if vhost not in list_users(file).get(name, {vhost: {}}):
            raise InvalidOption(f"{name} may not enter vhost {vhost!r} as it is; nothing was changed")
        change_user(file, name, vhosts={vhost: None})
        text = f"{name} may no longer enter vhost {vhost}"
    output.done(f"{text}; {_FOLLOWED}", as_json, user=name, file=file, vhost=vhost)
