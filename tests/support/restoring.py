"""A broker whose data can be backed up and restored: records acknowledged in between are lost.

In a conftest.py: `from tests.support.restoring import restorable  # noqa: F401`
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.peers.logbus import LogbusBroker


class RestorableBroker:
    """A broker whose data can be backed up and restored."""

    def __init__(self, directory: Path) -> None:
        self.server, self.copy = LogbusBroker(directory / "broker"), directory / "copy"

    def back_up(self) -> None:
        self.server.stop()
        shutil.rmtree(self.copy, ignore_errors=True)
        shutil.copytree(self.server.data, self.copy)
        self.server.start()

    def restore(self) -> None:
        self.server.kill9()
        shutil.rmtree(self.server.data)
        shutil.copytree(self.copy, self.server.data)
        self.server.start()


@pytest.fixture
def restorable(tmp_path: Path) -> Iterator[RestorableBroker]:
    broker = RestorableBroker(tmp_path)
    with broker.server:
        yield broker
