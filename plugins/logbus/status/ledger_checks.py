"""The checks of `logbus doctor` on pipelines: what is wrong between ledger and broker, and what to type.

Each check is a function of a `Case` that yields findings; none of them changes anything. `clean` does what is always
safe: it ends attempts without a heartbeat and drops tables that no running attempt owns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Select, func, select

from logbus import errors, model
from logbus.formatting import first_line, many, several
from logbus.kafka.topics import LogAdmin
from logbus.loads import attempts, completeness, roles
from logbus.loads.attempts import end_expired
from logbus.loads.ledger import Ledger
from logbus.status import checks, ledger_facts, retention_run
from logbus.windows import log_changes, missing, rows, schema

WINDOW, ATTEMPT = schema.window, schema.attempt

# A window that was frozen this long ago and never tried: its load probably is never scheduled.
UNTRIED_AFTER = timedelta(hours=1)

NAMED_MAX = 3  # windows or tables that a finding names before it says how many more there are


@dataclass(kw_only=True)
class Case:
    """One pipeline under examination. `log` is None where the broker does not answer."""

    ledger: Ledger
    log: LogAdmin | None
    pipeline: model.Pipeline
    now: datetime

    @property
    def subject(self) -> str:
        return f"pipeline {self.pipeline.name}"

    @cached_property
    def windows(self) -> list[model.FrozenWindow]:
        """Those that a check may report something about."""
        return self.ledger.remarkable_windows(self.pipeline.name)

    @property
    def is_frozen(self) -> bool:
        """Whether there are any windows."""
        return any(ledger_facts.read_windows(self.ledger.engine)[self.pipeline.name].windows.values())

    @property
    def unloaded(self) -> list[model.FrozenWindow]:
        return [window for window in self.windows if window.loaded_attempt is None]


Check = Callable[[Case], Iterator[checks.Finding]]


def _check_topic(case: Case) -> Iterator[checks.Finding]:
    """Does the topic exist, and is it the one that was registered?"""
    if case.log is None:
        return
    topic, name = case.pipeline.topic, case.pipeline.name
    with case.ledger.engine.connect() as connection:
        row = rows.pipeline_row(connection, name)
    try:
        with log_changes.on_its_cluster(row, case.log):
            topic_id = case.log.topic(topic).topic_id
    except errors.BrokerUnavailable:
        raise  # a finding of its own, once for all pipelines (`check_all`); every other error is this topic's
    except errors.AnotherCluster as problem:
        yield checks.error(case.subject, str(problem), "name the right broker")
        return
    except errors.LogbusError as problem:
        # If hours are frozen, the topic existed: recreated it is another one, and on a wrong broker a second one.
        again = f"name the right broker, or recreate the topic and `logbus pipeline rebase {name}`"
        yield checks.error(
            case.subject, str(problem), again if case.is_frozen else f"create the topic {topic}, or ship something to it"
        )
        return
    try:
        if topic_id != row["topic_id"]:
            # First the cluster, then the topic: with a wrong address every topic looks deleted and recreated, and the advice
            # to rebase would then discard what is known of the right one.
            log_changes.refuse_another_cluster(row, case.log)
            yield checks.error(case.subject, f"topic {topic} was deleted and recreated", f"logbus pipeline rebase {name}")
        else:
            log_changes.refuse_another_log(case.ledger.engine, case.pipeline, topic_id, case.log)
    except errors.AnotherCluster as problem:
        yield checks.error(case.subject, str(problem), "name the right broker")
    except errors.LogChanged as problem:
        yield checks.error(case.subject, str(problem), f"logbus pipeline rebase {name}")


# What does not work without a right on the topic, as kafka-acls writes it, and whether a pipeline can do without.
RIGHTS = {
    "Read": ("no record of it can be loaded or audited", checks.error),
    "DescribeConfigs": ("when the broker deletes records that are not loaded is unknown", checks.note),
}
OF_RETENTION = {
    "Delete": ("managed retention can delete nothing of it", checks.error),
    "AlterConfigs": ("managed retention cannot change its limits", checks.error),
}


def _check_rights(case: Case) -> Iterator[checks.Finding]:
    """May this user do what the pipeline needs?"""
    if case.log is None:
        return
    topic = case.pipeline.topic
    with case.ledger.engine.connect() as connection:
        rights = RIGHTS | (OF_RETENTION if topic in retention_run.policies_by_topic(connection) else {})
    try:
        lacking = case.log.lacking(topic, rights)
    except errors.BrokerUnavailable:
        raise
    except errors.LogbusError:
        return  # a finding of its own
    for operation, how_to_grant in lacking.items():
        effect, finding = rights[operation]
        yield finding(case.subject, f"topic {topic}: {effect}", str(how_to_grant))


def _check_task_logins(case: Case) -> Iterator[checks.Finding]:
    """Had the tasks of the last load logins of their own, and is one left of a job which is over?"""
    with case.ledger.engine.connect() as connection:
        left = roles.left_over_logins(connection, case.pipeline.name)
        note = connection.scalar(
            select(ATTEMPT.c.task_logins_note)
            .join(WINDOW, (WINDOW.c.id == ATTEMPT.c.window_id) & (WINDOW.c.loaded_attempt == ATTEMPT.c.number))
            .where(WINDOW.c.pipeline == case.pipeline.name, WINDOW.c.loaded_attempt > 0)
            .order_by(WINDOW.c.starts_at.desc())
            .limit(1)
        )
    if note and not note.startswith(roles.NO_LOGIN):  # without logins there are no secrets that could leak
        advice = "it works without; docs/security.md says what logins of their own take"
        yield checks.note(case.subject, f"Spark's tasks have the driver's rights: {note}", advice)
    if left:
        named = several([login for logins in left for login in roles.login_names(logins)], NAMED_MAX)
        yield checks.warning(case.subject, f"logins of tasks whose driver was killed: {named}", "its next load deletes them")


def _check_attempts(case: Case) -> Iterator[checks.Finding]:
    """Do all running attempts send heartbeats?"""
    with case.ledger.engine.connect() as connection:
        silent = silent_attempts(connection, case.pipeline.name, case.now)
    for start, number, run_id, heard in silent:
        hour, beat = model.instant_text(start), model.instant_text(heard)
        message = f"attempt {number} of run {run_id} at {hour} sent its last heartbeat at {beat}"
        yield checks.warning(
            case.subject, message, "logbus doctor --clean ends it; a new load of the window takes over in any case"
        )


def _check_failures(case: Case) -> Iterator[checks.Finding]:
    """Did the last attempt at a window that is not loaded fail?"""
    with case.ledger.engine.connect() as connection:
        failed = failed_attempts(connection, case.pipeline.name)
    for start, number, reason in failed:
        advice = f"logbus window show --pipeline {case.pipeline.name} {model.instant_text(start)}"
        yield checks.error(
            case.subject,
            f"attempt {number} at {model.instant_text(start)} failed: {first_line(reason or 'no reason is known')}",
            advice,
        )


def _check_chain(case: Case) -> Iterator[checks.Finding]:
    """Is every closed window loaded?"""
    try:
        gaps = case.ledger.gaps(case.pipeline.name, case.log, case.now)
    except errors.BrokerUnavailable:
        raise
    except errors.LogbusError:
        gaps = case.ledger.gaps(case.pipeline.name, None, case.now)  # what is wrong with the topic is a finding of its own
    advice = f"logbus load --pipeline {case.pipeline.name} --only-missing"
    if count := missing.behind(gaps):
        waiting = (part for gap in gaps if not gap.is_empty for part in gap.parts(case.pipeline.grid))
        starts = several([model.instant_text(part.start) for part in islice(waiting, NAMED_MAX)], NAMED_MAX, count=count)
        yield checks.warning(case.subject, f"{_windows_are(count)} not loaded: {starts}", advice)
    if count := missing.empty(gaps):
        yield checks.note(
            case.subject, f"{_windows_are(count)} not loaded; {'it holds' if count == 1 else 'they hold'} no record", advice
        )


def _windows_are(count: int) -> str:
    return "1 closed window is" if count == 1 else f"{count} closed windows are"


def _check_untried(case: Case) -> Iterator[checks.Finding]:
    """Is a load waiting that never starts? A task in a pool that does not exist is never scheduled."""
    # Frozen by one task, loaded by the next. A DAG that is paused in between, or a pool with no slots, leaves no error
    # anywhere.
    old = [window for window in case.unloaded if window.last_attempt == 0 and frozen_before(window, case.now - UNTRIED_AFTER)]
    if old:
        starts = several([model.instant_text(window.interval.start) for window in old], NAMED_MAX)
        advice = "airflow pools set logbus_load 1 'Spark loads', if its tasks stay in the state scheduled"
        yield checks.warning(case.subject, f"frozen windows that no load has tried: {starts}", advice)


def frozen_before(window: model.FrozenWindow, instant: datetime) -> bool:
    return window.frozen_at is not None and window.frozen_at < instant


def _check_retained(case: Case) -> Iterator[checks.Finding]:
    """Are the records of windows that are not loaded still there?"""
    waiting = [window for window in case.unloaded if not window.head_unknown]
    if case.log is None or not waiting:
        return
    partitions = sorted({part.partition for window in waiting for part in window.ranges})
    try:
        # The topic first: for the offsets of one that is gone, a client reports the same error as for an unreachable broker.
        case.log.topic(case.pipeline.topic)
        starts = case.log.start_offsets(case.pipeline.topic, partitions)
    except errors.BrokerUnavailable:
        raise
    except errors.LogbusError:
        return  # a finding of its own
    for window in waiting:
        if lost := log_changes.lost_ranges(window, starts):
            hour = model.instant_text(window.interval.start)
            advice = f"logbus window accept-loss --pipeline {case.pipeline.name} {hour} --reason TEXT, and make retention longer"
            yield checks.error(
                case.subject, f"retention deleted {several(lost, NAMED_MAX)} before {window.interval} was loaded", advice
            )


def _check_audits(case: Case) -> Iterator[checks.Finding]:
    """Is every loaded window audited, and exact?"""
    name = case.pipeline.name
    with case.ledger.engine.connect() as connection:
        problems = audit_problems(connection, name)
    for start, reasons in problems.items():
        advice = f"logbus load --pipeline {name} --since {model.instant_text(start)} --limit 1"
        yield checks.error(case.subject, f"the audit of {model.instant_text(start)} found: {reasons[0]}", advice)
    if unaudited := case.ledger.unaudited(name):
        starts = [model.instant_text(interval.start) for interval in unaudited]
        advice = f"logbus window audit --pipeline {name} {' '.join(starts[:NAMED_MAX])}"
        yield checks.warning(case.subject, f"loaded but not audited: {several(starts, NAMED_MAX)}", advice)


def _check_dead_letters(case: Case) -> Iterator[checks.Finding]:
    """Did everything parse?"""
    count = sum(window.counts.dead_lettered for window in case.windows if window.counts)
    if count:
        advice = f"logbus dead-letter ls --pipeline {case.pipeline.name}"
        yield checks.note(case.subject, f"did not parse, kept as dead letters: {many(count, 'record')}", advice)


def _check_stamps(case: Case) -> Iterator[checks.Finding]:
    """Do the newest hours hold the records that are stamped with them?"""
    name = case.pipeline.name
    with case.ledger.engine.connect() as connection:
        for stamped_note in completeness.elsewhere_notes(connection, {name}):
            yield checks.note(
                case.subject,
                stamped_note.removeprefix(f"{name}: "),
                f"logbus window ls --pipeline {name}; is a producer's clock off?",
            )


def _check_other_records(case: Case) -> Iterator[checks.Finding]:
    """Is every hour loaded from the records of its first load?"""
    starts = [window.interval.start for window in case.windows if window.other_records]
    if starts:
        texts = [model.instant_text(start) for start in starts]
        message = f"a reload replaced the records with others, which its run was told to accept: {several(texts, NAMED_MAX)}"
        yield checks.note(case.subject, message, f"logbus window show --pipeline {case.pipeline.name} {texts[0]} shows who")


def _check_aggregates(case: Case) -> Iterator[checks.Finding]:
    """Is every aggregate of it as the newest audit wants it, and did its newest run end well?"""
    aggregate, hour, run = schema.aggregate, schema.aggregated_hour, schema.aggregation
    is_wrong = func.jsonb_array_length(hour.c.audit_problems) > 0
    wrong = select(func.count()).where(hour.c.aggregate == aggregate.c.name, is_wrong).scalar_subquery()
    failure = select(run.c.error).where(run.c.id == aggregate.c.newest, run.c.state == rows.FAILED).scalar_subquery()
    query = select(aggregate.c.name, wrong, failure).where(aggregate.c.pipeline == case.pipeline.name).order_by(aggregate.c.name)
    with case.ledger.engine.connect() as connection:
        statuses = connection.execute(query).all()
    for name, wrong_hours, error in statuses:
        if wrong_hours:
            message = f"the audit of aggregate {name} found {many(wrong_hours, 'hour')} wrong"
            yield checks.error(case.subject, message, f"logbus aggregate run {name}; logbus aggregate show {name}")
        if error is not None:
            yield checks.error(
                case.subject, f"the newest run of aggregate {name} failed: {error}", f"logbus aggregate run {name}"
            )


def _check_streams(case: Case) -> Iterator[checks.Finding]:
    """Does every stream of it run, or did it end as it should; and was what it counted what the loads brought?"""
    stream, hour = schema.stream, schema.stream_hour
    different = select(func.count()).where(hour.c.stream == stream.c.name, hour.c.state == "different").scalar_subquery()
    columns = (stream.c.name, stream.c.error, stream.c.began_at, stream.c.heartbeat_at, stream.c.ended_at, different)
    query = select(*columns).where(stream.c.pipeline == case.pipeline.name).order_by(stream.c.name)
    with case.ledger.engine.connect() as connection:
        statuses = connection.execute(query).all()
    for name, error, began_at, heartbeat_at, ended_at, different_hours in statuses:
        again = f"logbus stream run {name}, or its DAG"
        if error is not None:
            yield checks.error(case.subject, f"stream {name} ended: {first_line(error)}", again)
        elif began_at is not None and ended_at is None and case.now - heartbeat_at > rows.HEARTBEAT_EXPIRY:
            beat = model.instant_text(heartbeat_at)
            yield checks.error(case.subject, f"the driver of stream {name} sent its last heartbeat at {beat}", again)
        if different_hours:
            message = f"stream {name} had counted {many(different_hours, 'hour')} differently than they were loaded"
            yield checks.warning(case.subject, message, f"logbus stream show {name}: the loads' values stand there since")


CHECKS: Sequence[Check] = (
    _check_topic,
    _check_rights,
    _check_attempts,
    _check_task_logins,
    _check_failures,
    _check_chain,
    _check_untried,
    _check_retained,
    _check_audits,
    _check_dead_letters,
    _check_stamps,
    _check_other_records,
    _check_aggregates,
    _check_streams,
)


def _check_leftovers(ledger: Ledger) -> Iterator[checks.Finding]:
    """Is there a staging table that no running attempt owns?"""
    if tables := attempts.ownerless(ledger.engine):
        message = f"staging tables left by finished attempts: {several(tables, NAMED_MAX)}"
        yield checks.note("warehouse", message, "logbus doctor --clean drops them, and so does the next attempt at their windows")


def check_all(
    ledger: Ledger, log: LogAdmin | None, pipelines: Sequence[model.Pipeline], now: datetime
) -> Iterator[checks.Finding]:
    """All findings, pipeline by pipeline. A broker that does not answer is one finding, and is not asked again."""
    yield from _check_leftovers(ledger)
    for pipeline in pipelines:
        case = Case(ledger=ledger, log=log, pipeline=pipeline, now=now)
        for check in CHECKS:
            try:
                yield from check(case)
            except errors.BrokerUnavailable as problem:
                yield checks.error("broker", str(problem), "logbus doctor --bootstrap-server HOST:PORT, where the broker listens")
                log = case.log = None
                # Run again, it reports what the ledger alone shows. Nothing is reported twice: each check asks the broker first.
                yield from check(case)


def silent_attempts(connection: Connection, pipeline_name: str, now: datetime) -> list[tuple[datetime, int, str, datetime]]:
    """Running attempts that have sent no heartbeat for too long: window, number, run and last heartbeat."""
    silent = (ATTEMPT.c.state == rows.ATTEMPT_RUNNING, ATTEMPT.c.heartbeat_at < now - rows.HEARTBEAT_EXPIRY)
    query = _of_windows(pipeline_name, ATTEMPT.c.number, ATTEMPT.c.run_id, ATTEMPT.c.heartbeat_at).where(*silent)
    return [(start, number, run_id, heard) for start, number, run_id, heard in connection.execute(query)]


def failed_attempts(connection: Connection, pipeline_name: str) -> list[tuple[datetime, int, str | None]]:
    """The last attempts at windows that are not loaded, if they failed: window, number and error."""
    failed = (ATTEMPT.c.number == WINDOW.c.last_attempt, WINDOW.c.loaded_attempt.is_(None), ATTEMPT.c.state == rows.FAILED)
    query = _of_windows(pipeline_name, ATTEMPT.c.number, ATTEMPT.c.error).where(*failed)
    return [(start, number, error) for start, number, error in connection.execute(query)]


def _of_windows(pipeline_name: str, *columns: Any) -> Select[Any]:
    """Columns of attempts, ordered by the start of their windows."""
    query = select(WINDOW.c.starts_at, *columns).join_from(ATTEMPT, WINDOW, ATTEMPT.c.window_id == WINDOW.c.id)
    return query.where(WINDOW.c.pipeline == pipeline_name).order_by(WINDOW.c.starts_at)


def audit_problems(connection: Connection, pipeline_name: str) -> Mapping[datetime, list[str]]:
    """The problems that the last audit of a window found, for the windows with any."""
    query = select(WINDOW.c.starts_at, WINDOW.c.audit_problems).where(WINDOW.c.pipeline == pipeline_name)
    return {start: problems for start, problems in connection.execute(query.order_by(WINDOW.c.starts_at)) if problems}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """What `clean` did."""

    ended: tuple[str, ...]
    dropped: tuple[str, ...]


def clean(ledger: Ledger, now: datetime) -> Cleaned:
    """Ends attempts without a heartbeat and drops tables without an owner; one that is locked stays for the next time."""
    ended = end_expired(ledger.engine, now)
    names = tuple(f"{attempt.pipeline} {attempt.token}" for attempt in ended)
    return Cleaned(ended=names, dropped=tuple(attempts.drop_ownerless(ledger.engine)))
