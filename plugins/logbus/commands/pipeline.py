"""`logbus pipeline`: register a pipeline, list them, begin anew after a topic was made again."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from logbus.commands import losses, options, output
from logbus.commands.completing import complete_pipelines, complete_topics
from logbus.commands.progress import ProgressView
from logbus.errors import UserError
from logbus.reparsing import reparser_for
from logbus.warehouse.engine import connect
from logbus.windows.ledger import Ledger
from logbus.windows.log_offsets import LogOffsets
from logbus.windows.model import Pipeline


@click.group("pipeline")
def command() -> None:
    """Pipelines: which topic is loaded into which table, and how."""


@command.command("register")
@click.argument("name")
@click.option("--topic", required=True, metavar="NAME", shell_complete=complete_topics, help="The topic that is loaded.")
@click.option("--table", required=True, help="Target table, as table or schema.table.")
@click.option(
    "--parse",
    required=True,
    help="How values become rows: combined, json, lines, logfmt, raw, regex, or a parser of your own, module:function.",
)
@click.option(
    "--lateness-minutes", type=click.FloatRange(min=0), default=5.0, show_default=True, help="How long an hour stays open."
)
@click.option("--starts-at", type=options.Instant(), help="Where the first window begins; by default at the earliest record.")
@click.option("--settings", default="{}", help='JSON: {"columns": {"host": "text"}, "accept_loss": false, "offset_gaps": false}.')
@options.warehouse_option
@options.bootstrap_option
@options.client_config_option
def register(
    name: str,
    topic: str,
    table: str,
    parse: str,
    lateness_minutes: float,
    starts_at: datetime | None,
    settings: str,
    warehouse_url: str,
    bootstrap: str,
    client_config: Path | None,
) -> None:
    """Register NAME, once; doing it again with the same values changes nothing."""
    pipeline = Pipeline(
        name=name,
        topic=topic,
        table=table,
        parse=parse,
        lateness=timedelta(minutes=lateness_minutes),
        starts_at=starts_at,
        settings=parse_settings(settings),
    )
    if ":" not in parse:  # a parser of the user's own may be installed only where Spark runs
        reparser_for(pipeline)  # refuses names and settings that no load could use
    log = LogOffsets(options.client_config(bootstrap, client_config))
    registered = Ledger(connect(warehouse_url)).register(pipeline, log, options.clock())
    click.echo(f"pipeline {registered.name} loads topic {registered.topic} into table {registered.table}")


def parse_settings(text: str) -> dict[str, Any]:
    try:
        settings = json.loads(text)
    except ValueError as error:
        raise UserError(f"--settings is no JSON: {error}") from None
    if not isinstance(settings, dict):
        raise UserError("--settings is a JSON object, such as {}")
    return settings


@command.command("ls")
@options.warehouse_option
@options.bootstrap_option
@options.client_config_option
@options.json_option
def list_pipelines(warehouse_url: str, bootstrap: str, client_config: Path | None, as_json: bool) -> None:
    """List the registered pipelines and how far they have come."""
    ledger = options.open_ledger(warehouse_url)
    view = ProgressView(ledger, options.client_config(bootstrap, client_config))
    found = [view.progress(pipeline) for pipeline in ledger.pipelines()]
    if as_json:
        output.show_json([progress.summary() for progress in found])
        return
    table = Table("pipeline", "topic", "table", "parse", "starts", "windows", "loaded", "audited", "loaded up to", "behind")
    for progress in found:
        table.add_row(*progress.row())
    output.show(table)
    if view.note:
        click.echo(f"note: {view.note}", err=True)


@command.command("show")
@click.argument("name", shell_complete=complete_pipelines)
@options.warehouse_option
@options.bootstrap_option
@options.client_config_option
@options.json_option
def show(name: str, warehouse_url: str, bootstrap: str, client_config: Path | None, as_json: bool) -> None:
    """Show everything about the pipeline NAME: how it is registered, how far it has come."""
    ledger = options.open_ledger(warehouse_url)
    view = ProgressView(ledger, options.client_config(bootstrap, client_config))
    found = view.progress(ledger.pipeline(name))
    if as_json:
        output.show_json({**found.summary(), "gaps": [gap.summary() for gap in found.gaps]}, indent=2)
        return
    click.echo("\n".join(found.lines()))
    if view.note:
        click.echo(f"note: {view.note}", err=True)


@command.command("rebase")
@click.argument("name", shell_complete=complete_pipelines)
@options.warehouse_option
@options.bootstrap_option
@options.client_config_option
@click.option("--other-cluster", is_flag=True, help="The topic has moved to another cluster for good.")
def rebase(name: str, warehouse_url: str, bootstrap: str, client_config: Path | None, other_cluster: bool) -> None:
    """Go on with NAME after its topic was deleted and made again, or holds another log than its windows were frozen on.

    What is loaded stays. The hours of which records may be gone are printed; each is refused until its loss is accepted.
    """
    log = LogOffsets(options.client_config(bootstrap, client_config))
    done = Ledger(connect(warehouse_url)).rebase(name, log, options.clock(), other_cluster=other_cluster)
    click.echo("\n".join(losses.rebase_lines(name, done)))
