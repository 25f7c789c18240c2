"""Is it still the same log? Offsets alone do not tell: the last record before each boundary is kept, and looked at again.

Offsets are trusted because a log only ever grows at its end. It does not after a restore from a backup, after an unclean
election, and where a topic was made again on a cluster that gives topics no ids: then it ends before offsets that are frozen, or
holds other records there. The first is seen by the log's end. The second is seen by a boundary's witness, the last record before
it: whatever was cut away before a boundary and written anew has changed that record, since the log grew over it. So one record a
partition vouches for all before it.

A witness that is gone says nothing where retention has been, or compaction that the pipeline has declared.
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

# How far back a record is looked for, where the offsets just before a boundary hold none: the markers of transactions, holes of
# compaction. A boundary behind more of them has no witness.
OFFSETS_SEARCHED = 1_000


def refuse_another_log(engine: Engine, pipeline: Pipeline, topic_id: str, log: OffsetLog) -> None:
    """`LogChanged` where the log is not the one on which the last boundaries were frozen; for those who only look."""
    with engine.connect() as connection:
        reached = Chain(connection, pipeline.name, topic_id).ends()
    known = {part: end for part, end in reached.items() if part in log.topic(pipeline.topic).partitions}
    ends = log.end_offsets(pipeline.topic, list(known), pipeline.isolation_level)
    refuse_if_shorter(pipeline, {part: end.offset for part, end in known.items()}, ends)
    refuse_if_changed(pipeline, log, known)


def refuse_if_shorter(pipeline: Pipeline, reached: Mapping[int, int], end_offsets: Mapping[int, int]) -> None:
    """`reached`: by partition an offset up to which the log was once there. Ask for the ends after these were frozen."""
    short = [
        f"{pipeline.topic}-{partition} ends at offset {end_offsets[partition]}, and windows are frozen up to {offset}"
        for partition, offset in sorted(reached.items())
        if partition in end_offsets and end_offsets[partition] < offset
    ]
    if short:
        raise another_log(pipeline.name, short)


def refuse_if_changed(pipeline: Pipeline, log: OffsetLog, ends: Mapping[int, ChainEnd]) -> None:
    """Looks at the last frozen boundary of each partition: its witness vouches for everything before."""
    expected = {partition: end.witness for partition, end in ends.items() if end.witness is not None}
    different = differences(pipeline, log, expected)
    if different:
        raise another_log(pipeline.name, different.values())


def differences(pipeline: Pipeline, log: OffsetLog, expected: Mapping[int, Witness]) -> dict[int, str]:
    """By partition how the log differs at the witness's offset. Where retention was there, or compaction that the pipeline has
    declared, no record is no difference."""
    topic = pipeline.topic
    found = log.last_records(topic, places(expected))
    missing = not_found(pipeline, log, expected, found)
    if missing:
        # A leader that has just been elected may show less for a moment. Asked for its end it answers when it knows what was
        # shown before it.
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
    """Those which should be there. Asked for the log's start afterwards: it only rises."""
    absent = {part: witness for part, witness in expected.items() if part not in found}
    starts = {} if pipeline.options.offset_gaps else log.start_offsets(pipeline.topic, absent)
    return {part: witness for part, witness in absent.items() if part in starts and starts[part] <= witness.offset}


def last_before(
    log: OffsetLog, topic: str, offsets: Mapping[int, int], start_offsets: Mapping[int, int]
) -> dict[tuple[int, int], Witness]:
    """By partition and offset the last record before it, which nearly always is the one just before."""
    wanted = {part: offset for part, offset in offsets.items() if offset > start_offsets[part]}
    found = log.last_records(topic, {part: (offset - 1, offset) for part, offset in wanted.items()})
    holes = {part: offset for part, offset in wanted.items() if part not in found}
    spans = {part: (max(start_offsets[part], offset - OFFSETS_SEARCHED), offset - 1) for part, offset in holes.items()}
    found |= log.last_records(topic, {part: (start, end) for part, (start, end) in spans.items() if start < end})
    return {(part, offsets[part]): witness for part, witness in found.items()}


# Whose topic is it? A wrong broker has a topic of the same name, with another id: that is no topic made again. A cluster's id
# is noted with the pipeline when it freezes for the first time, and again by a rebase. It is only asked for where something does
# not fit, so a cluster that gets another id by itself (a new controller's disk) stops nothing.


def refuse_another_cluster(row: Row, log: OffsetLog) -> None:
    """`row`: the pipeline's. Nothing is said where one of the two ids is not known."""
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
    """Around questions about a pipeline's topic. Where it is gone or another one, that may be because the broker is another one:
    then that is the error, because the advice for the other two would leave the chain of windows."""
    try:
        yield
    except (TopicMissing, TopicRecreated):
        refuse_another_cluster(row, log)
        raise


def topic_on_its_cluster(row: Row, log: OffsetLog) -> TopicFacts:
    """The topic of a pipeline's row as it is there now, made again or not; `AnotherCluster` where it is one that merely has the
    same name."""
    with on_its_cluster(row, log):
        facts = log.topic(row["topic"])
    if facts.topic_id != row["topic_id"]:
        refuse_another_cluster(row, log)
    return facts


def remember_cluster(connection: Connection, row: Row, cluster_id: str | None) -> None:
    """Notes the cluster of a pipeline of which none is known."""
    mine = (schema.pipeline.c.name == row["name"], schema.pipeline.c.cluster_id.is_(None))
    connection.execute(update(schema.pipeline).where(*mine).values(cluster_id=cluster_id))
