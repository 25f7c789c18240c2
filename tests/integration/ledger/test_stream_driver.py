"""The driver of a stream over a real ledger, with the log in memory and without Spark: whatever happens to it, what its view shows
is what the log holds, and its epochs tile the log."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from logbus import errors
from logbus.loads.engine import connect
from logbus.streams import stream_ledger
from logbus_spark.records import PlanSlice
from logbus_spark.stream_driver import FAILED_JOBS_MAX
from logbus_spark.stream_task import EpochJob, EpochTaskResult
from sqlalchemy.exc import SQLAlchemyError

from tests.support.cutting import Cut, Killed, kill, lose
from tests.support.examples import TIMES
from tests.support.in_process import without_spark  # noqa: F401
from tests.support.ledgers import World, at, stamps
from tests.support.streams import NAME, StreamWorld, run_tasks_in_memory

pytestmark = pytest.mark.usefixtures("without_spark")

# Lines of four hours; one of the hour before arrives late, and some arrive out of order.
ARRIVALS = [10.0, 10.1, 10.5, 10.4, 10.9, 11.0, 11.5, 10.95, 11.6, 13.0, 13.1, 13.1, 13.2, 12.9]
HOURS_OF_ARRIVAL = {(0, 5): 10, (5, 9): 11, (9, 14): 13}


@pytest.fixture
def stream(world: World) -> StreamWorld:
    world.fill(*ARRIVALS)
    stream = StreamWorld(world)
    stream.define()
    return stream


def positions(stream: StreamWorld) -> dict[int, int]:
    return stream_ledger.positions(stream.world.ledger.engine, NAME)


def refuse_wrong(stream: StreamWorld) -> None:
    stream.refuse_gaps()
    assert stream.view() == stream.truth()


def test_a_backlog_is_read_in_one_epoch_whose_parts_are_the_hours_in_which_records_arrived(stream: StreamWorld) -> None:
    done = stream.driver().run(once=True)
    assert (done.epochs, done.read) == (1, len(ARRIVALS))
    assert stream.hours() == HOURS_OF_ARRIVAL
    refuse_wrong(stream)


@pytest.mark.parametrize(("count", "offsets_max", "epochs"), [(14, 200, 1), (14, 13, 2), (14, 2, 7), (100, 1, 100)])
def test_once_ends_when_everything_is_committed_in_however_many_epochs(
    stream: StreamWorld, count: int, offsets_max: int, epochs: int
) -> None:
    stream.world.fill(*[13.3] * (count - len(ARRIVALS)))
    stream.define(max_offsets_per_trigger=offsets_max)
    assert stream.driver().run(once=True).epochs == epochs
    assert positions(stream) == {0: count}
    assert stream.hours() == {**dict(list(HOURS_OF_ARRIVAL.items())[:2]), (9, count): 13}
    refuse_wrong(stream)


def test_once_leaves_what_arrives_after_its_start_to_the_next_run(stream: StreamWorld) -> None:
    def append_and_run(job: EpochJob, slices: Sequence[PlanSlice], config: Mapping[str, Any]) -> list[EpochTaskResult]:
        stream.world.log.append("t", *stamps(13.5))
        return run_tasks_in_memory(job, slices, config)

    assert stream.driver(run_tasks=append_and_run).run(once=True).read == len(ARRIVALS)
    assert stream.driver().run(once=True).read == 1
    assert stream.driver().run(once=True).epochs == 0
    refuse_wrong(stream)


def test_each_hour_is_proven_once_it_is_loaded(stream: StreamWorld) -> None:
    stream.driver().run(once=True)
    for hour in (10, 11, 12, 13):
        stream.world.freeze(hour)
    stream.load(10, 11, 13)
    proof = stream.prove()
    assert {(hour.hour, hour.verdict) for hour in proof.hours} == {(at(hour), "proven") for hour in (10, 11, 12, 13)}
    refuse_wrong(stream)


def test_a_stream_goes_on_at_the_newest_frozen_hour(world: World) -> None:
    world.fill(*ARRIVALS, freeze=[10])
    stream = StreamWorld(world)
    stream.define()
    stream.driver().run(once=True)
    assert stream.hours() == {(5, 9): 11, (9, 14): 13}
    refuse_wrong(stream)


def test_records_of_an_hour_that_arrive_after_it_was_frozen_are_of_the_next_one(stream: StreamWorld) -> None:
    stream.driver().run(once=True)
    stream.world.freeze(13)
    stream.world.log.append("t", *stamps(13.5, 14.0))
    stream.driver().run(once=True)
    assert stream.hours() == {**HOURS_OF_ARRIVAL, (14, 16): 14}
    refuse_wrong(stream)


def test_a_window_that_is_frozen_while_its_records_are_read_is_planned_again(stream: StreamWorld) -> None:
    def freeze_and_run(job: EpochJob, slices: Sequence[PlanSlice], config: Mapping[str, Any]) -> list[EpochTaskResult]:
        if not stream.world.ledger.windows("p"):
            del stream.world.log.topics["t"][0].stamps_ms[11:]
            stream.world.freeze(13)
            stream.world.log.append("t", *stamps(13.1, 13.2, 12.9))
        return run_tasks_in_memory(job, slices, config)

    done = stream.driver(run_tasks=freeze_and_run).run(once=True)
    assert (done.epochs, done.repairs) == (1, 0)
    assert "planned again" in stream.said[0]
    assert stream.hours() == {(0, 5): 10, (5, 9): 11, (9, 11): 13, (11, 14): 14}
    refuse_wrong(stream)


def test_what_was_committed_for_another_hour_than_freezing_decides_is_repaired(world: World) -> None:
    world.fill(*ARRIVALS[:11])
    stream = StreamWorld(world)
    stream.define()

    def append_and_run() -> None:
        world.log.append("t", *stamps(*ARRIVALS[11:]))
        stream.driver().run(once=True)

    world.log.before("start_offsets", append_and_run)  # when freezing has asked already where the log ends
    world.freeze(13)
    assert stream.hours() == HOURS_OF_ARRIVAL
    done = stream.driver().run(once=True)
    assert (done.epochs, done.repairs) == (0, 1)
    assert stream.hours() == {(0, 5): 10, (5, 9): 11, (9, 11): 13, (11, 14): 14}
    refuse_wrong(stream)


def test_a_repair_of_more_rows_than_memory_is_meant_for_is_refused_and_the_error_says_what_to_type(
    world: World, run: Callable[..., Any]
) -> None:
    world.fill(*ARRIVALS[:11], freeze=[10, 11])
    stream = StreamWorld(world)
    stream.define(since=at(10), max_offsets_per_trigger=1)

    def append_and_run() -> None:
        world.log.append("t", *stamps(*ARRIVALS[11:]))
        stream.driver().run(once=True)

    world.log.before("start_offsets", append_and_run)
    world.freeze(13)
    driver = stream.driver()
    driver.repair_rows_max = 1
    with pytest.raises(errors.WrongRequest, match="more than 1 rows are too many to replace at once") as refusal:
        driver.run(once=True)
    command = str(refusal.value).split("`")[1].split()
    run(*command[1:])
    driver = stream.driver()
    driver.repair_rows_max = 1
    assert driver.run(once=True).repairs == 0
    assert stream.hours() == {(0, 5): 10, (5, 9): 11, (9, 11): 13, (11, 14): 14}
    refuse_wrong(stream)


def test_a_driver_whose_jvm_has_ended_does_not_wait_for_a_broker(stream: StreamWorld) -> None:
    def away() -> None:
        ended.set()
        raise errors.BrokerUnavailable("nobody answers")

    ended = threading.Event()
    stream.world.log.before("end_offsets", away)
    driver = stream.driver()
    driver.has_lost_spark = ended.is_set
    with pytest.raises(errors.LoadFailed, match="the JVM of this stream's driver has ended"):
        driver.run()
    assert stream.said == ["trying again: nobody answers"]
    assert stream.world.one("select error from logbus.stream").startswith("the JVM of this stream's driver has ended")


def test_only_the_newest_of_two_drivers_commits(stream: StreamWorld) -> None:
    def begin_another(job: EpochJob, slices: Sequence[PlanSlice], config: Mapping[str, Any]) -> list[EpochTaskResult]:
        stream.driver().run(once=True)
        return run_tasks_in_memory(job, slices, config)

    with pytest.raises(errors.AttemptSuperseded, match="driver 1 of stream s is superseded by driver 2, of run run 2"):
        stream.driver(run_tasks=begin_another).run(once=True)
    refuse_wrong(stream)


def test_a_driver_that_has_nothing_to_commit_learns_by_its_heartbeat_that_another_has_begun(stream: StreamWorld) -> None:
    stream.driver().run(once=True)
    idle = stream.driver()
    idle.beat_seconds = 0.05
    stop = threading.Timer(0.2, lambda: stream.driver().run(once=True))
    stop.start()
    with pytest.raises(errors.AttemptSuperseded):
        idle.run()
    stop.join()


def test_a_driver_that_is_stopped_commits_the_epoch_that_it_is_at(stream: StreamWorld) -> None:
    stop = threading.Event()

    def stop_and_run(job: EpochJob, slices: Sequence[PlanSlice], config: Mapping[str, Any]) -> list[EpochTaskResult]:
        stop.set()
        return run_tasks_in_memory(job, slices, config)

    driver = stream.driver(run_tasks=stop_and_run)
    driver.stop = stop
    assert driver.run().epochs == 1
    assert stream.world.one("select error is null and ended_at is not null from logbus.stream")
    refuse_wrong(stream)


def test_a_checkpoint_that_spark_is_configured_with_is_overruled_in_one_line(stream: StreamWorld, tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "7").touch()
    assert stream.driver(checkpoint_location=str(tmp_path)).run(once=True).epochs == 1
    stream.driver(checkpoint_location="s3a://clicks").run(once=True)
    by_the_ledger = "is overruled: a stream keeps no checkpoint, and by the ledger s is at epoch"
    assert stream.said == [
        f"spark.sql.streaming.checkpointLocation = {tmp_path} {by_the_ledger} 0, offsets 0:0. The directory holds last batch 7",
        f"spark.sql.streaming.checkpointLocation = s3a://clicks {by_the_ledger} 1, offsets 0:{len(ARRIVALS)}",
    ]
    refuse_wrong(stream)


def test_a_new_partition_is_read_from_its_first_record_on(stream: StreamWorld) -> None:
    stream.driver().run(once=True)
    stream.world.log.add_partitions("t", 2)
    stream.world.log.append("t", *stamps(13.2, 14.1), partition=1)
    stream.driver().run(once=True)
    assert stream.hours(partition=1) == {(0, 1): 13, (1, 2): 14}
    refuse_wrong(stream)


def test_a_partition_that_windows_were_frozen_without_belongs_to_the_hours_after_them(stream: StreamWorld) -> None:
    stream.world.freeze(12)
    stream.world.log.add_partitions("t", 2)
    stream.world.log.append("t", *stamps(12.5, 13.2, 14.1), partition=1)
    stream.driver().run(once=True)
    stream.world.freeze(13)
    assert stream.driver().run(once=True).repairs == 0
    assert stream.hours(partition=1) == {(0, 2): 13, (2, 3): 14}
    refuse_wrong(stream)


def test_records_whose_loss_was_accepted_are_passed_over(world: World) -> None:
    world.fill(*ARRIVALS, freeze=[10, 11])
    stream = StreamWorld(world)
    stream.define(since=at(11))
    world.log.delete_records("t", 7)
    world.accept_loss(11)
    assert stream.driver().run(once=True).read == len(ARRIVALS) - 7
    assert stream.hours() == {(5, 9): 11, (9, 14): 13}


def test_a_pipeline_that_is_changed_is_followed_from_the_next_window_on(stream: StreamWorld) -> None:
    """Its load is, too."""
    stream.driver().run(once=True)
    changed = stream.driver()

    def change_and_run(job: EpochJob, slices: Sequence[PlanSlice], config: Mapping[str, Any]) -> list[EpochTaskResult]:
        parsers.append(job.settings)
        stream.world.register(settings={"max_ahead_minutes": 20})
        stream.world.freeze(13)
        stream.world.log.append("t", *stamps(14))
        if len(parsers) == 2:
            changed.stop.set()
        return run_tasks_in_memory(job, slices, config)

    parsers: list[Mapping[str, Any]] = []
    changed.run_tasks = change_and_run
    stream.world.log.append("t", *stamps(13.5))
    changed.run()
    assert parsers == [{}, {"max_ahead_minutes": 20}]
    refuse_wrong(stream)


def test_records_without_a_usable_stamp_wait_for_the_hour_that_they_belong_to(world: World) -> None:
    world.fill()
    world.log.append("t", -1, -1)
    stream = StreamWorld(world)
    stream.define()
    assert stream.driver().run(once=True).epochs == 0
    world.log.append("t", *stamps(10.5))
    stream.driver().run(once=True)
    assert stream.hours() == {(0, 3): 10}
    assert world.rows("select untimed_count from logbus.epoch_part") == [(1,)]


def test_a_topic_that_was_made_again_ends_the_stream(stream: StreamWorld) -> None:
    stream.driver().run(once=True)
    stream.world.log.fill("t", stamps(14))
    with pytest.raises(errors.TopicRecreated):
        stream.driver().run(once=True)
    assert "was deleted and recreated" in stream.world.one("select error from logbus.stream")


def test_a_log_that_has_lost_its_end_ends_the_stream(stream: StreamWorld) -> None:
    stream.driver().run(once=True)
    stream.world.log.cut("t", 3)
    with pytest.raises(errors.LogChanged, match="t-0 ends at 3, and the stream has read up to 14"):
        stream.driver().run(once=True)


def test_a_broker_that_is_away_is_waited_for(stream: StreamWorld) -> None:
    def away() -> None:
        raise errors.BrokerUnavailable("nobody answers")

    stream.world.log.before("end_offsets", away)
    assert stream.driver().run(once=True).epochs == 1
    assert stream.said == ["trying again: nobody answers"]


@pytest.mark.parametrize("failures", [FAILED_JOBS_MAX - 1, FAILED_JOBS_MAX])
def test_a_job_that_fails_is_repeated_a_few_times(stream: StreamWorld, failures: int) -> None:
    attempts: Iterator[bool] = iter([False] * failures + [True])

    def fail(job: EpochJob, slices: Sequence[PlanSlice], config: Mapping[str, Any]) -> list[EpochTaskResult]:
        if next(attempts):
            return run_tasks_in_memory(job, slices, config)
        raise RuntimeError("a worker has crashed")

    driver = stream.driver(run_tasks=fail)
    if failures < FAILED_JOBS_MAX:
        assert driver.run(once=True).epochs == 1
        refuse_wrong(stream)
        return
    with pytest.raises(errors.LoadFailed, match="the Spark job failed: a worker has crashed"):
        driver.run(once=True)
    assert stream.world.one("select error from logbus.stream").startswith("the Spark job failed")


STRIDE = 1 if TIMES > 1 else 9


@pytest.mark.parametrize("act", [kill, lose])
def test_a_driver_killed_or_cut_off_at_any_statement_leaves_whole_epochs(stream: StreamWorld, act: Any) -> None:
    """Its successor finds out from the ledger alone how far it came."""
    stream.define(max_offsets_per_trigger=5)
    first = Cut(act)
    run_cut_off(stream, first)
    refuse_wrong(stream)
    assert len(first.passed) > 30
    for point in [number for number, what in enumerate(first.passed) if what == "after commit" or number % STRIDE == 0]:
        stream_ledger.drop(stream.world.ledger.engine, NAME)
        stream.define(max_offsets_per_trigger=5)
        run_cut_off(stream, Cut(act, at=point))
        if positions(stream)[0]:
            refuse_wrong(stream)
        stream.driver().run(once=True)
        assert positions(stream) == {0: len(ARRIVALS)}, first.passed[point]
        refuse_wrong(stream)


def run_cut_off(stream: StreamWorld, cut: Cut) -> None:
    engine = cut.on(connect(stream.world.url))
    try:
        stream.driver(engine).run(once=True)
    except (Killed, errors.LogbusError, SQLAlchemyError):
        pass
    finally:
        engine.dispose()
