"""The broker: does it answer, does it take the requests that logbus sends, and how full are its disks?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from logbus.doctor.looking import Surroundings
from logbus.errors import BrokerUnavailable
from logbus.kafka.client import Client
from logbus.kafka.cluster import DirectoryReading, api_versions, log_directories
from logbus.status.checkup import Finding, error, note, warning, well

# By request, the lowest version that does what is needed, and what does not work without it.
NEEDED: Mapping[str, tuple[int, str]] = {
    "Produce": (3, "sending records with times and headers"),
    "Fetch": (4, "reading records"),
    "ListOffsets": (1, "finding windows by time"),
    "Metadata": (10, "noticing that a topic was deleted and made again"),
    "InitProducerId": (0, "sending without duplicates"),
    "OffsetFetch": (1, "consumer groups"),
    "OffsetCommit": (2, "consumer groups"),
    "DescribeGroups": (0, "logbus group"),
    "CreateTopics": (2, "logbus topic"),
    "DescribeConfigs": (1, "lag's time until retention, logbus topic config"),
    "IncrementalAlterConfigs": (0, "managed retention, logbus topic config"),
    "DeleteRecords": (0, "managed retention"),
    "DescribeLogDirs": (0, "sizes of topics, free space on the disk"),
}
USABLE_SHARE_LOW, USABLE_SHARE_MIN = 0.15, 0.05
GIB = 1 << 30


def check_broker(around: Surroundings) -> Iterator[Finding]:
    """All kinds of requests in one go: a dead broker is asked only once."""
    address = str(around.client_config.get("bootstrap.servers"))
    try:
        versions = api_versions(Client.of_a_question(around.client_config))
    except BrokerUnavailable as problem:
        advice = "start it (`logbus broker serve`), or say where it is: --bootstrap-server HOST:PORT, or LOGBUS_BOOTSTRAP_SERVER"
        yield error("broker", str(problem), advice)
        return
    lacking = [f"{name} v{version} ({what})" for name, (version, what) in NEEDED.items() if not takes(versions, name, version)]
    if lacking:
        yield error("broker", f"{address} does not support {', '.join(lacking)}", "use a newer broker, or do without")
    else:
        yield well("broker", f"{address} supports all {len(NEEDED)} kinds of requests that are needed, {len(versions)} in all")


def takes(versions: Mapping[str, tuple[int, int]], name: str, version: int) -> bool:
    return name in versions and versions[name][1] >= version


def check_disk(around: Surroundings) -> Iterator[Finding]:
    """How much space is left where the log is stored."""
    try:
        directories = log_directories(Client.of_a_question(around.client_config))
    except BrokerUnavailable:
        yield note("disk", "the broker does not say how full its disks are", "logbus doctor --only broker")
        return
    for directory in directories:
        yield room(directory)


def room(directory: DirectoryReading) -> Finding:
    share, total, usable = directory.usable_share, directory.total_bytes, directory.usable_bytes
    place = f"{directory.path} of broker {directory.broker_id}"
    if share is None or total is None or usable is None:
        return note("disk", f"{place}: the broker does not say how much space is left", "check with df")
    message = f"{place}: {usable / GIB:.1f} of {total / GIB:.1f} GiB free ({share:.0%})"
    advice = "free some: logbus retention plan shows what may go, logbus topic ls what is large; a full disk stops the broker"
    if share < USABLE_SHARE_MIN:
        return error("disk", message, advice)
    return warning("disk", message, advice) if share < USABLE_SHARE_LOW else well("disk", message)
