"""Hours without a record between two that hold some, for the loads of thousands of them at once.

In a conftest.py: `from tests.support.quiet_hours import quiet  # noqa: F401`
"""

from __future__ import annotations

from typing import Any

import pytest
from logbus.model import AuditReport, FrozenWindow
from logbus.warehouse.empty_windows import load_empty
from sqlalchemy import text

from tests.support.ledgers import NOW, World, at, stamps

TABLES = ("window", "attempt", "window_range", "window_hour")  # of the ledger, with what is known of a window

EMPTY = range(2, 8)  # hours between the two that hold records

# What two windows may differ in that are loaded alike.
OF_THEIR_OWN = {"id", "window_id", "starts_at", "ends_at", "key", "staging_table", "dead_letter_table", "run_id"}


@pytest.fixture
def quiet(world: World) -> World:
    """Hours 1 and 8 hold records in two partitions, the hours between them none; all are frozen, and 1 is loaded."""
    world.log.create("t", partitions=2)
    for partition in (0, 1):
        world.log.append("t", *stamps(1.2, 8.2), partition=partition)
    world.register()
    for number in range(1, 9):
        world.freeze(number)
    return world


def windows(world: World, *numbers: int) -> list[FrozenWindow]:
    return [world.ledger.window("p", at(number)) for number in numbers or EMPTY]


def loaded_together(world: World, *numbers: int) -> list[AuditReport]:
    found = load_empty(world.ledger.engine, world.log, "p", windows(world, *numbers), "together", lambda: NOW)
    return [report for some in found for report in some]


def hours(reports: list[AuditReport]) -> list[int]:
    return [report.window.interval.start.hour for report in reports]


def execute(world: World, statement: str) -> None:
    with world.ledger.engine.begin() as connection:
        connection.execute(text(statement))


def rows(world: World, table: str, number: int) -> list[dict[str, Any]]:
    """Of the hour's window, less what is its own."""
    mine = "id" if table == "window" else "window_id"
    query = f'select * from logbus."{table}" where {mine} = :id'
    with world.ledger.engine.connect() as connection:
        found = connection.execute(text(query), {"id": world.ledger.window("p", at(number)).id}).mappings().all()
    return [{name: value for name, value in row.items() if name not in OF_THEIR_OWN} for row in found]


def waiting(world: World) -> int:
    """How many sessions wait for a lock."""
    query = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    with world.ledger.engine.connect() as connection:
        return int(connection.execute(text(query)).scalar_one())
