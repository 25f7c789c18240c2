"""Is it still the same log? Offsets alone cannot show it: the last record before each boundary is stored, and checked again.

Offsets are trusted because a log only ever grows at its end. That does not hold after a restore from a backup, after an unclean
election, or if a topic was recreated on a cluster without topic ids: then the log ends before frozen offsets, or holds other
records there. The log end offset shows the first. A boundary's witness, the last record before it, shows the second: if anything
before a boundary was truncated and written anew, that record has changed, since the log grew over it. So one record per
partition vouches for all before it.

A missing witness proves nothing if retention deleted it, or compaction that the pipeline has declared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sqlalchemy import Connection, Engine, update

from logbus.errors import AnotherCluster, TopicMissing, TopicRecreated
from logbus.kafka.client import LATEST
from logbus.kafka.topics import OffsetLog, TopicFacts
from logbus.ledger import schema
from logbus.ledger.another_log import another_log, record_changed
from logbus.ledger.chain import Chain, ChainEnd
from logbus.ledger.rows import Row
from logbus.model import Pipeline, Witness

# How far back to look for a record if the offsets just before a boundary hold none: transaction markers, gaps left by
# compaction. A boundary after more of them than that has no witness.
OFFSETS_SEARCHED = 1_000


def refuse_another_log(engine: Engine, pipeline: Pipeline, topic_id: str, log: OffsetLog) -> None:
    """`LogChanged` if the log is not the one on which the last boundaries were frozen; for callers that only read."""
    with engine.connect() as connection:
        reached = Chain(connection, pipeline.name, topic_id).ends()
    known = {part: end for part, end in reached.items() if part in log.topic(pipeline.topic).partitions}
    ends = log.end_offsets(pipeline.topic, list(known), pipeline.isolation_level)
    refuse_if_shorter(pipeline, {part: end.offset for part, end in known.items()}, ends)
    refuse_if_changed(pipeline, log, known)


def refuse_if_shorter(pipeline: Pipeline, reached: Mapping[int, int], end_offsets: Mapping[int, int]) -> None:
    """`reached`: by partition, an offset that the log once reached. `end_offsets` must be read after these were frozen."""
    short = [
        f"{pipeline.topic}-{partition} ends at offset {end_offsets[partition]}, and windows are frozen up to {offset}"
        for partition, offset in sorted(reached.items())
        if partition in end_offsets and end_offsets[partition] < offset
    ]
    if short:
        raise another_log(pipeline.name, short)


def refuse_if_changed(pipeline: Pipeline, log: OffsetLog, ends: Mapping[int, ChainEnd]) -> None:
    """Checks the last frozen boundary of each partition: its witness vouches for everything before it."""
    expected = {partition: end.witness for partition, end in ends.items() if end.witness is not None}
    different = differences(pipeline, log, expected)
    if different:
        raise another_log(pipeline.name, different.values())


def differences(pipeline: Pipeline, log: OffsetLog, expected: Mapping[int, Witness]) -> dict[int, str]:
    """By partition, how the log differs at the witness's offset. A missing record is not a difference if retention, or
    compaction that the pipeline has declared, may have deleted it."""
    topic = pipeline.topic
    found = log.last_records(topic, places(expected))
    missing = not_found(pipeline, log, expected, found)
    if missing:
        # A newly elected leader may briefly expose less. A request for its end offset is answered only once it has caught up
        # with what was exposed before its election.
        log.end_offsets(topic, missing, LATEST)
        found |= log.last_records(topic, places(missing))
        missing = not_found(pipeline, log, missing, found)
    return {
        part: record_changed(topic, part, witness, found.get(part))
        for part, witness in sorted(expected.items())
        if (found[part].hash != witness.hash if part in found else part in missing)
    }


def places(expected: Mapping[int, Witness]) -> dict[int, tuple[int, int]]:
    return {part: (witness.offset, witness.offset + 1) for part, witness in expected.items()}


def not_found(
    pipeline: Pipeline, log: OffsetLog, expected: Mapping[int, Witness], found: Mapping[int, Witness]
) -> dict[int, Witness]:
    """The missing witnesses that should be there. The log start offset is read afterwards, since it only increases."""
    absent = {part: witness for part, witness in expected.items() if part not in found}
    starts = {} if pipeline.options.offset_gaps else log.start_offsets(pipeline.topic, absent)
    return {part: witness for part, witness in absent.items() if part in starts and starts[part] <= witness.offset}


def last_before(
    log: OffsetLog, topic: str, offsets: Mapping[int, int], start_offsets: Mapping[int, int]
) -> dict[tuple[int, int], Witness]:
    """By partition and offset, the last record before that offset, which is nearly always the one just before."""
    wanted = {part: offset for part, offset in offsets.items() if offset > start_offsets[part]}
    found = log.last_records(topic, {part: (offset - 1, offset) for part, offset in wanted.items()})
    holes = {part: offset for part, offset in wanted.items() if part not in found}
    spans = {part: (max(start_offsets[part], offset - OFFSETS_SEARCHED), offset - 1) for part, offset in holes.items()}
    found |= log.last_records(topic, {part: (start, end) for part, (start, end) in spans.items() if start < end})
    return {(part, offsets[part]): witness for part, witness in found.items()}


# Whose topic is it? A wrong broker may have a topic of the same name with another id: that topic was not recreated. The cluster
# id is stored with the pipeline when it first freezes, and again by a rebase. It is only requested if something does not match,
# so a cluster whose id has changed (a new controller's disk) stops nothing.


def refuse_another_cluster(row: Row, log: OffsetLog) -> None:
    """`row`: the pipeline's. Nothing is raised if either of the two ids is unknown."""
    known = row["cluster_id"]
    found = log.cluster_id() if known else None
    if found is not None and found != known:
        raise AnotherCluster(
            f"this is another cluster: pipeline {row['name']} is on topic {row['topic']} of cluster {known}, and the broker that "
            f"answers is of {found}. Name the right one by --bootstrap-server (or LOGBUS_BOOTSTRAP_SERVER, or the connection). "
            f"If the topic has moved for good, `logbus pipeline rebase {row['name']} --other-cluster` begins anew on it"
        )


@contextmanager
def on_its_cluster(row: Row, log: OffsetLog) -> Iterator[None]:
    """Wraps requests about a pipeline's topic. If it is missing or another one, the broker may be the wrong one: then that is the
    error to raise, because the advice in the other two would abandon the chain of windows."""
    try:
        yield
    except (TopicMissing, TopicRecreated):
        refuse_another_cluster(row, log)
        raise


def topic_on_its_cluster(row: Row, log: OffsetLog) -> TopicFacts:
    """The pipeline's topic as it is now, recreated or not; `AnotherCluster` if it is one on another cluster that merely has
    the same name."""
    with on_its_cluster(row, log):
        facts = log.topic(row["topic"])
    if facts.topic_id != row["topic_id"]:
        refuse_another_cluster(row, log)
    return facts


def remember_cluster(connection: Connection, row: Row, cluster_id: str | None) -> None:
    """Stores the cluster id of a pipeline that has none yet."""
    mine = (schema.pipeline.c.name == row["name"], schema.pipeline.c.cluster_id.is_(None))
    connection.execute(update(schema.pipeline).where(*mine).values(cluster_id=cluster_id))
