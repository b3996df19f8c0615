"""All commands. Each group has its own module, and loads what it needs when called."""

from __future__ import annotations

from typing import Annotated

import typer

from remuda.cli.commands import (
    backup,
    bench,
    cap,
    check,
    config,
    db,
    flow,
    index,
    operations,
    publish,
    report,
    takeover,
    workflows,
)
from remuda.cli.serving import dashboard, relay, run, serve, worker
from remuda.cli.viewing import insight, log, messages, processes, queues, schedules, search, top, watch
from remuda.lake import commands as lakes
from remuda.model.operations.verbs import VERBS
from remuda.spark import commands as pipelines

HELP = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    name="remuda",
    help="A durable message bus inside your process. DIR is the directory given to Bus(); APP is module:variable.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=HELP,
)
logs = typer.Typer(help="Read the event log, even while another process writes it.", no_args_is_help=True)


def _print_version(wanted: bool) -> None:
    if wanted:
        from remuda import __version__

        typer.echo(f"remuda {__version__}")
        raise typer.Exit()


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """A durable message bus inside your process. DIR is the directory given to Bus(); APP is module:variable."""


app.command("run")(run.run)
app.command("worker")(worker.worker)
app.command("serve", cls=serve.ServeCommand)(serve.serve)
app.command("config")(config.config)
app.command("publish")(publish.publish)
app.command("queues")(queues.queues)
app.command("top")(top.top)
app.command("workers")(processes.workers)
app.command("running")(processes.running)
app.command("watch")(watch.watch)
app.command("history")(insight.history)
app.command("errors")(insight.errors)
app.command("messages")(messages.messages)
app.command("message")(messages.message)
for verb in VERBS.values():
    app.command(verb.name.replace("_", "-"))(operations.command_of(verb))
app.command("send-again")(operations.send_again)
app.command("flow")(flow.flow)
app.command("workflows")(workflows.workflows)
app.command("cancel")(operations.cancel)
app.command("schedules")(schedules.schedules)
app.command("dashboard")(dashboard.dashboard)
app.command("dashboard-user")(dashboard.dashboard_user)
app.command("report")(report.report)
app.command("check")(check.check)
app.command("backup")(backup.backup)
app.command("takeover")(takeover.takeover)
app.command("bench")(bench.bench)
app.command("search")(search.search)
app.add_typer(index.app, name="index")
app.command("relay")(relay.relay)
app.add_typer(db.app, name="db")
app.add_typer(serve.users, name="users")
app.add_typer(pipelines.app, name="pipeline")
app.add_typer(lakes.app, name="lake")
app.add_typer(cap.app, name="cap")
app.add_typer(logs, name="log")
logs.command("tail")(log.tail)
