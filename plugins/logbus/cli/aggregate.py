"""`logbus aggregate`: tables that are computed from a pipeline's rows, by the hours of their own times."""

from __future__ import annotations

from datetime import datetime

import click

from logbus import formatting, model
from logbus.cli import options, output
from logbus.streams import aggregate_listing, hourly_aggregates

COLOURS = {"exact": "green", "wrong": "red", "behind": "yellow", "kept": "yellow", "not audited": "yellow"}


@click.group("aggregate")
def command() -> None:
    """Aggregates: defined by `hourly_aggregate` in a DAG, exact over the hours of the rows' own times."""


@command.command("ls")
@options.warehouse_option
@options.json_option
def list_aggregates(warehouse_url: str, as_json: bool) -> None:
    """List all aggregates: of which pipeline, how many hours, and how many windows behind."""
    with options.open_ledger(warehouse_url).engine.connect() as connection:
        statuses = aggregate_listing.all_statuses(connection)
    if as_json:
        output.show_json([status.summary() for status in statuses])
        return
    table = output.Table("AGGREGATE", "PIPELINE", "TABLE", "STATE", "HOURS", "WINDOWS", "BEHIND", numbers_from=4)
    for status in statuses:
        aggregate = status.aggregate
        counts = (f"{count:,}" for count in (status.hours, status.windows, status.behind))
        table.add_row(aggregate.name, aggregate.pipeline, aggregate.table, coloured(status.verdict), *counts)
    output.show(table)


@command.command("show")
@click.argument("name")
@options.since_option
@options.until_option
@options.warehouse_option
@options.json_option
def show(name: str, since: datetime | None, until: datetime | None, warehouse_url: str, as_json: bool) -> None:
    """Show what NAME computes, and each hour: its rows, how many windows and rows of the pipeline touch it."""
    with options.open_ledger(warehouse_url).engine.connect() as connection:
        status = aggregate_listing.status_of(connection, name)
        hours = aggregate_listing.hours_of(connection, name, since, until)
    if as_json:
        output.show_json({**status.summary(), "each_hour": [hour.summary() for hour in hours]})
        return
    aggregate = status.aggregate
    output.echo(
        f"{aggregate.name}: {aggregate.words()}",
        f"of pipeline {aggregate.pipeline} in table {aggregate.table}: {formatting.many(status.windows, 'window')} in it, "
        f"{status.behind:,} behind; {formatting.many(status.untimed, 'row')} without {aggregate.event_time}, in no hour",
        *(
            [f"{formatting.many(status.missing, 'row')} were gone with their partitions before it was made"]
            if status.missing
            else []
        ),
        *([f"newest aggregation: {status.newest}: {status.error}"] if status.error else []),
    )
    table = output.Table("HOUR", "STATE", "ROWS", "WINDOWS", "ROWS OF PIPELINE", "AGGREGATION", numbers_from=2)
    for hour in hours:
        counts = (f"{count:,}" for count in (hour.rows, hour.windows, hour.touching_rows))
        table.add_row(model.instant_text(hour.hour), coloured(hour.verdict), *counts, str(hour.aggregation))
    if hours:
        output.show(table)
    output.echo(*(f"{model.instant_text(hour.hour)} {problem}" for hour in hours for problem in hour.problems))
    output.echo(*(f"{model.instant_text(hour.hour)} kept as it is: {hour.kept_because}" for hour in hours if hour.kept_because))


@command.command("run")
@click.argument("name")
@options.warehouse_option
@options.json_option
def run(name: str, warehouse_url: str, as_json: bool) -> None:
    """Bring NAME up to date: compute the hours again that new loads touch. Its DAG does this after each load."""
    engine = options.open_ledger(warehouse_url).engine
    done = hourly_aggregates.bring_up_to_date(engine, name, "command line", options.clock)
    if as_json:
        output.show_json(done.summary())
        return
    counts = {"window": done.windows, "hour": len(done.hours), "row": done.rows}
    output.echo(f"{name}: " + ", ".join(formatting.many(count, what) for what, count in counts.items()))
    output.echo(*(f"{model.instant_text(hour)} kept as it is: {reason}" for hour, reason in done.kept.items()))


@command.command("verify")
@click.argument("name")
@options.since_option
@options.until_option
@click.option("--full", "is_full", is_flag=True, help="Read the pipeline's whole table, whatever the ledger says of its hours.")
@options.warehouse_option
@options.json_option
def verify(name: str, since: datetime | None, until: datetime | None, is_full: bool, warehouse_url: str, as_json: bool) -> None:
    """Compute the hours of NAME again and compare them row by row; status 5 if any differs.

    Not compared are hours that a load has touched since the last run, called behind, and those that a run has kept as they were
    because rows are gone that had been counted in them.
    """
    engine = options.open_ledger(warehouse_url).engine
    proven = aggregate_listing.prove_span(engine, name, options.clock(), since=since, until=until, is_full=is_full)
    if as_json:
        output.show_json(proven.summary())
    else:
        output.echo(f"{name}: " + ", ".join(f"{len(proven.of(verdict)):,} {verdict}" for verdict in aggregate_listing.VERDICTS))
    aggregate_listing.refuse_wrong(proven)


@command.command("drop")
@click.argument("name")
@options.execute_option
@options.warehouse_option
@options.json_option
def drop(name: str, is_executed: bool, warehouse_url: str, as_json: bool) -> None:
    """Forget NAME and drop its table; the pipeline's rows stay. If a DAG defines it, its next run makes it again."""
    engine = options.open_ledger(warehouse_url).engine
    with engine.connect() as connection:
        status = aggregate_listing.status_of(connection, name)
    if is_executed:
        aggregate_listing.drop_aggregate(engine, name)
    if as_json:
        output.show_json({"executed": is_executed, **status.summary()})
        return
    done, hours = "dropped" if is_executed else "would be dropped", formatting.many(status.hours, "hour")
    output.echo(f"{done}: table {status.aggregate.table} with {hours} of {status.aggregate.pipeline}")
    if not is_executed:
        output.echo_err("dry run: nothing was changed; --execute does it")


def coloured(verdict: str) -> output.Coloured:
    return output.Coloured(verdict, COLOURS[verdict])
