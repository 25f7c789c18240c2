"""`logbus stream`: sums, rows and joins that are seconds behind what arrives, and proven equal to each loaded hour."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from logbus import errors, expressions, formatting, model
from logbus.cli import endings, options, output
from logbus.cli.load import SPARK_OPTIONS
from logbus.kafka import client, topics
from logbus.streams import joins, listing, stream_ledger
from logbus.streams.aggregate_definition import EVENT_TIME_DEFAULT
from logbus.streams.definition import (
    MAX_OFFSETS_DEFAULT,
    MAX_ROWS_DEFAULT,
    WINDOW_DEFAULT,
    Lookup,
    Stream,
    define_live_rows,
    define_stream,
)
from logbus.streams.joins import KINDS, Join, define_join

if TYPE_CHECKING:
    from logbus.streams.run import StreamSubmission

COLOURS = {
    **{listing.RUNNING: "green", listing.SILENT: "red", listing.FAILED: "red", listing.STOPPED: "yellow", listing.NEW: "yellow"},
    **{listing.PROVEN: "green", listing.DIFFERENT: "red", listing.BEHIND: "yellow", listing.NOT_LOADED: ""},
}
MEASURE = re.compile(r"(?P<name>[^=]+)=\s*(?P<function>\w+)\s*\(\s*(?P<column>.*?)\s*\)")


@click.group("stream")
def command() -> None:
    """Streams: sums, rows and joins that are seconds behind what arrives, and proven equal to each loaded hour."""


def with_pace(function: options.Function) -> options.Function:
    """What all definitions share."""
    for option in (
        options.json_option,
        options.warehouse_option,
        click.option(
            "--since",
            type=options.Instant(),
            metavar="HOUR",
            help="A frozen hour to begin at; by default the end of the newest one.",
        ),
        click.option(
            "--max-offsets-per-trigger",
            type=click.IntRange(min=1),
            help=f"Offsets that an epoch reads at most: by default {MAX_OFFSETS_DEFAULT:,}, of rows {MAX_ROWS_DEFAULT:,}.",
        ),
        click.option("--trigger", default="2s", show_default=True, help="An epoch begins at most this often."),
        click.option("--table", metavar="NAME", help="The view that is read; by default the stream's name."),
    ):
        function = option(function)
    return function


@command.command("create")
@click.argument("name")
@options.pipeline_option
@click.option("--key", "keys", multiple=True, metavar="COLUMN", help="A column by which rows are grouped; may be repeated.")
@click.option(
    "--measure",
    "measures",
    multiple=True,
    metavar="NAME=FUNCTION(COLUMN)",
    help="What is computed: 'views=count()', 'bytes=sum(bytes)', also min, max, avg; repeatable. By default 'count=count()'.",
)
@click.option("--event-time", default=EVENT_TIME_DEFAULT, show_default=True, metavar="COLUMN", help="When something happened.")
@click.option("--window", default=WINDOW_DEFAULT, show_default=True, help="What a row stands for: a part of an hour.")
@click.option("--where", metavar="CONDITION", help="Which rows count: \"status >= 500 and method = 'GET'\".")
@click.option(
    "--lookup",
    nargs=3,
    metavar="TABLE KEY COLUMNS",
    help="Columns of a table of the warehouse in place of a key: `--lookup hosts host team,site`.",
)
@with_pace
def create(
    name: str,
    pipeline_name: str,
    keys: Sequence[str],
    measures: Sequence[str],
    lookup: tuple[str, str, str] | None,
    **settings: Any,
) -> None:
    """Define the stream NAME, sums over what a pipeline loads. `logbus stream run NAME` then computes it."""
    chosen = dict(measure_of(text) for text in measures or ["count=count()"])
    looked_up = lookup and Lookup(table=lookup[0], on=lookup[1], columns=tuple(lookup[2].split(",")))
    what, how = definition_in(settings)
    define(define_stream(name, pipeline_name, keys=keys, measures=chosen, lookup=looked_up, **what), **how)


@command.command("rows")
@click.argument("name")
@options.pipeline_option
@click.option("--column", "columns", multiple=True, required=True, metavar="COLUMN", help="Of the view; may be repeated.")
@click.option("--index", "indexed", multiple=True, metavar="COLUMN", help="By which rows are looked for; may be repeated.")
@with_pace
def rows(name: str, pipeline_name: str, columns: Sequence[str], indexed: Sequence[str], **settings: Any) -> None:
    """Define the stream NAME, the rows that a pipeline loads, before they are loaded. `logbus stream run NAME` brings them."""
    what, how = definition_in(settings)
    define(define_live_rows(name, pipeline_name, columns=columns, indexed=indexed, **what), **how)


@command.command("join")
@click.argument("name")
@click.option("--left", required=True, metavar="PIPELINE", shell_complete=options.complete_pipelines, help="One side.")
@click.option("--right", required=True, metavar="PIPELINE", shell_complete=options.complete_pipelines, help="The other one.")
@click.option(
    "--on", multiple=True, required=True, metavar="COLUMN[=COLUMN]", help="What is equal, left and right; may be repeated."
)
@click.option("--within", default="1h", show_default=True, help="How far apart the times of both may be.")
@click.option("--kind", type=click.Choice([*KINDS]), default="inner", show_default=True, help="left: also without another half.")
@click.option("--left-column", "left_columns", multiple=True, metavar="[NAME=]COLUMN", help="For the view; may be repeated.")
@click.option("--right-column", "right_columns", multiple=True, metavar="[NAME=]COLUMN", help="For the view; may be repeated.")
@click.option("--event-time", default=EVENT_TIME_DEFAULT, show_default=True, metavar="COLUMN", help="When something happened.")
@with_pace
def join(name: str, on: Sequence[str], left_columns: Sequence[str], right_columns: Sequence[str], **settings: Any) -> None:
    """Define the join NAME of two pipelines, and its streams of rows, NAME_left and NAME_right, which bring what it shows."""
    what, how = definition_in(settings)
    pairs, left, right = (dict(pair_of(text) for text in texts) for texts in (on, left_columns, right_columns))
    define(define_join(name, on=pairs, left_columns=left, right_columns=right, **what), **how)


def pair_of(text: str) -> tuple[str, str]:
    """`paid=amount`, or one name for both."""
    first, _, second = text.partition("=")
    return first, second or first


def definition_in(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What defines a stream, as far as it is given, and where and how it is put into the ledger."""
    how = {name: settings[name] for name in ("since", "warehouse_url", "as_json")}
    return {name: value for name, value in settings.items() if name not in how and value is not None}, how


def define(subject: Stream | Join, *, since: datetime | None, warehouse_url: str, as_json: bool) -> None:
    engine, now = options.open_ledger(warehouse_url).engine, options.clock()
    streams = subject.sides if isinstance(subject, Join) else [subject]
    for stream in streams:
        stream_ledger.require_columns(engine, stream)
    if isinstance(subject, Join):
        stream_ledger.define_join(engine, subject, now, since=since)
    else:
        stream_ledger.define(engine, subject, now, since=since)
    if as_json:
        with engine.connect() as connection:
            summaries = [listing.status_of(connection, stream.name, now).summary(listing.StreamLag()) for stream in streams]
        is_join = isinstance(subject, Join)
        output.show_json({"name": subject.name, "table": subject.table, "streams": summaries} if is_join else summaries[0])
        return
    commands = " and ".join(f"`logbus stream run {stream.name}`" for stream in streams)
    output.echo(
        f"{subject.name}: {subject.words()}", f"read {subject.table}; {commands} {'compute' if streams[1:] else 'computes'} it"
    )


def measure_of(text: str) -> tuple[str, expressions.Measure]:
    """`bytes=sum(bytes)`, as the listing writes it."""
    match = MEASURE.fullmatch(text.strip())
    if match is None or match["function"] not in expressions.FUNCTIONS:
        functions = ", ".join(expressions.FUNCTIONS)
        raise errors.UserError(
            f"--measure {text!r}: write it like 'bytes=sum(bytes)' or 'views=count()'; functions are {functions}"
        )
    if not match["column"] and match["function"] != "count":
        raise errors.UserError(f"--measure {text!r}: {match['function']} needs a column, as in 'bytes=sum(bytes)'")
    return match["name"].strip(), expressions.Measure(match["function"], match["column"] or None)


@command.command("ls")
@options.warehouse_option
@options.with_client
@options.json_option
def list_streams(warehouse_url: str, config: Mapping[str, Any], as_json: bool) -> None:
    """List all streams: whether each runs, how far it is behind, and how many hours are proven."""
    with options.open_ledger(warehouse_url).engine.connect() as connection:
        statuses = listing.all_statuses(connection, options.clock())
        both = joins.joins_in(connection)
    lags = lags_of(statuses, config)
    if as_json:
        output.show_json([status.summary(lags[status.stream.name]) for status in statuses])
        return
    names = ("STREAM", "PIPELINE", "TABLE", "STATE", "LAG", "RECORDS", "PROVEN", "DIFFERENT", "BEHIND")
    table = output.Table(*names, numbers_from=4)
    for status in statuses:
        stream, lag = status.stream, lags[status.stream.name]
        counts = (f"{count:,}" for count in (status.proven, status.different, status.behind))
        table.add_row(stream.name, stream.pipeline, stream.table, coloured(status.state), *lag_cells(lag), *counts)
    output.show(table)
    output.echo(*(f"{each.name}: {each.words()}, of {each.left.name} and {each.right.name}" for each in both))


def lags_of(statuses: Sequence[listing.StreamStatus], config: Mapping[str, Any]) -> dict[str, listing.StreamLag]:
    """By stream; unknown where the broker does not say where the topic ends, which is told on standard error."""
    log, lags = topics.Topics(client.Client.for_question(config)), {}
    for status in statuses:
        try:
            lags[status.stream.name] = status.lag(listing.log_ends(log, status))
        except errors.LogbusError as error:
            output.echo_err(f"{status.stream.name}: how far it is behind is unknown: {error}")
            lags[status.stream.name] = listing.StreamLag()
    return lags


def lag_cells(lag: listing.StreamLag) -> tuple[str, str]:
    return listing.span(lag.seconds), "?" if lag.records is None else f"{lag.records:,}"


@command.command("show")
@click.argument("name", shell_complete=options.complete_streams)
@options.since_option
@options.until_option
@options.warehouse_option
@options.with_client
@options.json_option
def show(
    name: str,
    since: datetime | None,
    until: datetime | None,
    warehouse_url: str,
    config: Mapping[str, Any],
    as_json: bool,
) -> None:
    """Show what NAME computes, how it is, and each hour of arrival: what was read, what was loaded, what its proof found."""
    with options.open_ledger(warehouse_url).engine.connect() as connection:
        status = listing.status_of(connection, name, options.clock())
        hours = listing.hours_of(connection, name, since, until)
    lag = lags_of([status], config)[name]
    if as_json:
        output.show_json({**status.summary(lag), "each_hour": [hour.summary() for hour in hours]})
        return
    stream, (age, records) = status.stream, lag_cells(lag)
    output.echo(
        f"{name}: {stream.words()}",
        f"of pipeline {stream.pipeline} in {stream.table}: {status.state}, {formatting.many(status.epochs, 'epoch')}; "
        f"{records} records behind, lag {age}; hours: {status.proven:,} proven, {status.different:,} different, "
        f"{status.behind:,} behind",
        *([f"{'ended' if status.ended_at else 'waits'}: {status.error}"] if status.error else []),
    )
    table = output.Table("HOUR", "STATE", "READ", "LOADED FROM", "ATTEMPT", "REPLACED BY", numbers_from=2)
    for hour in hours:
        counts = ("-" if count is None else f"{count:,}" for count in (hour.read, hour.loaded, hour.attempt, hour.replaced_by))
        table.add_row(model.instant_text(hour.hour), coloured(hour.state), *counts)
    if hours:
        output.show(table)
    output.echo(*(f"{model.instant_text(hour.hour)} {difference}" for hour in hours for difference in hour.differences))


def with_driver(function: options.Function) -> options.Function:
    """Where a stream's driver runs; the command gets `driver`, what submits it."""

    @functools.wraps(function)
    def collected(
        name: str, warehouse_url: str, config: Mapping[str, Any], master: str, remote: str | None, **chosen: Any
    ) -> Any:
        from logbus.streams.run import StreamSubmission

        with options.open_ledger(warehouse_url).engine.connect() as connection:
            stream_ledger.find(connection, name)  # before Spark is started
        driver = StreamSubmission(
            warehouse_url=warehouse_url, client_config=config, say=output.echo_err, master=master, remote=remote
        )
        return function(name=name, driver=driver, **chosen)

    wrapped: options.Function = options.warehouse_option(options.with_client(collected))
    for option in ("remote", "master"):
        wrapped = SPARK_OPTIONS[option](wrapped)
    return wrapped


@command.command("run")
@click.argument("name", shell_complete=options.complete_streams)
@with_driver
def run(name: str, driver: StreamSubmission) -> None:
    """Compute NAME as its records arrive, until SIGTERM or Ctrl-C: after the epoch that it is at work on; a second one at once.

    If another driver runs it, this one takes over. What was committed is never read again, however the last driver ended.
    """
    driver.run(name)


@command.command("once")
@click.argument("name", shell_complete=options.complete_streams)
@with_driver
@options.json_option
def once(name: str, driver: StreamSubmission, as_json: bool) -> None:
    """Compute NAME up to where its topic ends now, and end."""
    with endings.raising():
        driver.once(name)
    with options.open_ledger(driver.warehouse_url).engine.connect() as connection:
        status = listing.status_of(connection, name, options.clock())
    if as_json:
        output.show_json(status.summary(listing.StreamLag()))
        return
    ends = ", ".join(f"partition {partition} up to {end:,}" for partition, end in status.positions.items())
    output.echo(f"{name}: {formatting.many(status.epochs, 'epoch')} by now; {ends}")


@command.command("prove")
@click.argument("name", shell_complete=options.complete_streams)
@options.since_option
@options.until_option
@options.warehouse_option
@options.json_option
def prove(name: str, since: datetime | None, until: datetime | None, warehouse_url: str, as_json: bool) -> None:
    """Compare hours of NAME with what was loaded: offsets, records, values; status 5 if any differs.

    Without a span, those that are audited and not proven; its DAG does this after each audit. An hour that the stream has not
    read to its end yet is behind, which is no failure. What differs is replaced by what the load brought, and shown by `show`.
    """
    from logbus.streams import proof  # imports Arrow

    engine, now = options.open_ledger(warehouse_url).engine, options.clock()
    if since is None and until is None:
        report = proof.prove_due(engine, name, now)
    else:
        report = proof.prove_span(engine, name, now, since=since, until=until)
    if as_json:
        output.show_json(report.summary())
    else:
        output.echo(f"{name}: " + ", ".join(f"{len(report.of(verdict)):,} {verdict}" for verdict in proof.VERDICTS))
    proof.refuse_different(report)


@command.command("reset")
@click.argument("name", shell_complete=options.complete_streams)
@click.option("--since", required=True, type=options.Instant(), metavar="HOUR", help="The frozen hour to begin at again.")
@options.execute_option
@options.warehouse_option
@options.json_option
def reset(name: str, since: datetime, is_executed: bool, warehouse_url: str, as_json: bool) -> None:
    """Forget what NAME has counted of an hour and of all after it, and begin there again. A driver that runs it is ended."""
    engine, now = options.open_ledger(warehouse_url).engine, options.clock()
    with engine.connect() as connection:
        listing.status_of(connection, name, now)
        hours = listing.hours_of(connection, name, since, None)
    if is_executed:
        stream_ledger.reset(engine, name, since, now)
    if as_json:
        output.show_json({"executed": is_executed, "stream": name, "hours": [hour.summary() for hour in hours]})
        return
    read = formatting.many(sum(hour.read for hour in hours), "record")
    done = "forgotten" if is_executed else "would be forgotten"
    output.echo(f"{done}: {formatting.many(len(hours), 'hour')} with {read} since {model.instant_text(since)}")
    if not is_executed:
        output.echo_err("dry run: nothing was changed; --execute does it")


@command.command("drop")
@click.argument("name", shell_complete=options.complete_streams)
@options.execute_option
@options.warehouse_option
@options.json_option
def drop(name: str, is_executed: bool, warehouse_url: str, as_json: bool) -> None:
    """Forget NAME, and drop its view and its table; the pipeline's rows stay. A DAG that defines it makes it again.

    Of a join, both sides are dropped with it.
    """
    engine = options.open_ledger(warehouse_url).engine
    with engine.connect() as connection:
        names = joins.sides_of(connection, name) or [name]
        statuses = [listing.status_of(connection, each, options.clock()) for each in names]
    if is_executed:
        stream_ledger.drop(engine, name)
    if as_json:
        output.show_json({"executed": is_executed, "streams": [status.summary(listing.StreamLag()) for status in statuses]})
        return
    done = "dropped" if is_executed else "would be dropped"
    streams = [status.stream for status in statuses]
    output.echo(*(f"{done}: view {stream.table} and table {stream.by_arrival} of {stream.pipeline}" for stream in streams))
    if not is_executed:
        output.echo_err("dry run: nothing was changed; --execute does it")


def coloured(state: str) -> output.Coloured:
    return output.Coloured(state, COLOURS[state])
