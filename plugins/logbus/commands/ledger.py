"""`logbus ledger`: the version of the ledger's tables.

Every task and every command brings them up to date by itself; these are for whoever wants to do that at a time of his own.
"""

from __future__ import annotations

import click

from logbus.commands import options
from logbus.warehouse.engine import connect
from logbus.windows.migrations import REVISION, create_ledger, ledger_revision


@click.group("ledger")
def command() -> None:
    """The ledger's own tables."""


@command.command("upgrade")
@options.warehouse_option
def upgrade(warehouse_url: str) -> None:
    """Make the ledger, or bring it up to date; does nothing where nothing is missing."""
    engine = connect(warehouse_url)
    before = ledger_revision(engine)
    create_ledger(engine)
    click.echo(f"the ledger is at version {REVISION}" + ("" if before == REVISION else f"; it was {described(before)}"))


@command.command("version")
@options.warehouse_option
def version(warehouse_url: str) -> None:
    """Print the version of the ledger in the warehouse, and the one that this logbus makes."""
    found = ledger_revision(connect(warehouse_url))
    click.echo(f"ledger: {described(found)}; this logbus: {REVISION}")


def described(revision: str | None) -> str:
    return revision or "not there, or from before versions were counted"
