"""Windows without a record, loaded and audited thousands at a time.

Between a log of 2015 and one of today are 100,000 empty hours, and each is a window like any other: that it holds nothing is
loaded, audited and on record. But an attempt at one stages nothing, so it needs no Spark, no staging tables and no transaction of
its own. Attempts at thousands of them begin and commit in one transaction, which takes the same locks as `ledger.attempts` and
`warehouse.commit` do, in the same order, and leaves the same rows in the ledger. An attempt that began earlier is superseded and
cannot commit, one that begins later gets the next number. Windows that another load has committed since the caller read them are
not loaded a second time. A second transaction audits them, by the rules of `proof.audit`: it counts the target and the dead
letters again and compares the ledger with what the broker returns. Each of the two takes effect for all of its windows or for
none, so a load that was interrupted anywhere is completed by the next one.

A window with anything unusual is left to its own load, which reports it: a loss, an earlier load that held records, rows in the
target that should not be there, records of its hour in other windows, a log that is not the one it was frozen on. So nothing is
refused here, and nothing is decided differently from a single load.

For PostgreSQL only, where an empty window then has no leaf. In the other sinks the commit of each window carries its ledger entry
(a manifest, a snapshot), from which a lost ledger is rebuilt.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, Engine, bindparam, select, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import DBAPIError

from logbus.errors import LoadFailed, UserError
from logbus.fingerprint import as_text
from logbus.kafka.topics import OffsetLog, TopicFacts
from logbus.ledger import schema, testimony
from logbus.ledger.attempts import (
    COMMITTED,
    KEY_BYTES,
    SUPERSEDED,
    definition_to_load,
    drop_leftovers,
    hold_briefly,
    lock_windows,
)
from logbus.ledger.empty_spans import WINDOWS_PER_TRANSACTION
from logbus.ledger.ledger import Ledger
from logbus.ledger.rows import ATTEMPT_RUNNING, COUNT_COLUMNS, Row, load_windows
from logbus.ledger.sql_errors import (
    DEADLOCK_DETECTED,
    DISK_FULL,
    LOCK_NOT_AVAILABLE,
    QUERY_CANCELED,
    reason_of,
    sqlstate_of,
)
from logbus.ledger.stamped_hours import held_by_windows
from logbus.ledger.table_names import SCHEMA, TableName, parse_table
from logbus.ledger.values import Published
from logbus.model import AuditReport, FrozenWindow, Pipeline, instant_text
from logbus.parsing import parser_for
from logbus.proof.audit import broker_problems, table_problems
from logbus.warehouse import checksum
from logbus.warehouse.commit import COMMIT_LOCK_TIMEOUT_MS, connection_died
from logbus.warehouse.sinks.postgres import PostgresSink
from logbus.warehouse.target import ensure_target, table_columns
from logbus.wording import many

NOTHING = as_text(0)  # the fingerprint of no record
NO_COUNTS = [f"{column} = 0" for column in COUNT_COLUMNS.values()]

# Checked under the locks, whatever the windows were when the caller read them.
USUAL = text(f"""
    select id from {SCHEMA}."window"
    where id = any(:ids) and not head_unknown and loss_accepted is null
        and (loaded_attempt is null or (fingerprint = :nothing and {" and ".join(NO_COUNTS)}))
        and not exists (
            select from {SCHEMA}.window_range where window_id = id and (end_offset <> start_offset or lost <> 0)
        )
""")
LOADED = text(f"""
    update {SCHEMA}."window" set
        last_attempt = last_attempt + 1, loaded_attempt = last_attempt + 1, loaded_at = :now,
        {", ".join(NO_COUNTS)}, fingerprint = :nothing, values_hash = :values,
        audited_at = null, audit_problems = null, unstamped_count = 0, far_count = 0
    where id = any(:ids)
""").bindparams(bindparam("values", type_=JSONB))
# Locked in the windows' order first: an application that ends its attempts holds one of them and waits for the next, without the
# windows' rows.
OVERTAKEN = text(f"""
    with held as (
        select window_id, number from {SCHEMA}.attempt where window_id = any(:ids) and state = '{ATTEMPT_RUNNING}'
        order by window_id, number for update
    )
    update {SCHEMA}.attempt overtaken set
        state = '{SUPERSEDED}', ended_at = :now,
        error = format('attempt %s of run %s took over', last_attempt, cast(:run_id as text))
    from {SCHEMA}."window", held
    where id = held.window_id and overtaken.window_id = held.window_id and overtaken.number = held.number
""")
ATTEMPTS = text(f"""
    insert into {SCHEMA}.attempt (
        window_id, number, state, run_id, try_number, staging_table, dead_letter_table, cleaned, began_at, heartbeat_at, ended_at,
        {", ".join(COUNT_COLUMNS.values())}, fingerprint, partitions, streams, key, definition
    )
    select
        id, last_attempt, '{COMMITTED}', :run_id, 1, name, name || '_dead', true, :now, :now, :now,
        {", ".join("0" for _ in COUNT_COLUMNS)}, :nothing, :partitions, 0, key, :definition
    from {SCHEMA}."window"
    join unnest(cast(:ids as bigint[]), cast(:keys as text[])) keys (window_id, key) on window_id = id
    cross join lateral (select format('w%s_a%s_%s', id, last_attempt, key) as name) names
""").bindparams(bindparam("definition", type_=JSONB), bindparam("partitions", type_=JSONB))
AUDITED = text(f"""update {SCHEMA}."window" set audited_at = :now, audit_problems = '[]' where id = any(:ids)""")
WITH_DEAD_LETTERS = text(f"select distinct window_id from {SCHEMA}.dead_letter where window_id = any(:ids)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One of the two transactions: what is true of its windows if it was rolled back, and if nobody knows whether it was."""

    undone: str
    unknown: str


LOADING = Step(undone="none of them was loaded", unknown="the connection died; all of them are loaded, or none was")
AUDITING = Step(undone="loaded, and not audited", unknown="loaded; the connection died while they were audited")

# What to do first about an answer of the server.
ADVICE = {
    DISK_FULL: "Make room on the warehouse's disk. ",
    LOCK_NOT_AVAILABLE: "Some transaction has held one of them too long: pg_stat_activity shows it. ",
    DEADLOCK_DETECTED: "Let the other transaction end. ",
    QUERY_CANCELED: "Raise statement_timeout for the warehouse's user, if that was the cause. ",
}


def load_empty(
    engine: Engine,
    log: OffsetLog,
    pipeline_name: str,
    windows: Iterable[FrozenWindow],
    run_id: str,
    now: Callable[[], datetime],
) -> Iterator[list[AuditReport]]:
    """Loads and audits those of the windows that are empty and usual; yields the audits, transaction by transaction. Windows
    without an audit need an ordinary load."""
    pipeline = Ledger(engine).pipeline(pipeline_name)
    wanted = [window for window in windows if holds_nothing(window)]
    if not wanted or pipeline.options.sink != PostgresSink.name:
        return
    try:
        columns = parser_for(pipeline.parse, pipeline.settings).columns
    except UserError:  # a parser that is installed only where Spark runs
        return
    with explained(pipeline, wanted, LOADING):
        ensure_target(engine, parse_table(pipeline.table), columns)
    for begin in range(0, len(wanted), WINDOWS_PER_TRANSACTION):
        some = wanted[begin : begin + WINDOWS_PER_TRANSACTION]
        with explained(pipeline, some, LOADING):
            # The broker is asked before the transaction, which locks the windows' rows: a slow broker must not prolong the locks.
            others = testimony.unreadable(pipeline, log, some, testimony.call(engine, some))
            numbers = commit(engine, pipeline, [window for window in some if window.id not in others], columns, run_id, now())
        if numbers:
            with explained(pipeline, [window for window in some if window.id in numbers], AUDITING):
                drop_leftovers(engine, list(numbers))
                reports = audit(engine, log, pipeline, numbers, now())
            yield reports


def audit_empty(
    engine: Engine, log: OffsetLog, pipeline_name: str, windows: Iterable[FrozenWindow], now: Callable[[], datetime]
) -> Iterator[list[AuditReport]]:
    """Audits those of the loaded windows that are empty and exact; the others need an ordinary audit."""
    pipeline = Ledger(engine).pipeline(pipeline_name)
    wanted = {one.id: one.loaded_attempt for one in windows if holds_nothing(one) and one.loaded_attempt is not None}
    ids = list(wanted) if pipeline.options.sink == PostgresSink.name else []
    for begin in range(0, len(ids), WINDOWS_PER_TRANSACTION):
        some = ids[begin : begin + WINDOWS_PER_TRANSACTION]
        yield audit(engine, log, pipeline, {window_id: wanted[window_id] for window_id in some}, now())


@contextmanager
def explained(pipeline: Pipeline, windows: Sequence[FrozenWindow], step: Step) -> Iterator[None]:
    """`LoadFailed` where the server refuses or goes away: what is done and what is not, why, and what completes it."""
    try:
        yield
    except DBAPIError as error:
        is_known = not connection_died(error)  # otherwise a COMMIT may be what was not answered
        advice = ADVICE.get(sqlstate_of(error) or "", "") if is_known else "Wait until the warehouse answers. "
        since, until = instant_text(windows[0].interval.start), instant_text(windows[-1].interval.end)
        raise LoadFailed(
            f"{many(len(windows), 'window')} without a record, {since} to {until}: {step.undone if is_known else step.unknown} "
            f"({reason_of(error)}). {advice}`logbus load --pipeline {pipeline.name} --since {since} --until {until}` "
            "then completes the load"
        ) from error


def holds_nothing(window: FrozenWindow) -> bool:
    """Its start and end offsets are equal, so nothing of it can have been lost either."""
    return all(part.start_offset == part.end_offset for part in window.ranges)


def commit(
    engine: Engine,
    pipeline: Pipeline,
    windows: Sequence[FrozenWindow],
    columns: Mapping[str, str],
    run_id: str,
    now: datetime,
) -> dict[int, int]:
    """Returns for each window the attempt that has loaded it: ours, or that of another load since the caller read the windows,
    which is not repeated. Windows that turn out to be unusual are left as they are."""
    target = parse_table(pipeline.table)
    wanted = {window.id: window for window in windows}
    with engine.begin() as connection:
        connection.execute(text(f"set local lock_timeout = {COMMIT_LOCK_TIMEOUT_MS}"))
        definition = definition_to_load(connection, pipeline.name, None)
        rows = lock_windows(connection, pipeline.name, [window.interval.start for window in windows])
        # A ledger restored from a backup since may have given the ids to other hours.
        locked = {row["id"]: row for row in rows if row["id"] in wanted and row["starts_at"] == wanted[row["id"]].interval.start}
        usual = set(connection.execute(USUAL, {"ids": list(locked), "nothing": NOTHING}).scalars())
        held = {window_id: row["starts_at"] for window_id, row in locked.items() if window_id in usual}
        strange = with_rows(connection, pipeline, target, held) | held_by_windows(connection, pipeline, list(held.values()))
        dead = with_dead_letters(connection, held)
        sound = [window_id for window_id, start in held.items() if start not in strange and window_id not in dead]
        ids = [window_id for window_id in sound if not is_loaded_since(wanted[window_id], locked[window_id])]
        # The checksum of no rows, so that an audit that compares values finds one.
        covered = checksum.covered(table_columns(connection, target), columns)
        values = Published(table=checksum.take(connection, target, covered, "false")).to_json()
        same = {"ids": ids, "now": now, "nothing": NOTHING, "run_id": run_id}
        connection.execute(LOADED, {**same, "values": values})
        connection.execute(OVERTAKEN, same)
        keys = [secrets.token_hex(KEY_BYTES) for _ in ids]
        connection.execute(ATTEMPTS, {**same, "keys": keys, "definition": definition, "partitions": {}})
        row_of = schema.window
        found = connection.execute(select(row_of.c.id, row_of.c.loaded_attempt).where(schema.among(row_of.c.id, sound)))
        return {row.id: row.loaded_attempt for row in found}


def is_loaded_since(window: FrozenWindow, row: Row) -> bool:
    """Whether the window's row shows a load that was not there when the window was read."""
    return row["loaded_attempt"] is not None and row["loaded_attempt"] > (window.loaded_attempt or 0)


def with_rows(connection: Connection, pipeline: Pipeline, target: TableName, starts: Mapping[int, datetime]) -> set[datetime]:
    """Starts of the windows that have rows in the target."""
    query = text(f"select distinct _window_start from {target.sql} where _topic = :topic and _window_start = any(:starts)")
    found = connection.execute(query, {"topic": pipeline.topic, "starts": list(starts.values())})
    return set(found.scalars())


def with_dead_letters(connection: Connection, ids: Iterable[int]) -> set[int]:
    return set(connection.execute(WITH_DEAD_LETTERS, {"ids": list(ids)}).scalars())


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAnswers:
    """The broker's answers about the pipeline's topic, for the audits of many windows."""

    facts: TopicFacts
    starts: Mapping[int, int]
    ends: Mapping[int, int]

    @classmethod
    def of(cls, log: OffsetLog, pipeline: Pipeline) -> TopicAnswers:
        facts = log.topic(pipeline.topic)
        return cls(
            facts=facts,
            starts=log.start_offsets(pipeline.topic, facts.partitions),
            ends=log.end_offsets(pipeline.topic, facts.partitions, pipeline.isolation_level),
        )

    def topic(self, name: str) -> TopicFacts:
        return self.facts

    def start_offsets(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        return {partition: self.starts[partition] for partition in partitions}

    def end_offsets(self, topic: str, partitions: Iterable[int], isolation_level: str) -> dict[int, int]:
        return {partition: self.ends[partition] for partition in partitions}


def audit(engine: Engine, log: OffsetLog, pipeline: Pipeline, numbers: Mapping[int, int], now: datetime) -> list[AuditReport]:
    """Audits windows that these attempts have loaded: counts again, and stores the audit if all is well. The others get no
    report: a window that was loaded again since is audited by that load, one that is not exact by its own load."""
    answers, row_of = TopicAnswers.of(log, pipeline), schema.window
    with engine.begin() as connection:
        connection.execute(text(f"set local lock_timeout = {COMMIT_LOCK_TIMEOUT_MS}"))
        hold_briefly(connection)
        mine = select(row_of).where(schema.among(row_of.c.id, numbers))
        connection.execute(mine.with_only_columns(row_of.c.id).order_by(row_of.c.id).with_for_update())
        windows = [
            found
            for found in load_windows(connection, mine.order_by(row_of.c.starts_at))
            if found.loaded_attempt == numbers[found.id]
        ]
        starts = {window.id: window.interval.start for window in windows}
        rows, dead = with_rows(connection, pipeline, parse_table(pipeline.table), starts), with_dead_letters(connection, starts)
        reports = [
            report(pipeline, window, answers) for window in windows if window.interval.start not in rows and window.id not in dead
        ]
        exact = [one for one in reports if one.ok and not one.notes]
        connection.execute(AUDITED, {"ids": [one.window.id for one in exact], "now": now})
    return exact


def report(pipeline: Pipeline, window: FrozenWindow, answers: TopicAnswers) -> AuditReport:
    """The audit of a window that has no rows in the target."""
    notes: list[str] = []
    problems = [*table_problems(pipeline, window, {}), *broker_problems(answers, pipeline, window, notes)]
    expected = {part.partition: part.count for part in window.ranges}
    return AuditReport(window=window, expected=expected, found={}, problems=tuple(problems), notes=tuple(notes))
