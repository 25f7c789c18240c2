"""Backup and restore as in docs/running.md: pg_dump of the warehouse, then a copy of the stopped broker's directory. Whichever
of the two is lost, the hours are complete and none is loaded twice."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from logbus.loads.embedded import EmbeddedPostgres, binary
from logbus.loads.engine import connect, libpq_uri
from logbus_spark.application import LoadState
from sqlalchemy import Engine

from tests.support.real_pipeline import RealPipeline
from tests.support.restoring import RestorableBroker

pytestmark = pytest.mark.usefixtures("without_spark")


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


@pytest.fixture
def pipeline(restorable: RestorableBroker, engine: Engine, tmp_path: Path) -> RealPipeline:
    """Hours 10 and 11 were loaded when the backup was made; 12 has been loaded since."""
    made = RealPipeline(restorable.server.bootstrap, engine)
    for hour in (10, 11):
        for partition in range(2):
            made.send([(hour + number / 100, b"%d of %d" % (number, hour)) for number in range(30)], partition)
    load(made, 10, 11)
    dump(engine, tmp_path / "warehouse.dump")
    restorable.back_up()
    made.send([(12 + number / 100, b"since %d" % number) for number in range(30)])
    load(made, 12)
    return made


def load(pipeline: RealPipeline, *hours: int) -> None:
    assert [outcome.state for outcome in pipeline.load(*hours)] == [LoadState.COMMITTED] * len(hours)
    assert all(pipeline.audit(hour).ok for hour in hours)


def test_a_lost_warehouse_comes_back_and_loads_from_the_broker_what_it_lacks(
    pipeline: RealPipeline, postgres_server: EmbeddedPostgres, tmp_path: Path
) -> None:
    before = pipeline.found()
    other = restored(tmp_path / "warehouse.dump", postgres_server.create_database(f"{pipeline.name}_again"))
    again = RealPipeline.__new__(RealPipeline)  # the topic exists, and the dump has the pipeline
    again.__dict__.update(pipeline.__dict__ | {"engine": other, "ledger": type(pipeline.ledger)(other)})
    assert again.loaded_hours() == [10, 11]
    assert all(again.audit(hour).ok for hour in (10, 11))
    load(again, 12)
    assert again.found() == before == again.expected()
    other.dispose()


def test_a_lost_broker_comes_back_and_what_it_lost_is_refused_and_named_instead_of_guessed(
    pipeline: RealPipeline, restorable: RestorableBroker
) -> None:
    before = pipeline.found()
    restorable.restore()
    assert all(pipeline.audit(hour).ok for hour in (10, 11))  # what the copy holds is what was loaded
    (refused,) = pipeline.load(12)
    assert refused.state is LoadState.FAILED
    assert "-0 ends at offset 60, and windows are frozen up to 90" in str(refused.error)
    assert pipeline.found() == before  # the table has the only copy of hour 12, and keeps it
