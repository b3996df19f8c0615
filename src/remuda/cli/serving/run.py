"""`remuda run`: handle messages until stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from logging import Logger

    from remuda.bus.bus import Bus
    from remuda.server.http.serving import Server


def run(
    app: Annotated[str, typer.Argument(metavar="APP", help="module:variable, such as app:bus for bus in app.py.")],
    workers: Annotated[int, typer.Option(metavar="N", help="Number of processes that share the work.")] = 1,
    reload: Annotated[bool, typer.Option("--reload", help="Restart when a file changes; for development.")] = False,
    grace: Annotated[str, typer.Option(help="How long running handlers may take to finish when stopping.")] = "10s",
    threads: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[QUEUE=]N", help="Messages handled at once in each queue, or in one queue. May be repeated."
        ),
    ] = None,
    until_idle: Annotated[bool, typer.Option("--until-idle", help="Exit when nothing is left to handle now.")] = False,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log as JSON, one object per line.")] = False,
    metrics: Annotated[
        int | None,
        typer.Option(metavar="PORT", min=0, max=65535, help="Serve Prometheus metrics on this loopback port."),
    ] = None,
    dashboard: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Where the dashboard listens; 127.0.0.1:8321 or a free port by default."
        ),
    ] = None,
    users: Annotated[
        str | None, typer.Option(metavar="FILE", help="Users who may log in to the dashboard; see dashboard-user.")
    ] = None,
    no_dashboard: Annotated[bool, typer.Option("--no-dashboard", help="Do not serve the dashboard.")] = False,
) -> None:
    """Run an app's handlers and its dashboard. The first Ctrl-C or SIGTERM stops gracefully, the second at once."""
    from remuda.model.errors import InvalidOption
    from remuda.model.values.option_reading import read_duration

    read_duration("--grace", grace)
    if no_dashboard and (dashboard or users):
        raise InvalidOption("--no-dashboard contradicts --dashboard and --users; give one or the other")
    if workers < 1:
        raise InvalidOption(f"--workers must be at least 1, not {workers}")
    if workers > 1 and metrics is not None:
        raise InvalidOption(
            "--metrics serves the numbers of one process; give it without --workers, or use the dashboard"
        )
    arguments = _child_arguments(app, grace, threads or [], until_idle, log_json, metrics)
    if reload:
        from remuda.cli.serving.reload import run_reloading

        for name, value in (("--dashboard", dashboard), ("--users", users)):
            arguments += [] if value is None else [name, value]
        arguments += ["--no-dashboard"] if no_dashboard else []
        run_reloading(arguments if workers == 1 else [*arguments, "--workers", str(workers)])
        return
    from remuda.bus.execution.stop_signals import StopOnSignal
    from remuda.bus.observing.logs import configure
    from remuda.cli.serving.worker_processes import end_with_supervisor, run_workers
    from remuda.cli.target import load_bus

    worker = end_with_supervisor()
    bus = load_bus(app)  # before any process starts, so that its errors are printed once
    configure(as_json=log_json, worker=worker)
    # A run that ends by itself has a dashboard only if one is asked for.
    wanted = not no_dashboard and (not until_idle or dashboard is not None)
    if workers > 1:
        # Served from this process, its address stays the same when workers are restarted.
        server = _dashboard(bus, dashboard, users) if wanted else None
        _greet(app, bus, workers)
        with _served(bus, server):
            run_workers([*arguments, "--no-dashboard"], workers)
        return
    for entry in threads or []:
        queue, _, number = entry.rpartition("=")
        queue = queue.removeprefix(bus.prefix)
        _check_queue(bus, queue)
        bus.settings.put(f"message.threads.{queue}" if queue else "message.threads", number, "--threads")
    if metrics is not None:
        _serve_metrics(bus, metrics)
    server = _dashboard(bus, dashboard, users) if wanted else None
    with StopOnSignal(bus, grace):
        if not worker:
            _greet(app, bus)
        with _served(bus, server):
            bus.run(until_idle=until_idle, grace=grace)


def _check_queue(bus: Bus, queue: str) -> None:
    from remuda.model.errors import InvalidOption

    queues = sorted({handler.queue.removeprefix(bus.prefix) for handler in bus.handlers})
    if queue and queue not in queues:
        raise InvalidOption(
            f"--threads: no handler has the queue {queue!r}; the queues are: {', '.join(queues) or 'none'}"
        )


@contextmanager
def _served(bus: Bus, server: Server | None) -> Iterator[None]:
    """Serve the dashboard, if there is one, and close the bus at the end."""
    try:
        if server is not None:
            server.start()
            _log().info("dashboard at %s", server.address)
        yield
    finally:
        if server is not None:
            server.stop()
        bus.close()


def _dashboard(bus: Bus, listen: str | None, users: str | None) -> Server | None:
    """A bus's dashboard on its socket; None if it was not asked for and is not available."""
    from remuda.model.errors import RemudaError
    from remuda.model.values.extras import MissingExtra
    from remuda.server.http.mounting import dashboard
    from remuda.server.http.security.users import Users
    from remuda.server.http.serving import DEFAULT, Server, check_safe, names_of, read_listen

    where = read_listen(listen or DEFAULT, "--dashboard")
    known = None if users is None else Users.load(users)
    check_safe(where, known)
    try:
        page = dashboard(bus, users=known, hosts=names_of(where, []))
        try:
            return Server(page, where, option="--dashboard")
        except RemudaError:
            if listen is not None:
                raise
            return Server(page, where._replace(port=0))
    except MissingExtra as error:
        if listen is not None or users is not None:
            raise
        _log().info("no dashboard: %s", error)
        return None


def _log() -> Logger:
    import logging

    return logging.getLogger("remuda.run")


def _greet(app: str, bus: Bus, processes: int = 1) -> None:
    from remuda.model.values.urls import parse_url

    queues = sorted({handler.queue for handler in bus.handlers})
    where = f" in {processes} processes" if processes > 1 else ""
    _log().info("%s on %s handles %s%s", app, parse_url(bus.url), ", ".join(queues) or "nothing yet", where)


def _serve_metrics(bus: Bus, port: int) -> None:
    from remuda.bus.observing.metrics import Metrics
    from remuda.model.errors import RemudaError

    metrics = Metrics()
    bus.stack.layers.append(metrics)
    metrics.watch(bus)
    try:
        metrics.serve(port)
    except OSError as error:
        raise RemudaError(f"--metrics: port {port} is not available: {error.strerror}; choose another") from None


def _child_arguments(
    app: str, grace: str, threads: list[str], until_idle: bool, log_json: bool, metrics: int | None
) -> list[str]:
    arguments = ["run", app, "--grace", grace]
    for entry in threads:
        arguments += ["--threads", entry]
    arguments += ["--until-idle"] if until_idle else []
    arguments += ["--log-json"] if log_json else []
    return arguments if metrics is None else [*arguments, "--metrics", str(metrics)]
