"""A warehouse's backup, as docs/running.md says it is made: pg_dump, and pg_restore into an empty database."""

from __future__ import annotations

import subprocess
from pathlib import Path

from logbus.loads.embedded import binary
from logbus.loads.engine import connect, libpq_uri
from sqlalchemy import Engine


def uri(engine: Engine) -> str:
    return libpq_uri(engine.url.render_as_string(hide_password=False))


def dump(engine: Engine, path: Path) -> None:
    subprocess.run([str(binary("pg_dump")), "--format=custom", f"--file={path}", uri(engine)], check=True, capture_output=True)


def restored(path: Path, url: str) -> Engine:
    """The dump in an empty database."""
    engine = connect(url)
    command = [str(binary("pg_restore")), "--exit-on-error", f"--dbname={uri(engine)}", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    return engine
