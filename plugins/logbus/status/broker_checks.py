"""The checks of `logbus doctor` on servers: whether the broker answers and takes our requests, how full its disks are, whether
clocks agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from confluent_kafka import KafkaError
from sqlalchemy import Engine, text
from sqlalchemy.exc import ProgrammingError

from logbus import errors, model
from logbus.kafka import client, cluster
from logbus.kafka.topics import Topics
from logbus.loads.engine import connect
from logbus.loads.ledger import Ledger
from logbus.status.checks import Finding, Machine, error, note, ok, warning

# By request, the lowest version that does what is needed, and what does not work without it.
NEEDED: Mapping[str, tuple[int, str]] = {
    "Produce": (3, "sending records with times and headers"),
    "Fetch": (4, "reading records"),
    "ListOffsets": (1, "finding windows by time"),
    "Metadata": (10, "noticing that a topic was deleted and recreated"),
    "InitProducerId": (0, "sending without duplicates"),
    "OffsetFetch": (1, "consumer groups"),
    "OffsetCommit": (2, "consumer groups"),
    "DescribeGroups": (0, "logbus group"),
    "CreateTopics": (2, "logbus topic"),
    "DescribeConfigs": (1, "when retention deletes what is not loaded, logbus topic config"),
    "IncrementalAlterConfigs": (0, "managed retention, logbus topic config"),
    "DeleteRecords": (0, "managed retention"),
    "DescribeLogDirs": (0, "sizes of topics, free space on the disk"),
}
USABLE_SHARE_LOW, USABLE_SHARE_MIN = 0.15, 0.05
GIB = 1 << 30


def check_broker(machine: Machine) -> Iterator[Finding]:
    """All kinds of requests in one go: a dead broker is asked only once."""
    address = str(machine.client_config.get("bootstrap.servers"))
    try:
        versions = cluster.api_versions(client.Client.for_question(machine.client_config))
    except errors.NotAskable as problem:
        yield note("broker", f"which requests {address} supports is {problem}", "loads do without: they use librdkafka alone")
        return
    except errors.AccessDenied as problem:
        yield error("broker", str(problem), "correct the client settings: --client-config FILE, or LOGBUS_CLIENT_CONFIG")
        return
    except errors.BrokerUnavailable as problem:
        advice = "start it (`logbus broker serve`), or say where it is: --bootstrap-server HOST:PORT, or LOGBUS_BOOTSTRAP_SERVER"
        yield error("broker", str(problem), advice)
        return
    lacking = [f"{name} v{version} ({what})" for name, (version, what) in NEEDED.items() if not takes(versions, name, version)]
    if lacking:
        yield error("broker", f"{address} does not support {', '.join(lacking)}", "use a newer broker, or do without")
    else:
        yield ok("broker", f"{address} supports all {len(NEEDED)} request types that logbus needs ({len(versions)} in total)")


def takes(versions: Mapping[str, tuple[int, int]], name: str, version: int) -> bool:
    return name in versions and versions[name][1] >= version


def check_disk(machine: Machine) -> Iterator[Finding]:
    """How much space is left where the log is stored."""
    asking = client.Client.for_question(machine.client_config)
    try:
        directories = cluster.log_directories(asking)
    except errors.BrokerUnavailable:
        yield note("disk", "the broker does not report how full its disks are", "logbus doctor --only broker")
        return
    if not directories:
        denied = asking.explain(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, ""), "")
        yield note("disk", "how full the broker's disks are, and how large topics are on them, is not shown", str(denied))
    for directory in directories:
        yield room(directory)


def room(directory: cluster.DirectoryReading) -> Finding:
    share, total, usable = directory.usable_share, directory.total_bytes, directory.usable_bytes
    directory_name = f"{directory.path} of broker {directory.broker_id}"
    if share is None or total is None or usable is None:
        return note("disk", f"{directory_name}: the broker does not report its free space", "check with df")
    message = f"{directory_name}: {usable / GIB:.1f} of {total / GIB:.1f} GiB free ({share:.0%})"
    advice = (
        "free some space: logbus retention plan shows what may be deleted, logbus topic ls what is large; "
        "on a full disk producers are refused, and in a cluster its broker leads nothing"
    )
    if share < USABLE_SHARE_MIN:
        return error("disk", message, advice)
    return warning("disk", message, advice) if share < USABLE_SHARE_LOW else ok("disk", message)


# Windows close by this machine's clock, and records are put into them by their producers' clocks. A clock that is ahead closes
# hours before their records have arrived; one that is behind delays every load. The warehouse can be asked for its time; a broker
# cannot, but a record from the future shows that its producer's clock or ours is wrong.
DIFFERENCE_MAX = timedelta(seconds=2)  # NTP keeps machines within milliseconds
DIFFERENCE_ALARM = timedelta(minutes=1)  # a fifth of the usual lateness
TOPICS_MAX = 50
MEND = "make sure that both machines set their clocks by NTP: timedatectl status"


def check_clocks(machine: Machine) -> Iterator[Finding]:
    """Only a note if there is no warehouse: that is a finding of its own."""
    if machine.warehouse_url is None:
        yield note("clocks", "nothing to compare this machine's clock with", "logbus doctor --warehouse URL")
        return
    try:
        engine = connect(machine.warehouse_url)
    except errors.LogbusError:
        yield note("clocks", "the warehouse does not answer, so its clock is not compared", "logbus doctor --only pipelines")
        return
    yield _warehouse_finding(engine, machine)
    topics = set[str]()
    with suppress(ProgrammingError):  # no ledger yet
        topics = {pipeline.topic for pipeline in Ledger(engine).pipelines()}
    yield from _record_findings(sorted(topics)[:TOPICS_MAX], machine)
    engine.dispose()


def _warehouse_finding(engine: Engine, machine: Machine) -> Finding:
    """The difference to the midpoint of the query; half of its duration is uncertain."""
    with engine.connect() as connection:
        before = machine.clock()
        theirs: datetime = connection.execute(text("select clock_timestamp()")).scalar_one()
        after = machine.clock()
    difference, uncertain = theirs - (before + (after - before) / 2), (after - before) / 2
    size = abs(difference) - uncertain
    way = "ahead of" if difference > timedelta() else "behind"
    message = f"the warehouse's clock is {seconds(abs(difference))} {way} this machine's (within {seconds(uncertain)})"
    if size > DIFFERENCE_ALARM:
        return error("clocks", message, MEND)
    return warning("clocks", message, MEND) if size > DIFFERENCE_MAX else ok("clocks", message)


def _record_findings(topics: Sequence[str], machine: Machine) -> Iterator[Finding]:
    """Topics whose newest record is from the future."""
    log = Topics(client.Client.for_question(machine.client_config))
    for topic in topics:
        try:
            newest = log.newest(topic, log.topic(topic).partitions)
        except errors.LogbusError:
            return  # findings of their own
        stamp = max((record.timestamp_ms for record in newest.values()), default=0)
        ahead = timedelta(milliseconds=stamp) - (machine.clock() - datetime(1970, 1, 1, tzinfo=UTC))
        if ahead > DIFFERENCE_MAX:
            message = (
                f"topic {topic} has a record from the future: {shown(stamp)}, {seconds(ahead)} ahead of this machine's clock"
            )
            yield warning("clocks", message, f"correct the clock of its producer, or this machine's; {MEND}")


def shown(stamp_ms: int) -> str:
    with suppress(ValueError, OverflowError, OSError):
        return model.instant_text(datetime.fromtimestamp(stamp_ms / 1000, UTC))
    return f"{stamp_ms} ms"


def seconds(span: timedelta) -> str:
    return f"{span.total_seconds():.3f} s"
