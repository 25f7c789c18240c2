"""`logbus maintain`: merge old hourly partitions into days, remove files that are no longer public."""

from __future__ import annotations

import time
from datetime import timedelta

import click

from logbus.commands import options, output
from logbus.ledger.migrations import create_ledger
from logbus.warehouse.engine import connect
from logbus.warehouse.sinks import Upkeep
from logbus.warehouse.upkeep import maintain


@click.command("maintain")
@click.argument("pipelines", nargs=-1)
@click.option(
    "--keep-hourly-days",
    type=click.IntRange(min=0),
    default=35,
    show_default=True,
    help="Days younger than this keep a partition for each hour (PostgreSQL).",
)
@click.option(
    "--keep-replaced-hours",
    type=click.IntRange(min=0),
    default=24,
    show_default=True,
    help="Files that are not, or no longer, public stay this long (Iceberg, Parquet).",
)
@options.warehouse_option
@options.json_option
def command(
    pipelines: tuple[str, ...], keep_hourly_days: int, keep_replaced_hours: int, warehouse_url: str, as_json: bool
) -> None:
    """Maintain the targets of PIPELINES, by default of all. May be run at any time, alongside loads and readers."""
    engine = connect(warehouse_url)
    create_ledger(engine)
    upkeep = Upkeep(
        now=options.clock(),
        sleep=time.sleep,
        keep_hourly=timedelta(days=keep_hourly_days),
        keep_replaced=timedelta(hours=keep_replaced_hours),
    )
    done = maintain(engine, upkeep, pipelines)
    if as_json:
        output.show_json(done)
        return
    for name, lines in done.items():
        for line in lines or ["nothing to do"]:
            output.tell(f"{name}: {line}")
