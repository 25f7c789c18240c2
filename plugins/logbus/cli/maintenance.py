"""`logbus maintain`, `logbus ledger`: upkeep of targets and of the ledger's tables.

Every task and every command upgrades the ledger's tables automatically; `ledger upgrade` does it at a time of your choice.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import click

from logbus import errors, formatting, model
from logbus.cli import options, output
from logbus.loads.engine import connect
from logbus.loads.maintenance import maintain
from logbus.loads.rebuild import Rebuilt, rebuild
from logbus.loads.sinks import MaintenanceOptions
from logbus.windows.migrations import REVISION, create_ledger, ledger_revision


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
    help="Files that are not, or no longer, public stay this long (Iceberg).",
)
@options.warehouse_option
@options.json_option
def maintain_command(
    pipelines: tuple[str, ...], keep_hourly_days: int, keep_replaced_hours: int, warehouse_url: str, as_json: bool
) -> None:
    """Maintain the targets of PIPELINES, by default of all. May be run at any time, alongside loads and readers."""
    engine = connect(warehouse_url)
    create_ledger(engine)
    maintenance = MaintenanceOptions(
        now=options.clock(),
        sleep=time.sleep,
        keep_hourly=timedelta(days=keep_hourly_days),
        keep_replaced=timedelta(hours=keep_replaced_hours),
    )
    done = maintain(engine, maintenance, pipelines)
    if as_json:
        output.show_json(done)
        return
    for name, lines in done.items():
        for line in lines or ["nothing to do"]:
            output.echo(f"{name}: {line}")


@click.group("ledger")
def ledger_command() -> None:
    """The ledger's own tables."""


@ledger_command.command("upgrade")
@options.warehouse_option
def upgrade(warehouse_url: str) -> None:
    """Create the ledger, or upgrade it; does nothing if it is up to date."""
    engine = connect(warehouse_url)
    before = ledger_revision(engine)
    create_ledger(engine)
    output.echo(f"the ledger is at version {REVISION}" + ("" if before == REVISION else f"; it was {described(before)}"))


@ledger_command.command("version")
@options.warehouse_option
@options.json_option
def version(warehouse_url: str, as_json: bool) -> None:
    """Print the version of the ledger in the warehouse, and the one that this logbus needs."""
    revision = ledger_revision(connect(warehouse_url))
    if as_json:
        output.show_json({"ledger": revision, "logbus": REVISION})
        return
    output.echo(f"ledger: {described(revision)}; this logbus: {REVISION}")


@ledger_command.command("rebuild")
@options.pipeline_option
@options.warehouse_option
@options.json_option
def rebuild_windows(pipeline_name: str, warehouse_url: str, as_json: bool) -> None:
    """Rebuild a pipeline's windows from its Iceberg table, after the ledger was lost.

    Register the pipeline first, as it was. Windows that are in the ledger already stay as they are.
    """
    engine = connect(warehouse_url)
    create_ledger(engine)
    done = rebuild(engine, pipeline_name)
    if as_json:
        output.show_json(summary(done))
    else:
        tell(done, pipeline_name)
    if done.refused:
        raise errors.LogbusError(f"{len(done.refused)} windows could not be rebuilt: " + "; ".join(done.refused))


def tell(done: Rebuilt, pipeline_name: str) -> None:
    output.echo(f"{formatting.many(len(done.rebuilt), 'window')} rebuilt, {len(done.unchanged)} in the ledger already")
    if done.rebuilt:
        output.echo(f"audit them: logbus load --pipeline {pipeline_name} --only-missing")
    for interval in done.without_dead_letters:
        output.echo(f"{model.instant_text(interval.start)} had dead letters, which were lost with the ledger: load it again")


def summary(done: Rebuilt) -> dict[str, Any]:
    """As JSON-ready values: windows by where they start."""
    kinds = {"rebuilt": done.rebuilt, "unchanged": done.unchanged, "without_dead_letters": done.without_dead_letters}
    starts = {name: [model.instant_text(interval.start) for interval in intervals] for name, intervals in kinds.items()}
    return {**starts, "refused": list(done.refused)}


def described(revision: str | None) -> str:
    return revision or "none"
