"""All commands under one roof. Each group has its own module, and loads what it needs when it is called."""

from __future__ import annotations

import typer

from remuda.cli import config, db, log, messages, operate, publish, queues, relay, report, run
from remuda.spark import commands as pipelines

app = typer.Typer(
    name="remuda",
    help="A message bus that starts inside your process. DIR is the directory given to Bus(); APP is module:variable.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
logs = typer.Typer(help="Read the event log, also while another process writes it.", no_args_is_help=True)

app.command("run")(run.run)
app.command("config")(config.config)
app.command("publish")(publish.publish)
app.command("queues")(queues.queues)
app.command("messages")(messages.messages)
app.command("message")(messages.message)
app.command("reprocess")(operate.reprocess)
app.command("clear")(operate.clear)
app.command("pause")(operate.pause)
app.command("resume")(operate.resume)
app.command("report")(report.report)
app.command("relay")(relay.relay)
app.add_typer(db.app, name="db")
app.add_typer(pipelines.app, name="pipeline")
app.add_typer(logs, name="log")
logs.command("tail")(log.tail)
