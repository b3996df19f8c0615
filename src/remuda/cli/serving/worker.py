"""`remuda worker`: run tasks from a RabbitMQ queue until stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from types import FrameType

    from remuda.worker.worker import Worker


def worker(
    app: Annotated[
        str,
        typer.Argument(
            metavar="APP", help="module:variable: a Worker, a function that takes a task, or a WorkerFactory."
        ),
    ],
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="Settings for a function or factory; worker.toml by default.")
    ] = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log as JSON, one object per line.")] = False,
) -> None:
    """Run a task worker. The first Ctrl-C or SIGTERM finishes the tasks in hand, the second ends at once."""
    import logging
    import signal
    import threading

    from remuda.bus.observing.logs import configure
    from remuda.model.errors import RemudaError

    configure(as_json=log_json)
    running = _load(app, config)
    asked: list[int] = []
    started = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        if len(asked) > 1 and not started.is_set():
            raise SystemExit(128 + number)
        grace = None if len(asked) == 1 else 0.0
        threading.Thread(target=running.stop, args=(grace,), name="worker stop", daemon=True).start()

    # Before it starts: from then on it takes tasks, and a signal must not cut them short.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    try:
        running.start()
    except RemudaError:
        if not asked:
            raise
        logging.getLogger("remuda.worker").info("stopped before it was connected to the broker")
        return
    started.set()
    if asked and not running.stopping:  # the signal came before `start`, so `stop` had no effect
        running.stop()
    where = "" if running.health_port is None else f"; health on port {running.health_port}"
    logging.getLogger("remuda.worker").info("%s takes tasks from %s%s", app, running.config.input_queue, where)
    running.run()


def _load(app: str, config: str | None) -> Worker:
    from remuda.cli.target import load_object
    from remuda.model.errors import InvalidOption
    from remuda.worker import Worker, WorkerConfig, WorkerFactory

    found = load_object(app, "worker")
    if isinstance(found, Worker):
        if config is not None:
            raise InvalidOption(f"{app} brings its own settings; --config is for functions and factories")
        return found
    if isinstance(found, type) or not (isinstance(found, WorkerFactory) or callable(found)):
        raise InvalidOption(
            f"{app} is a {type(found).__name__}, not a Worker, a function that takes a task, or a WorkerFactory"
        )
    return Worker(WorkerConfig.load(config), found)
