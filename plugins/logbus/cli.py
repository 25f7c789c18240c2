"""The `logbus` command: one group, its subcommands loaded only when they are asked for.

Airflow, Spark and pyarrow take seconds to import, so the group knows its subcommands by a table of module paths and imports
the one that runs. A `LogbusError` is printed as one line, exit status 1; anything else is a bug and keeps its traceback.
"""

from __future__ import annotations

import importlib
from typing import cast

import click

from logbus.errors import LogbusError

COMMANDS = {
    "airflow": ("logbus.commands.airflow:command", "Make the pool and the connections in an Airflow of your own."),
    "broker": ("logbus.commands.broker:command", "Run the log broker (python -m broker)."),
    "connector-jars": (
        "logbus.commands.connector_jars:command",
        "Fetch the jars of Spark's Kafka connector, for those who read by it.",
    ),
    "dead-letter": ("logbus.commands.dead_letter:command", "List, show and export records that did not parse."),
    "demo": ("logbus.commands.demo:command", "Take a log through broker, Airflow and Spark into PostgreSQL, and prove it."),
    "doctor": ("logbus.commands.doctor:command", "Say what is not as it should be, and what to type."),
    "exporter": ("logbus.commands.exporter:command", "Serve lag, windows, topics and groups to Prometheus."),
    "group": ("logbus.commands.group:command", "Move consumer groups to a time, an offset or a window."),
    "lag": ("logbus.commands.lag:command", "Show how many closed hours are not loaded, and since when."),
    "ledger": ("logbus.commands.ledger:command", "Show the ledger's version, bring it up to date, make a lost one again."),
    "load": ("logbus.commands.load:command", "Load the closed hours of a topic with one Spark application, without Airflow."),
    "maintain": ("logbus.commands.maintain:command", "Merge old hourly partitions into days, remove files nobody needs."),
    "pipeline": ("logbus.commands.pipeline:command", "List and register pipelines."),
    "query": ("logbus.commands.query:command", "Ask the Parquet tables of pipelines in SQL, by DuckDB."),
    "redrive": ("logbus.commands.redrive:command", "Parse dead letters again, into the same windows."),
    "replay": ("logbus.commands.replay:command", "Load windows again, from the same records; plan shows what that would do."),
    "retention": ("logbus.commands.retention:command", "Delete old records once every pipeline has loaded them."),
    "sample": ("logbus.commands.sample:command", "Write a small realistic access log."),
    "ship": ("logbus.commands.ship:command", "Send log files to a topic."),
    "up": ("logbus.commands.up:command", "Run the broker and a PostgreSQL on this machine until Ctrl-C."),
    "window": ("logbus.commands.window:command", "List and show the windows in the ledger."),
}


class LazyGroup(click.Group):
    """A group that imports a subcommand when it runs, not when the group's help is shown."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module_name, _, attribute = COMMANDS[cmd_name][0].partition(":")
        return cast(click.Command, getattr(importlib.import_module(module_name), attribute))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except LogbusError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(1)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="logbus")
def main() -> None:
    """Every hour of every topic loaded exactly once, with proof."""
