"""`logbus lag`: how far pipelines are behind, in hours of the schedule."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import click

from logbus import errors, formatting, model
from logbus.cli import completion, options, output
from logbus.cli.pipeline import NO_PIPELINE
from logbus.kafka import client, exact_reader, topics
from logbus.loads.ledger import Ledger
from logbus.loads.stamped_hours import elsewhere_notes
from logbus.status.lag import Lag, Measure, lag_of

DAY = timedelta(days=1)


@click.command("lag")
@click.option(
    "--pipeline",
    "pipeline_names",
    multiple=True,
    metavar="NAME",
    shell_complete=completion.complete_pipelines,
    help="A registered pipeline; may be repeated. By default all.",
)
@options.warehouse_option
@options.with_client
@options.json_option
@click.option("--bytes", "counts_bytes", is_flag=True, help="Count bytes too, by reading every record that is behind.")
@click.option(
    "--fail-above",
    "hours_max",
    type=options.Hours(),
    metavar="HOURS",
    help="Exit with status 5 if a pipeline is more hours behind, or by an unknown number.",
)
def command(
    pipeline_names: tuple[str, ...],
    warehouse_url: str,
    config: Mapping[str, Any],
    as_json: bool,
    counts_bytes: bool,
    hours_max: float | None,
) -> None:
    """Show closed hours that are not loaded, the oldest of them, their records, and when retention would delete them."""
    ledger, now = options.open_ledger(warehouse_url), options.clock()
    names = pipeline_names or [pipeline.name for pipeline in ledger.pipelines()]
    log, measure = topics.Topics(client.Client.for_question(config)), reader(config) if counts_bytes else None
    lags = [lag_or_problem(ledger, log, name, now, measure) for name in names]
    show(lags, now, as_json)
    if not as_json:
        with ledger.engine.connect() as connection:
            for note in elsewhere_notes(connection, names):
                output.echo_err(f"note: {note}")
    check(lags, hours_max)


def show(lags: list[Lag], now: datetime, as_json: bool) -> None:
    if not lags:
        output.echo_err(NO_PIPELINE)
    if as_json:
        output.show_json([lag.summary(now) for lag in lags])
        return
    output.show(lag_table(lags, now))
    for lag in lags:
        if lag.problem:
            output.echo_err(f"{lag.pipeline}: {lag.problem}")
        if lag.expiry_problem:
            output.echo_err(f"note: {lag.pipeline}: when retention deletes its records is unknown: {lag.expiry_problem}")


def lag_or_problem(ledger: Ledger, log: topics.Topics, name: str, now: datetime, measure: Measure | None) -> Lag:
    """A pipeline whose topic cannot be read is one line with its problem, and does not hide the others."""
    try:
        return lag_of(ledger.engine, log, name, now, measure)
    except (errors.BrokerUnavailable, errors.PipelineUnknown):
        raise
    except errors.LogbusError as problem:
        return Lag(pipeline=name, topic=ledger.pipeline(name).topic, records_behind={}, problem=str(problem))


def check(lags: list[Lag], hours_max: float | None) -> None:
    """`Behind` names the pipelines that are further behind than that. `TopicMissing` if nothing is known of any."""
    behind = [] if hours_max is None else [lag for lag in lags if lag.problem or lag.hours_behind > hours_max]
    if behind:
        names = ", ".join(f"{lag.pipeline} ({'?' if lag.problem else lag.hours_behind})" for lag in behind)
        raise errors.Behind(f"{len(behind)} of {len(lags)} pipelines are more than {hours_max:g} hours behind: {names}")
    if lags and all(lag.problem for lag in lags):
        raise errors.TopicMissing(f"nothing is known of {', '.join(lag.pipeline for lag in lags)}: {lags[0].problem}")


def reader(config: Mapping[str, Any]) -> Measure:
    """Bytes of keys and values, as loads count them."""

    def measure(topic: str, partition: int, start: int, end: int) -> int:
        records = exact_reader.read_range(config, topic, partition, start, end, say=output.echo_err)
        shown = output.tracked(records, f"reading {topic}-{partition}", end - start)
        return sum(len(record.key() or b"") + len(record.value() or b"") for record in shown)

    return measure


def lag_table(lags: list[Lag], now: datetime) -> output.Table:
    table = output.Table(
        "pipeline",
        "topic",
        "hours behind",
        "empty hours",
        "oldest hour",
        "age",
        "records",
        "bytes",
        "in the open hour",
        "lost",
        "expires",
    )
    for lag in lags:
        if lag.problem:
            table.add_row(lag.pipeline, lag.topic, *["?"] * (len(table.names) - 2))
            continue
        table.add_row(
            lag.pipeline,
            lag.topic,
            str(lag.hours_behind),
            str(lag.hours_empty),
            model.instant_text(lag.oldest_hour) if lag.oldest_hour else "-",
            span_text(lag.age(now)),
            str(lag.records),
            "-" if lag.bytes_behind is None else str(lag.bytes_behind),
            str(lag.records_open),
            str(lag.records_lost),
            taken_text(lag, now),
        )
    return table


def taken_text(lag: Lag, now: datetime) -> str:
    """`in 3 days 4 h by retention.ms`."""
    if lag.expiry_problem:
        return "unknown"
    if lag.expires_by is None:
        return "-"
    if lag.expires_at is None:
        return f"by {lag.expires_by}, time unknown"
    return (
        f"in {span_text(lag.expires_at - now)} by {lag.expires_by}" if lag.expires_at > now else f"any moment by {lag.expires_by}"
    )


def span_text(span: timedelta | None) -> str:
    """`4:00:00`; from a day on `3 days 4 h`, without minutes and seconds."""
    if span is None:
        return "-"
    if span < DAY:
        return str(timedelta(seconds=int(span.total_seconds())))
    return f"{formatting.many(span.days, 'day')} {span.seconds // 3600} h"
