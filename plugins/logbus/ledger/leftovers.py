"""Staging tables that no running attempt owns: left by drivers that died, or whose attempt was superseded.

Most of them are in the ledger, as attempts that are not cleaned; others belong to windows that a restored ledger no longer
contains. A table is named after its attempt (`w<window>_a<number>_<key>`), so nothing else in the schema is ever touched.
"""

from __future__ import annotations

import re

from sqlalchemy import Engine, select, text

from logbus.ledger import schema
from logbus.ledger.attempts import FAILED, SUPERSEDED, drop_leftovers, drop_tables, sealed, unless_locked
from logbus.ledger.rows import ATTEMPT_RUNNING
from logbus.ledger.table_names import STAGING_SCHEMA

OURS = re.compile(r"w\d+_a\d+(_[0-9a-f]{16})?(_dead)?(_sealed)?")


def ownerless(engine: Engine) -> list[str]:
    """The tables, by name. The tables are listed before the owners: an attempt begun in between is not among the tables yet."""
    row = schema.attempt
    owned = select(row.c.staging_table, row.c.dead_letter_table).where(row.c.state == ATTEMPT_RUNNING)
    with engine.connect() as connection:
        listed = text("select tablename from pg_tables where schemaname = :schema order by tablename")
        present = connection.execute(listed, {"schema": STAGING_SCHEMA}).scalars().all()
        owners = {name for pair in connection.execute(owned) for table in pair for name in (table, sealed(table))}
    return [name for name in present if OURS.fullmatch(name) and name not in owners]


def drop_ownerless(engine: Engine) -> list[str]:
    """Drops them and returns those that are gone; a locked table stays."""
    row = schema.attempt
    over = select(row.c.window_id).where(row.c.state.in_([FAILED, SUPERSEDED]), row.c.cleaned.is_(False)).distinct()
    before = ownerless(engine)
    with engine.connect() as connection:
        windows = connection.execute(over).scalars().all()
    drop_leftovers(engine, windows)
    for name in ownerless(engine):
        with unless_locked(), engine.begin() as connection:
            drop_tables(connection, [name])
    left = set(ownerless(engine))
    return [name for name in before if name not in left]
