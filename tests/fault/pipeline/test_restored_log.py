"""A broker restored from an older copy of its directory, under a pipeline that has loaded records which the copy lacks."""

from __future__ import annotations

import pytest
from logbus.errors import LogChanged
from sqlalchemy import Engine

from spark_jobs.outcomes import LoadState
from tests.support.ledgers import at
from tests.support.real_pipeline import RealPipeline
from tests.support.restoring import RestorableBroker

pytestmark = pytest.mark.usefixtures("without_spark")


@pytest.fixture
def pipeline(restorable: RestorableBroker, engine: Engine) -> RealPipeline:
    """Hour 10 is loaded with 20 records, of which the copy has 10."""
    made = RealPipeline(restorable.server.bootstrap, engine, partitions=1)
    made.send((10 + number / 100, b"before %d" % number) for number in range(10))
    restorable.back_up()
    made.send((10.5 + number / 100, b"lost %d" % number) for number in range(10))
    assert [outcome.state for outcome in made.load(10)] == [LoadState.COMMITTED]
    assert made.audit(10).ok
    restorable.restore()
    return made


def test_nothing_is_loaded_from_a_log_that_was_restored_from_before_the_last_hour(pipeline: RealPipeline) -> None:
    before = pipeline.found()
    with pytest.raises(LogChanged, match="-0 ends at offset 10, and windows are frozen up to 20"):
        pipeline.freeze(11)
    pipeline.send((11 + number / 100, b"after %d" % number) for number in range(25))
    with pytest.raises(LogChanged, match=r"-0 held at offset 19 a record stamped 2015-05-17T10:35:24Z .* 2015-05-17T11:05:24Z"):
        pipeline.freeze(11)
    assert pipeline.loaded_hours() == [10]
    assert pipeline.found() == before


def test_a_reload_from_a_restored_log_is_refused_and_keeps_the_only_copy_of_what_was_lost(pipeline: RealPipeline) -> None:
    before, fingerprint = pipeline.found(), pipeline.ledger.window(pipeline.name, at(10)).fingerprint
    [short] = pipeline.load(10)
    assert short.state is LoadState.FAILED
    assert "-0 ends at offset 10, and windows are frozen up to 20" in str(short.error)
    pipeline.send((11 + number / 100, b"after %d" % number) for number in range(25))
    [other] = pipeline.load(10)
    assert other.state is LoadState.FAILED
    assert "-0 held at offset 19 a record" in str(other.error)
    assert pipeline.found() == before
    assert pipeline.ledger.window(pipeline.name, at(10)).fingerprint == fingerprint


def test_an_hour_frozen_before_the_restore_is_not_loaded_with_other_records(restorable: RestorableBroker, engine: Engine) -> None:
    """Its own last record may be gone and rewritten, or only the one before its first."""
    pipeline = RealPipeline(restorable.server.bootstrap, engine, partitions=1)
    pipeline.send([(10, b"kept"), (10.1, b"kept")])
    restorable.back_up()
    pipeline.send([(10.2, b"lost"), (11, b"lost"), (11.1, b"lost"), (12, b"lost")])
    pipeline.freeze(10, 11)
    restorable.restore()
    pipeline.send((number, b"another") for number in (10.2, 11, 11.1, 12, 13))
    outcomes = pipeline.load(10, 11, freeze=False)
    assert [outcome.state for outcome in outcomes] == [LoadState.FAILED] * 2
    assert all("held at offset" in str(outcome.error) for outcome in outcomes)
    assert len(pipeline.found()) == 0
