"""`logbus ledger`: the version of the ledger's tables, and rebuilding a lost ledger.

Every task and every command upgrades the tables automatically; `upgrade` does it at a time of your choice.
"""

from __future__ import annotations

from typing import Any

import click

from logbus.commands import options, output
from logbus.errors import LogbusError
from logbus.ledger.migrations import REVISION, create_ledger, ledger_revision
from logbus.model import instant_text
from logbus.warehouse.engine import connect
from logbus.warehouse.rebuild import Rebuilt, rebuild
from logbus.wording import many


@click.group("ledger")
def command() -> None:
    """The ledger's own tables."""


@command.command("upgrade")
@options.warehouse_option
def upgrade(warehouse_url: str) -> None:
    """Create the ledger, or upgrade it; does nothing if it is up to date."""
    engine = connect(warehouse_url)
    before = ledger_revision(engine)
    create_ledger(engine)
    output.tell(f"the ledger is at version {REVISION}" + ("" if before == REVISION else f"; it was {described(before)}"))


@command.command("version")
@options.warehouse_option
@options.json_option
def version(warehouse_url: str, as_json: bool) -> None:
    """Print the version of the ledger in the warehouse, and the one that this logbus needs."""
    found = ledger_revision(connect(warehouse_url))
    if as_json:
        output.show_json({"ledger": found, "logbus": REVISION})
        return
    output.tell(f"ledger: {described(found)}; this logbus: {REVISION}")


@command.command("rebuild")
@options.pipeline_option
@options.warehouse_option
@options.json_option
def rebuild_windows(pipeline_name: str, warehouse_url: str, as_json: bool) -> None:
    """Rebuild a pipeline's windows from its Iceberg or Parquet table, after the ledger was lost.

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
        raise LogbusError(f"{len(done.refused)} windows could not be rebuilt: " + "; ".join(done.refused))


def tell(done: Rebuilt, pipeline_name: str) -> None:
    output.tell(f"{many(len(done.made), 'window')} rebuilt, {len(done.unchanged)} in the ledger already")
    if done.made:
        output.tell(f"audit them: logbus load --pipeline {pipeline_name} --only-missing")
    for interval in done.without_dead_letters:
        output.tell(f"{instant_text(interval.start)} had dead letters, which were lost with the ledger: load it again")


def summary(done: Rebuilt) -> dict[str, Any]:
    """As JSON-ready values: windows by where they start."""
    kinds = {"made": done.made, "unchanged": done.unchanged, "without_dead_letters": done.without_dead_letters}
    starts = {name: [instant_text(interval.start) for interval in found] for name, found in kinds.items()}
    return {**starts, "refused": list(done.refused)}


def described(revision: str | None) -> str:
    return revision or "none, or from before versions were counted"
