"""Defects in the broker's log. The broker survives them, so a test has to look for them."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from logbus_broker.logs import BROKER_BUG

__all__ = ["defects"]


class _Collector(logging.Handler):
    def __init__(self, found: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        if BROKER_BUG in record.getMessage():
            cause = record.exc_info[1] if record.exc_info else None
            self._found.append(f"{record.getMessage()}: {cause!r}")


@pytest.fixture(autouse=True)
def defects() -> Iterator[list[str]]:
    """Defects that were logged; a test that causes one on purpose removes it (`defects.clear()`)."""
    found: list[str] = []
    collector, logger = _Collector(found), logging.getLogger("broker")
    logger.addHandler(collector)
    yield found
    logger.removeHandler(collector)
    assert found == []
