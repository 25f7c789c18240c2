"""`logbus pipeline`: register and list pipelines, continue after a topic was recreated, correct or undo a mistake."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

import click

from logbus.commands import losses, options, output
from logbus.commands.completing import complete_pipelines, complete_topics
from logbus.commands.progress import NO_PIPELINE, ProgressView
from logbus.kafka.client import Client
from logbus.kafka.topics import Topics
from logbus.ledger import pipeline_dags, removal, table_moves
from logbus.ledger.definition import differences, in_words, pipeline_of
from logbus.ledger.ledger import Ledger
from logbus.ledger.registration import PipelineRegistration
from logbus.model import Pipeline
from logbus.pipeline_checks import check_pipeline, is_own_parser
from logbus.warehouse.engine import connect
from logbus.wording import many


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
    help="How values become rows: combined, csv, json, lines, logfmt, nginx_json, raw, regex, syslog, or a parser of your own, "
    "module:function.",
)
@click.option(
    "--lateness-minutes", type=click.FloatRange(min=0), default=5.0, show_default=True, help="How long an hour stays open."
)
@click.option("--starts-at", type=options.Instant(), help="Where the first window begins; by default at the earliest record.")
@click.option("--settings", default="{}", help='JSON: {"columns": {"host": "text"}, "accept_loss": false, "offset_gaps": false}.')
@click.option("--change", "may_change", is_flag=True, help="Change a pipeline that is registered with other values.")
@options.warehouse_option
@options.with_client
def register(
    name: str,
    topic: str,
    table: str,
    parse: str,
    lateness_minutes: float,
    starts_at: datetime | None,
    settings: str,
    may_change: bool,
    warehouse_url: str,
    config: Mapping[str, Any],
) -> None:
    """Register NAME, once. Registering it again with other values shows the difference; --change applies it."""
    pipeline = Pipeline(
        name=name,
        topic=topic,
        table=table,
        parse=parse,
        lateness=timedelta(minutes=lateness_minutes),
        starts_at=starts_at,
        settings=options.parse_settings(settings),
    )
    check_pipeline(pipeline)
    if not is_own_parser(parse):  # which may be installed only where Spark runs
        from logbus.parsing import parser_for

        parser_for(parse, pipeline.settings)  # refuses a filter over columns that the parser does not have, for example
    log, ledger = Topics(Client.of_a_command(config)), Ledger(connect(warehouse_url))
    done = ledger.define(pipeline, log, options.clock(), may_change=may_change)
    tell_registration(done)
    if done.changes and (dags := pipeline_dags.standing_for_another(ledger.engine, done.pipeline)):
        output.say(f"note: {', '.join(dags)} defines {name} differently, and its next run sets it back: change it there, too")


def tell_registration(done: PipelineRegistration) -> None:
    found = done.pipeline
    known = "" if done.is_new else " is changed:" if done.changes else " is registered already:"
    output.tell(f"pipeline {found.name}{known} loads topic {found.topic} into table {found.table}")
    for change in done.changes:
        output.tell(f"  {change}")


@command.command("ls")
@options.warehouse_option
@options.with_client
@options.json_option
def list_pipelines(warehouse_url: str, config: Mapping[str, Any], as_json: bool) -> None:
    """List the registered pipelines and how far they are."""
    ledger = options.open_ledger(warehouse_url)
    view = ProgressView(ledger, config)
    found = [view.progress(pipeline) for pipeline in ledger.pipelines()]
    if as_json:
        output.show_json([progress.summary() for progress in found])
        view.raise_unreachable()
        return
    table = output.Table(
        "pipeline", "topic", "table", "parse", "starts", "windows", "loaded", "audited", "loaded up to", "behind"
    )
    for progress in found:
        table.add_row(*progress.row())
    output.show(table)
    if not found:
        output.say(NO_PIPELINE)
    view.raise_unreachable()
    for progress in found:
        if progress.note:
            output.say(f"note: {progress.pipeline.name}: {progress.note}")


@command.command("show")
@click.argument("name", shell_complete=complete_pipelines)
@options.warehouse_option
@options.with_client
@options.json_option
def show(name: str, warehouse_url: str, config: Mapping[str, Any], as_json: bool) -> None:
    """Show everything about the pipeline NAME: how it is registered, how far it is."""
    ledger = options.open_ledger(warehouse_url)
    view = ProgressView(ledger, config)
    found = view.progress(ledger.pipeline(name))
    if as_json:
        gaps, dags = [gap.summary() for gap in found.gaps], dag_definitions(ledger, name)
        output.show_json({**found.summary(), "gaps": gaps, "dags": dags}, indent=2)
        view.raise_unreachable()
        return
    output.tell(*found.lines())
    for dag_id, otherwise in dag_definitions(ledger, name).items():
        output.tell(f"  DAG {dag_id}" + (f" defined it differently: {otherwise}" if otherwise else ""))
    view.raise_unreachable()
    if found.note:
        output.say(f"note: {found.note}")


def dag_definitions(ledger: Ledger, name: str) -> dict[str, str | None]:
    """The DAGs of the pipeline, and how each one's definition differed when it last ran."""
    registered = ledger.registered(name)
    with ledger.engine.connect() as connection:
        given = pipeline_dags.definitions_by_dag(connection, name)
    return {
        dag_id: in_words(differences(registered, pipeline_of(said))) or None if said else None for dag_id, said in given.items()
    }


@command.command("rebase")
@click.argument("name", shell_complete=complete_pipelines)
@options.warehouse_option
@options.with_client
@click.option("--other-cluster", is_flag=True, help="The topic has moved to another cluster for good.")
def rebase(name: str, warehouse_url: str, config: Mapping[str, Any], other_cluster: bool) -> None:
    """Continue NAME after its topic was deleted and recreated, or holds another log than its windows were frozen on.

    What is loaded stays. The hours that may have lost records are printed; each is refused until its loss is accepted.
    """
    log = Topics(Client.of_a_command(config))
    done = Ledger(connect(warehouse_url)).rebase(name, log, options.clock(), other_cluster=other_cluster)
    output.tell(*losses.rebase_lines(name, done))


@command.command("forget-dag")
@click.argument("name", shell_complete=complete_pipelines)
@click.argument("dag_id")
@options.warehouse_option
def forget_dag(name: str, dag_id: str, warehouse_url: str) -> None:
    """Forget how DAG_ID, which no longer exists, defined the pipeline NAME."""
    pipeline_dags.forget(options.open_ledger(warehouse_url).engine, name, dag_id)
    output.tell(f"forgotten: how DAG {dag_id} defines pipeline {name}, until it runs again")


@command.command("delete")
@click.argument("name", shell_complete=complete_pipelines)
@options.execute_option
@options.warehouse_option
@options.json_option
def delete(name: str, is_executed: bool, warehouse_url: str, as_json: bool) -> None:
    """Delete NAME, which was registered by mistake: nothing may be loaded. Its topic and its table stay as they are."""
    found = removal.remove(options.open_ledger(warehouse_url).engine, name, options.clock(), is_executed=is_executed)
    if as_json:
        output.show_json({"executed": is_executed, **asdict(found)})
        return
    done = "deleted" if is_executed else "would be deleted"
    output.tell(
        f"{done}: pipeline {name}, {many(found.windows, 'window')} frozen and not loaded, {many(found.attempts, 'attempt')}"
    )
    if found.dag_ids:
        output.say(f"note: {', '.join(found.dag_ids)} registers it again when it runs next: remove it first")
    if not is_executed:
        output.say("dry run: nothing was changed; --execute does it")


@command.command("move")
@click.argument("name", shell_complete=complete_pipelines)
@click.option("--table", required=True, help="A table of its own, as table or schema.table.")
@options.execute_option
@options.warehouse_option
@options.json_option
def move(name: str, table: str, is_executed: bool, warehouse_url: str, as_json: bool) -> None:
    """Give NAME a table of its own, if another pipeline is registered for the same one. Its hours must be loaded again."""
    moved = table_moves.move(options.open_ledger(warehouse_url).engine, name, table, options.clock(), is_executed=is_executed)
    if as_json:
        output.show_json({"executed": is_executed, "pipeline": name, **asdict(moved)})
        return
    output.tell(f"pipeline {name}: table {moved.before} becomes {moved.after}")
    output.tell(f"{many(moved.window_count, 'loaded window')} of {name} must be loaded again")
    output.tell(f"pipelines that keep {moved.before}: {', '.join(moved.others)}; all their windows must be audited again")
    if not is_executed:
        output.say("dry run: nothing was changed; --execute does it")
