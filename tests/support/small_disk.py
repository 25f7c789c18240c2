"""A disk so small that a test fills it: for a tablespace, or for a broker's data."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from logbus.loads.embedded import SYSTEM_USER
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError


@contextmanager
def mounted(directory: Path, megabytes: int) -> Iterator[None]:
    """A file system of that size in the directory. Only root may make one."""
    options = ["-t", "tmpfs", "-o", f"size={megabytes}m"]
    made = subprocess.run(["mount", *options, "tmpfs", str(directory)], check=False, capture_output=True)
    if made.returncode != 0:
        pytest.skip(f"no file system can be made here: {made.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


@contextmanager
def small_disk() -> Iterator[Path]:
    """Eight megabytes, for the user that PostgreSQL runs as."""
    with tempfile.TemporaryDirectory(prefix="logbus-disk-") as directory, mounted(Path(directory), 8):
        shutil.chown(directory, SYSTEM_USER)
        os.chmod(Path(directory).parent, Path(directory).parent.stat().st_mode | 0o001)
        yield Path(directory)


def run_alone(engine: Engine, statement: str) -> None:
    """Outside any transaction, as statements about tablespaces want it."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(statement))


def fill(engine: Engine) -> None:
    """Until there is no room for one page more."""
    for count in (1000, 30, 1):
        while has_room(engine, count):
            pass


def has_room(engine: Engine, count: int) -> bool:
    try:
        run_alone(engine, f"insert into filler select repeat('x', 1900) from generate_series(1, {count})")
    except OperationalError as error:
        assert "No space left on device" in str(error)
        return False
    return True
