"""`logbus lag`: how far pipelines are behind, in hours of the schedule."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from logbus.commands import options
from logbus.windows.exact_reader import read_range
from logbus.windows.lag import Lag, Measure, lag_of
from logbus.windows.log_admin import TopicAdmin
from logbus.windows.model import instant_text


@click.command("lag")
@click.option("--pipeline", "pipeline_names", multiple=True, help="A registered pipeline; may be repeated. By default all.")
@options.warehouse_option
@options.bootstrap_option
@options.client_config_option
@options.json_option
@click.option("--bytes", "counts_bytes", is_flag=True, help="Count bytes too, by reading every record that is behind.")
def command(
    pipeline_names: tuple[str, ...],
    warehouse_url: str,
    bootstrap: str,
    client_config: Path | None,
    as_json: bool,
    counts_bytes: bool,
) -> None:
    """Show closed hours that are not loaded, the oldest of them, their records, and when retention would take them."""
    ledger, config, now = options.open_ledger(warehouse_url), options.client_config(bootstrap, client_config), options.clock()
    names = pipeline_names or [pipeline.name for pipeline in ledger.pipelines()]
    log, measure = TopicAdmin(config), reader(config) if counts_bytes else None
    lags = [lag_of(ledger.engine, log, name, now, measure) for name in names]
    if as_json:
        click.echo(json.dumps([lag.summary(now) for lag in lags]))
    else:
        Console().print(lag_table(lags, now))
        for lag in lags:
            if lag.problem:
                click.echo(f"{lag.pipeline}: {lag.problem}")


def reader(config: dict[str, object]) -> Measure:
    """Bytes of keys and values, as loads count them."""

    def measure(topic: str, partition: int, start: int, end: int) -> int:
        records = read_range(config, topic, partition, start, end)
        return sum(len(record.key() or b"") + len(record.value() or b"") for record in records)

    return measure


def lag_table(lags: list[Lag], now: datetime) -> Table:
    table = Table(
        "pipeline", "topic", "hours behind", "oldest hour", "age", "records", "bytes", "in the open hour", "lost", "taken"
    )
    for lag in lags:
        table.add_row(
            lag.pipeline,
            lag.topic,
            "?" if lag.problem else str(lag.hours_behind),
            instant_text(lag.oldest_hour) if lag.oldest_hour else "-",
            span_text(lag.age(now)),
            str(lag.records),
            "-" if lag.bytes_behind is None else str(lag.bytes_behind),
            str(lag.records_open),
            str(lag.records_lost),
            taken_text(lag, now),
        )
    return table


def taken_text(lag: Lag, now: datetime) -> str:
    """`in 3 days, 4:00:00 by retention.ms`."""
    if lag.taken_by is None:
        return "-"
    if lag.taken_at is None:
        return f"by {lag.taken_by}, nobody knows when"
    return f"in {span_text(lag.taken_at - now)} by {lag.taken_by}" if lag.taken_at > now else f"any moment by {lag.taken_by}"


def span_text(span: timedelta | None) -> str:
    return "-" if span is None else str(timedelta(seconds=int(span.total_seconds())))
