"""Where stories are played: one database for all, two engines (other steps run before the driver's transactions), a directory."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from logbus.loads.engine import warehouse_url
from logbus.windows.migrations import create_ledger
from sqlalchemy import create_engine, event, text

# No statement here waits for another, unless the machine has a defect.
LOCK_TIMEOUT = "-c lock_timeout=20s -c statement_timeout=60s"

# The ledger's tables are emptied after this many stories: rows of earlier ones only cost time.
STORIES_KEPT = 100


class Bench:
    """`new_name` begins a story and cleans up after earlier ones."""

    def __init__(self, url: str, directory: Path) -> None:
        options = {"connect_args": {"options": LOCK_TIMEOUT}}
        self.directory = directory
        self.engine, self.driver = (create_engine(warehouse_url(url), **options) for _ in range(2))
        self._numbers = itertools.count(1)
        self._left: int | None = None
        self._do: Callable[[], None] = lambda: None
        self._thread = threading.get_ident()
        create_ledger(self.engine)
        event.listen(self.driver, "begin", self._passes)

    def close(self) -> None:
        for engine in (self.engine, self.driver):
            engine.dispose()

    def new_name(self) -> str:
        number = next(self._numbers)
        with self.engine.begin() as connection:
            connection.execute(text(f"drop table if exists h{number - 1}"))
            if connection.execute(text("select to_regclass('iceberg_tables') is not null")).scalar_one():
                connection.execute(text("delete from iceberg_tables"))
            if number % STORIES_KEPT == 0:
                empty(connection)
        return f"h{number}"

    @contextmanager
    def before_transaction(self, number: int | None, do: Callable[[], None]) -> Iterator[None]:
        """Runs `do` before the driver's n-th transaction from here on."""
        outer = self._left, self._do
        self._left, self._do = number, do
        try:
            yield
        finally:
            self._left, self._do = outer

    def _passes(self, connection: Any) -> None:
        if self._left is None or threading.get_ident() != self._thread:
            return
        self._left -= 1
        if self._left < 0:
            self._left = None
            self._do()


def empty(connection: Any) -> None:
    """Remove what stories left: their rows in the ledger, tables of attempts that were killed."""
    names = connection.execute(
        text("select tablename from pg_tables where schemaname = 'logbus' and tablename <> 'alembic_version'")
    )
    connection.execute(text(f"truncate {', '.join(f'logbus.{name}' for name in names.scalars())} cascade"))
    staged = connection.execute(text("select tablename from pg_tables where schemaname = 'logbus_staging'")).scalars().all()
    if staged:
        connection.execute(text(f"drop table {', '.join(f'logbus_staging.{name}' for name in staged)}"))
